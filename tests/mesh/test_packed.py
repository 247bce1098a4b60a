#!/usr/bin/env python3
"""A frozen base in four bits per element (lora.quantize_base=nf4): the same file on any mesh, the memory that `sherd
plan` says, and a 70B model on four cards of 24 GB. Prints TAP."""
import pathlib
import re
import resource
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

# Matrices of whole blocks of 64 elements.
MODEL = {**tiny.MODELS['llama'], 'model.dim': 32, 'model.n_heads': 4, 'model.head_dim': 8, 'model.n_kv_heads': 2,
         'model.ffn_dim': 48, 'training.steps': 3, 'lr_scheduler.total_steps': 10, 'training.global_batch_size': 8,
         'training.mixed_precision_param': 'bfloat16'}
# A dense block, then experts and the one that all tokens have; the width is that of the smallest matrix, its weight. Pairs
# of adapters are whole blocks too: their squares add up to the same norm in any unit.
EXPERTS = {**MODEL, **{key: value for key, value in tiny.EXPERTS.items() if key not in MODEL}, 'model.family': 'qwen2_moe',
           'model.dim': 64, 'model.expert_ffn_dim': 32, 'model.shared_ffn_dim': 32}
NF4 = {'lora.rank': 2, 'lora.quantize_base': 'nf4'}
SAME = {'training.reproducible': 'mesh'}
APART = {'comm.shared_memory': 'off'}
RUNS = {
    'one rank': (1, {}),
    'full_shard over 2': (2, {}),
    'full_shard over 2, nothing shared': (2, APART),
    'full_shard over 4, all recomputed': (4, {**APART, 'activation_checkpoint.mode': 'full'}),
    'no_shard over 2': (2, {'parallelism.sharding_strategy': 'no_shard'}),
    'hybrid_shard 2 x 2': (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2}),
    'shard_grad_op over 4': (4, {**APART, 'parallelism.sharding_strategy': 'shard_grad_op'}),
}
EP = 'parallelism.expert_parallel_degree'
SPREAD = {
    'experts over 2': (2, {EP: 2}),
    'experts over 2 of 4, small waves, all recomputed': (4, {EP: 2, **APART, 'moe.capacity_factor': 1,
                                                             'activation_checkpoint.mode': 'full'}),
    'no_shard, experts over 2': (2, {EP: 2, 'parallelism.sharding_strategy': 'no_shard'}),
}
ARENA = r'^  arena: all that is allocated\S*(?: on it)? +(\d+) '

