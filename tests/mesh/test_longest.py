#!/usr/bin/env python3
"""`sherd plan --longest`: sequences of the length that it finds are trained on within memory that the kernel limits, and
those of one step more are refused, with the limit that ends them. Prints TAP."""
import array
import json
import pathlib
import re
import resource
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

# Enough for states and some thousand tokens; attention takes the square of these.
LIMIT = 24 << 20
# The program, its libraries, MPI, and buffers of reading: what RLIMIT_DATA counts beside the arena.
BESIDE = {0: 192 << 20, 2: 160 << 20}
VOCAB = 512
BASE = {'model.family': 'llama', 'model.n_layers': 3, 'model.dim': 64, 'model.n_heads': 4, 'model.n_kv_heads': 2,
        'model.head_dim': 16, 'model.ffn_dim': 1024, 'model.vocab_size': VOCAB, 'model.max_seq_len': 64, 'training.seq_len': 64,
        'training.local_batch_size': 1, 'training.steps': 1, 'training.threads': 1, 'training.device': 'cpu',
        'lr_scheduler.total_steps': 1, 'checkpoint.enable': False, 'memory.limit_bytes': LIMIT, 'job.dump_folder': 'out'}
FULL = {'activation_checkpoint.mode': 'full'}
TILES = {**FULL, 'training.tile_rows': 64}
HALVES = {'training.mixed_precision_param': 'bfloat16'}
CONTEXT = {'parallelism.context_parallel_degree': 2, 'comm.shared_memory': 'off'}
# The second stage takes more; it has two blocks of three, and the head.
STAGES = {'parallelism.pipeline_parallel_degree': 2, 'parallelism.pipeline_parallel_schedule': 'ZBH1', 'model.tie_word_embeddings': False,
          'parallelism.pipeline_parallel_first_stage_less_layers': 1, 'parallelism.pipeline_parallel_last_stage_less_layers': 0,
          'parallelism.sharding_strategy': 'shard_optim', 'training.global_batch_size': 2}
NVME = {'offload.activations': 'nvme', 'offload.nvme_path': '.'}
RUNS = {
    'everything kept': (0, {}),
    'recomputed, in tiles': (0, {**TILES, **HALVES}),
    'a budget': (0, {'activation_checkpoint.mode': 'memory_budget'}),
    'adapters beside nf4': (0, {**TILES, **HALVES, 'lora.rank': 4, 'lora.quantize_base': 'nf4'}),
    'activations in a file that ends it': (0, {**TILES, **NVME, 'model.n_layers': 6, 'offload.nvme_limit_bytes': 256 << 10}),
    'over two ranks': (2, {**FULL, **CONTEXT}),
    'the larger of two stages': (2, {**FULL, **STAGES}),
}


def config(ranks, changes, **more):
    return {**BASE, 'training.dataset_path': tokens, 'training.global_batch_size': 1, 'mesh.ranks_per_node': ranks or 1,
            **changes, **more}


def of_length(found, length):
    return {**found, 'training.seq_len': length, 'model.max_seq_len': length}


def without_limits(found):
    """What a budget would choose takes a limit, and short tiles of a long text are planned for long."""
    budget, tiles = found.get('activation_checkpoint.mode') == 'memory_budget', found.get('training.tile_rows')
    return {'memory.limit_bytes': 0, **({'activation_checkpoint.mode': 'none'} if budget else {}),
            **({'training.tile_rows': 1024} if tiles else {})}


def beyond(found, length):
    return {**of_length(found, length), **without_limits(found)}


def arena_of(rank, world, found):
    text = job.sherd('plan', 'c.yaml', *world, '--rank', rank, folder=job.prepare('arena', found))
    return int(re.search(r'arena: all that is allocated +(\d+)', text)[1])


def start(folder, ranks, found, *words, most=None):
    folder = job.prepare(folder, found)
    limit = None if most is None else lambda: resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return job.subprocess.run(job.command(ranks, [*words[:1], 'c.yaml', *words[1:]]), cwd=folder, capture_output=True, text=True,
                              stdin=job.subprocess.DEVNULL, env=job.environment(ranks), timeout=job.SECONDS, check=False,
                              preexec_fn=limit)


def case(ranks, changes):
    changes = {**changes, **({'checkpoint.initial_load_path': base} if 'lora.rank' in changes else {})}
    last = ranks - 1 if changes.get('parallelism.pipeline_parallel_degree') else 0
    found, world = config(ranks, changes), ('--ranks', ranks or 1)
    text = job.sherd('plan', 'c.yaml', *world, '--longest', '--json', 'l.json', folder=job.prepare('longest', found))
    said = json.loads(pathlib.Path('longest/l.json').read_text())
    length, step = said['longest'], said['step']
    wrong = [] if re.search(rf'^longest +{length} tokens ', text, re.M) else [f'{length} is not in: {text}']
    if step != 64 * changes.get('parallelism.context_parallel_degree', 1) or length % step:
        wrong.append(f'steps of {step}')
    ends = ('file', 'offload.nvme_limit_bytes') if 'offload.nvme_limit_bytes' in changes else ('device', 'memory.limit_bytes')
    if said['ended_by'] != ends[0]:
        wrong.append(f'ended by {said["ended_by"]}')
    most = LIMIT + BESIDE[ranks]
    done = start('fits', ranks, of_length(found, length), 'train', most=most)
    if done.returncode:
        return [*wrong, f'{length} tokens: exit {done.returncode}: {done.stderr}']
    memory = job.metrics('fits')[-1]['arena_bytes']
    if last:
        memory = arena_of(last, world, of_length(found, length))
    if memory != said['bytes']['device'] or memory > LIMIT:
        wrong.append(f'{memory} bytes, {said["bytes"]} planned')
    for name, words in (('plan', (*world, '--rank', last)), ('train', ())):
        done = start(name, ranks if name == 'train' else 0, of_length(found, length + step), name, *words)
        needs = str(said['bytes_of_next'][ends[0]]) if name == 'plan' else ''
        if done.returncode != 4 or f'more than {ends[1]} = ' not in done.stderr or needs not in done.stderr:
            wrong.append(f'{name}, {length + step} tokens: exit {done.returncode}: {done.stderr}')
    # What the kernel allows is no more than what the plan does: of a text that takes all of it not even the arena exists.
    if ends[0] == 'device':
        far = length
        while arena_of(last, world, beyond(found, far)) <= most:
            far *= 2
        done = start('beyond', ranks, beyond(found, far), 'train', most=most)
        if done.returncode != 4 or 'the arena of ' not in done.stderr:
            wrong.append(f'{far} tokens and {most} bytes: exit {done.returncode}: {done.stderr}')
    return wrong


if __name__ == '__main__':
    tokens = str(pathlib.Path('tokens.bin').absolute())
    pathlib.Path(tokens).write_bytes(array.array('H', [(i * i + 7 * i) % VOCAB for i in range(1 << 20)]).tobytes())
    job.train('base', {**config(0, HALVES), 'memory.limit_bytes': 0, 'checkpoint.enable': True})
    base = str(next(pathlib.Path('base/out/checkpoint').glob('*.h5')).resolve())
    sys.exit(job.run_cases([(name, case, *row) for name, row in RUNS.items() if row[0] == 0 or job.can_launch()]))
