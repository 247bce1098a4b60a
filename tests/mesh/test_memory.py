#!/usr/bin/env python3
"""Memory: a run takes what `sherd plan` says, to the byte, and sharding divides it. Prints TAP."""
import functools
import pathlib
import re
import resource
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

BESIDE_ARENA_BYTES = 150 << 20  # program, libraries, MPI's buffers
SECONDS_70B = 2.0  # of processor time

# Name: ranks, model, changes. Each strategy; recompute, accumulation, validation and bf16 change the arena's contents.
RUNS = {
    'one rank, accumulation': (1, 'gpt2', {'training.local_batch_size': 4}),
    'full_shard over 4, bf16': (4, 'llama', {'training.mixed_precision_param': 'bfloat16'}),
    'shard_optim over 3, f16': (3, 'gpt2', {'parallelism.sharding_strategy': 'shard_optim',
                                            'training.mixed_precision_param': 'float16'}),
    'shard_grad_op over 3, selective recompute': (3, 'gpt2', {'parallelism.sharding_strategy': 'shard_grad_op',
                                                              'activation_checkpoint.mode': 'selective'}),
    'shard_optim over 2, full recompute': (2, 'llama', {'parallelism.sharding_strategy': 'shard_optim',
                                                        'activation_checkpoint.mode': 'full'}),
    'no_shard over 2': (2, 'gpt2', {'parallelism.sharding_strategy': 'no_shard'}),
    'no_shard over 2, nothing shared': (2, 'gpt2', {'parallelism.sharding_strategy': 'no_shard',
                                                    'comm.shared_memory': 'off'}),
    'no_shard over 4, nodes of 2': (4, 'llama', {'parallelism.sharding_strategy': 'no_shard',
                                                 'mesh.ranks_per_node': 2}),
    'no_shard over 3, nodes of 2': (3, 'llama', {'parallelism.sharding_strategy': 'no_shard',
                                                 'mesh.ranks_per_node': 2}),
    'full_shard over 3, nothing shared': (3, 'gpt2', {'comm.shared_memory': 'off'}),
    'hybrid_shard_zero2 2 x 2, nodes of 2': (4, 'gpt2', {'parallelism.sharding_strategy': 'hybrid_shard_zero2',
                                                         'mesh.ranks_per_node': 2}),
    'hybrid_shard 2 x 2, bf16 sent': (4, 'llama', {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2,
                                                   'training.mixed_precision_reduce': 'bfloat16'}),
    'full_shard over 3, nothing shared, bf16 sent': (3, 'gpt2', {'comm.shared_memory': 'off',
                                                                 'training.mixed_precision_reduce': 'bfloat16'}),
    'one rank, reproducible': (1, 'gpt2', {'training.reproducible': 'mesh', 'training.global_batch_size': 16}),
    'shard_optim over 2, reproducible': (2, 'llama', {'training.reproducible': 'mesh',
                                                      'training.global_batch_size': 16,
                                                      'parallelism.sharding_strategy': 'shard_optim'}),
    'shard_optim 2 x 2, bf16': (4, 'gpt2', {'parallelism.sharding_strategy': 'shard_optim', 'mesh.shard': 2,
                                            'training.mixed_precision_param': 'bfloat16'}),
    'shard_optim 2 x 2, nothing shared': (4, 'llama', {'parallelism.sharding_strategy': 'shard_optim', 'mesh.shard': 2,
                                                       'comm.shared_memory': 'off'}),
    'hybrid_shard 2 x 2, documents': (4, 'llama', {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2,
                                                   'data.document_mask': True, 'data.document_separator': 3}),
    'hybrid_shard 2 x 2, saved asynchronously': (4, 'gpt2', {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2,
                                                     'checkpoint.async_mode': 'async'}),
    'full_shard over 2, states in int8, saved asynchronously': (2, 'gpt2', {'optimizer.state_dtype': 'int8',
                                                                           'optimizer.ema_decay': 0.9,
                                                                           'checkpoint.async_mode': 'async'}),
    'full_shard over 2, keys and values of other blocks, full recompute': (2, 'llama', {**tiny.SHARING, 'activation_checkpoint.mode': 'full'}),
    'full_shard over 4, keys and values of other blocks, bf16': (4, 'llama', {**tiny.SHARING, 'training.mixed_precision_param': 'bfloat16'}),
    'full_shard over 3, Muon': (3, 'llama', {'optimizer.name': 'muon'}),
    'hybrid_shard 2 x 2, NorMuon, an average, saved asynchronously': (
        4, 'gpt2', {'optimizer.name': 'normuon', 'optimizer.ema_decay': 0.9, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2,
                    'checkpoint.async_mode': 'async'}),
    'full_shard over 2, states in bfloat16, saved asynchronously': (2, 'llama', {'optimizer.state_dtype': 'bfloat16',
                                                                                 'checkpoint.async_mode': 'async'}),
}
BUDGETS = {
    'one rank': (1, 'gpt2', {'training.mixed_precision_param': 'bfloat16'}),
    'full_shard over 3': (3, 'llama', {}),
    'full_shard over 2, nothing shared': (2, 'gpt2', {'comm.shared_memory': 'off'}),
    'hybrid_shard_zero2 2 x 2': (4, 'llama', {'parallelism.sharding_strategy': 'hybrid_shard_zero2', 'mesh.shard': 2}),
}
APART = {'comm.shared_memory': 'off'}
NO_SHARD = {'parallelism.sharding_strategy': 'no_shard'}
ARENA = 'arena: all that is allocated'
MODEL_STATES = ('parameters', 'gradients', 'optimizer state')