# Llama 3.1 70B with adapters of rank 16: GPUs, base, tokens per sequence, bytes on a GPU for frozen parameters and in
# total. The frozen parameters are 80 blocks of 855,638,016 elements in matrices and 16,384 in vectors, and two matrices
# of 128,256 x 8,192.
WEIGHTS, VECTORS, EMBEDDINGS = 80 * 855638016, 80 * 16384 + 8192, 2 * 128256 * 8192
PACKED = WEIGHTS // 64 * 36 // 4 + 2 * (VECTORS - 8192) + 2 * (EMBEDDINGS + 8192) // 4
ROWS = [
    (4, 'nf4', 512, PACKED, 15.08e9),
    (4, 'nf4', 2048, PACKED, 17.96e9),
    (4, 'nf4', 4096, PACKED, 20.75e9),
    (4, 'none', 2048, 2 * (WEIGHTS + VECTORS + EMBEDDINGS) // 4, 43.7e9),
    (8, 'none', 2048, 2 * (WEIGHTS + VECTORS + EMBEDDINGS) // 8, 25.7e9),
]
CARD = 24 << 30  # minus what CUDA and its libraries take
BESIDE = 6 << 27
SECONDS = 1.0    # of processor time


def plan_of(text, what=ARENA):
    found = re.search(what, text, re.M)
    return int(found[1]) if found else -1


def base(model=MODEL):
    """A checkpoint of the whole model, used as the frozen base."""
    folder = pathlib.Path('base' if model is MODEL else 'base-experts')
    if not folder.exists():
        job.train(folder, {'training.dataset_path': tokens, **model}, 0)
    return str(next((folder / 'out/checkpoint').glob('*.h5')).resolve())


def config(changes, model=MODEL):
    stacks = {} if model is MODEL else {'lora.target_parameters': 'gate_up_proj,experts.down_proj', 'moe.load_balance_coeff': 0,
                                        'model.router_bias': True}
    return {'training.dataset_path': tokens, **model, **NF4, **stacks, 'checkpoint.initial_load_path': base(model), **changes}


def case_same(model, ranks, changes):
    """The result of one rank, to the bit; and the arena of the plan."""
    one = 'one' if model is MODEL else 'one-experts'
    if not pathlib.Path(one).exists():
        job.train(one, config(SAME, model))
    steps = job.train('run', config({**SAME, **changes}, model), ranks)
    files = [sorted(pathlib.Path(f, 'out/checkpoint').glob('*.h5'))[-1].read_bytes() for f in (one, 'run')]
    wrong = job.differ('loss', job.losses(steps), job.losses(job.metrics(one)), 0)
    planned = plan_of(job.sherd('plan', 'run/c.yaml', '--ranks', ranks, '--mesh.ranks_per_node', ranks))
    if steps[-1]['arena_bytes'] != planned:
        wrong.append(f'arena of {steps[-1]["arena_bytes"]} bytes, planned {planned}')
    return wrong + ([] if files[0] == files[1] else ['the checkpoints differ'])


def case_base_in_another_form():
    """A base that differs from the one that was trained on is refused."""
    job.train('run', config({}))
    (path := pathlib.Path('run/c.yaml')).write_text(path.read_text().replace('"nf4"', '"none"'))
    try:
        job.sherd('train', 'c.yaml', '--training.steps=4', folder='run')
    except job.Failed as error:
        return [] if 'was trained on the parameters that were in' in str(error) else [str(error)]
    return ['the run went on']


def case_odd_sizes(model, changes, what):
    base(model)
    try:
        job.sherd('plan', 'base/c.yaml' if model is MODEL else 'base-experts/c.yaml', '--ranks', 2, '--lora.rank=2',
                  '--lora.quantize_base=nf4', *changes)
    except job.Failed as error:
        want = f'lora.quantize_base: nf4 needs matrices of a multiple of 64 elements, but {what}'
        return [] if want in str(error) else [str(error)]
    return ['it was planned']


def case_70b(gpus, quantize, tokens_of_row, frozen, arena):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    text = job.sherd('plan', job.TOP / 'examples/llama3.1-70b.yaml', '--ranks', gpus, f'--mesh.ranks_per_node={gpus}',
                     '--training.device=cuda', '--lora.rank=16', f'--lora.quantize_base={quantize}', '--checkpoint.enable=false',
                     '--activation_checkpoint.mode=full', '--memory.limit_bytes=0',
                     f'--training.seq_len={tokens_of_row}', f'--training.global_batch_size={gpus}')
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    found, all_of_it = plan_of(text, r'^  parameters, frozen +(\d+) '), plan_of(text)
    wrong = [f'took {seconds:.1f} s'] if seconds > SECONDS else []
    if found != frozen:
        wrong.append(f'{found} bytes of frozen parameters, not {frozen}')
    if not 0.99 * arena <= all_of_it <= 1.01 * arena:
        wrong.append(f'an arena of {all_of_it} bytes, not {arena:.0f}')
    if quantize == 'nf4' and all_of_it > CARD - BESIDE:
        wrong.append(f'{all_of_it} bytes do not fit a card')
    if quantize == 'none' and all_of_it < CARD - BESIDE:
        wrong.append(f'{all_of_it} bytes fit a card')
    return wrong


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    cases = [(f'{name}{experts}: as one rank, as planned', case_same, model, *run) for name, run in RUNS.items()
             for experts, model in (('', MODEL), (', experts', EXPERTS)) if run[0] == 1 or job.can_launch()]
    cases += [(f'{name}: as one rank, as planned', case_same, EXPERTS, *run) for name, run in SPREAD.items() if job.can_launch()]
    cases += [('a base in another form is refused', case_base_in_another_form),
              ('a matrix of odd size is refused', case_odd_sizes, MODEL, ['--model.ffn_dim=47'],
               'model.layers.0.mlp.gate_proj.weight has 1504'),
              ('an expert of odd size is refused', case_odd_sizes, EXPERTS,
               ['--model.dim=32', '--model.expert_ffn_dim=9', '--model.shared_ffn_dim=0', '--moe.load_balance_coeff=0'],
               'one of model.layers.1.mlp.experts.gate_up_proj.weight has 288')]
    cases += [(f'70B on {row[0]} GPUs, base {row[1]}, {row[2]} tokens', case_70b, *row) for row in ROWS]
    sys.exit(job.run_cases(cases))