def plan(config, ranks, rank=0):
    """The memory table as a dictionary of bytes."""
    path = pathlib.Path('plan.yaml')
    path.write_text(job.yaml(config))
    text = job.sherd('plan', path, '--ranks', ranks, '--rank', rank)
    table = text.split('memory of this rank')[1].split('\n\n')[0]
    return {name.removesuffix(' on it'): int(size) for name, size in re.findall(r'^  (\S.*?) {2,}(\d+) ', table, re.M)}  # of a GPU


def case_exact(ranks, family, changes):
    """Rank 0 writes the metrics, so its arena is compared."""
    config = {'training.dataset_path': tokens, **tiny.MODELS[family], **changes, 'training.steps': 2,
              'lr_scheduler.total_steps': 10}
    step = job.train('run', config, ranks)[-1]
    planned = plan({'mesh.ranks_per_node': ranks or 1, **config}, ranks)[ARENA]
    wrong = [f'arena of {step["arena_bytes"]} bytes, planned {planned}'] if step['arena_bytes'] != planned else []
    if not planned <= step['peak_rss_bytes'] <= planned + BESIDE_ARENA_BYTES:
        wrong.append(f'{step["peak_rss_bytes"]} bytes resident beside an arena of {planned}')
    return wrong


def between(config, ranks):
    """A budget half-way between what `none` and `full` take, as configuration keys."""
    ends = [plan({**config, 'activation_checkpoint.mode': mode}, ranks)[ARENA] for mode in ('none', 'full')]
    return {'activation_checkpoint.mode': 'memory_budget', 'memory.limit_bytes': sum(ends) // 2}


def case_budget(ranks, family, changes):
    """The run keeps the budget, the plan says how, and the numbers are those of a run that recomputes nothing."""
    config = {'training.dataset_path': tokens, **tiny.MODELS[family], 'mesh.ranks_per_node': ranks or 1, **changes,
              'model.n_layers': 6, 'training.steps': 2, 'lr_scheduler.total_steps': 10}
    expected = job.losses(job.train('run', config, ranks))
    config.update(between(config, ranks))
    table, step = plan(config, ranks), job.train('run', config, ranks)
    wrong = [] if step[-1]['arena_bytes'] == table[ARENA] <= config['memory.limit_bytes'] else [
        f'arena of {step[-1]["arena_bytes"]} bytes, planned {table[ARENA]} for {config["memory.limit_bytes"]}']
    words = ' '.join(job.sherd('plan', 'plan.yaml', '--ranks', ranks).split())  # the plan wraps its lines
    if not re.search(r'; recompute selective in \d+(, full in \d+)? of 6 blocks, to fit [0-9.]+ ', words):
        wrong.append(words.split(' strategy ')[1].split(' step ')[0])
    return wrong + job.differ('loss', job.losses(step), expected, 0)


def case_uneven_ranks():
    """Rank 1 has more threads and so more scratch; only rank 1 needs to recompute, but both do."""
    config = {'training.dataset_path': tokens, **tiny.MODELS['llama'], 'training.steps': 2, 'model.n_layers': 6,
              'lr_scheduler.total_steps': 10, 'mesh.ranks_per_node': 2, 'training.threads': 1}
    expected = job.losses(job.train('run', config, 2))
    config.update(between({**config, 'training.threads': 4}, 2))
    if plan({**config, 'activation_checkpoint.mode': 'none'}, 2)[ARENA] > config['memory.limit_bytes']:
        return ['rank 0 would recompute by itself']
    folder = job.prepare('run', {'job.dump_folder': 'out', **config})
    words = job.command(1, ['train', 'c.yaml'])
    done = subprocess.run([*words, ':', '-n', '1', *job.command(0, ['train', 'c.yaml', '--training.threads=4'])],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder,
                          env=job.environment(2), timeout=job.SECONDS)
    if done.returncode != 0 or not re.search(', recompute selective in', done.stderr):
        return [f'exit {done.returncode}: {done.stderr}']
    return job.differ('loss', job.losses(job.metrics(folder)), expected, 0)


def case_quarter(**changes):
    """Sharding divides memory, except the padding of units; without accumulation, which needs a second gradient of one
    unit."""
    config = {**tiny.MODELS['llama'], 'model.dim': 60, 'model.head_dim': 12, 'model.ffn_dim': 100,
              'training.global_batch_size': -1, **changes}
    whole, part = plan({**config, **NO_SHARD, **APART}, 4), plan(config, 4)
    ratios = {name: part[name] / whole[name] for name in MODEL_STATES}
    return [f'{name}: {ratio:.4f} of what no_shard takes' for name, ratio in ratios.items() if not 0.25 <= ratio < 0.26]


def case_once():
    """State held once by a node's ranks takes as much as sharded state; on two nodes of two ranks, twice as much per
    rank."""
    config = {**tiny.MODELS['llama'], **NO_SHARD}
    node, nodes, apart = (plan({**config, **where}, 4) for where in (
        {'mesh.ranks_per_node': 4}, {'mesh.ranks_per_node': 2}, {'mesh.ranks_per_node': 4, **APART}))
    parts = plan({**config, 'parallelism.sharding_strategy': 'shard_optim', 'mesh.ranks_per_node': 4}, 4)
    wrong = [] if node == parts else [f'{node}, shard_optim takes {parts}']
    if not node[ARENA] < nodes[ARENA] < apart[ARENA]:
        wrong.append(f'arenas: one node {node[ARENA]}, two {nodes[ARENA]}, nothing shared {apart[ARENA]}')
    ratios = [(name, nodes[name] / node[name]) for name in ('parameters', 'optimizer state')]
    return wrong + [f'{name}: {ratio:.3f} of what one node takes' for name, ratio in ratios if not 1.9 < ratio < 2.1]


def case_example(path):
    """On as few ranks as it allows; an example that leaves the model to the command line with a small one."""
    text = path.read_text()
    ranks = re.search(r'context_parallel_degree: (\d+)', text)
    model = [] if '\nmodel:' in text else ['--model.name=debug', '--model.max_seq_len=2048']
    job.sherd('plan', path, '--ranks', ranks[1] if ranks else 1, '--mesh.ranks_per_node=1', '--memory.limit_bytes=20TB', *model)
    return []


def case_large():
    """The largest preset on 512 ranks: a plan is only arithmetic, whatever its size."""
    path = pathlib.Path('large.yaml')
    path.write_text(job.yaml({'model.name': 'llama3.1-70b', 'training.seq_len': 8192, 'training.local_batch_size': 1}))
    start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    text = job.sherd('plan', path, '--ranks', 512, '--rank', 511)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - start
    wrong = [f'took {seconds:.1f} s'] if seconds > SECONDS_70B else []
    return wrong + ([] if re.search(r'70\.\d+ B parameters', text) else ['not the parameters of a 70b:', text])


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    cases = [(f'{name}: as planned', case_exact, *run) for name, run in RUNS.items() if run[0] == 1 or job.can_launch()]
    cases += [(f'{name}: within a budget', case_budget, *run) for name, run in BUDGETS.items()
              if run[0] == 1 or job.can_launch()]
    cases += [('ranks that need more than others', case_uneven_ranks)] if job.can_launch() else []
    cases += [('full_shard over 4 takes a quarter', case_quarter),
              ('and so on one node', functools.partial(case_quarter, **{'mesh.ranks_per_node': 4})),
              ('70b on 512 ranks', case_large),
              ('no_shard held once by a node', case_once)]
    examples = sorted((job.TOP / 'examples').glob('*.yaml'))
    cases += [(f'{path.name} can be planned', case_example, path) for path in examples]
    sys.exit(job.run_cases(cases))
