"""Training on GPUs compared with training on the CPU, shared by the tests on emulated GPUs and on real ones. Each
function trains in folders of the current one, and returns complaints (see tests/gold/job.py)."""
import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import struct
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / name) for name in ('gold', 'mesh')]
import job
import test_documents
import tiny

BOUND = {'float32': 1e-5, 'bfloat16': 1e-2}  # sums in a different order; rounded to 8 bits at different points
STEPS = 2
MODELS = {**tiny.MODELS, 'experts': tiny.EXPERTS, 'gpt_oss': {**tiny.EXPERTS, **tiny.OSS},
          'delta': {**tiny.MODELS['llama'], **test_documents.DELTA, 'model.layer_types': 'linear,full'},
          'scan': {**tiny.MODELS['llama'], **test_documents.SCAN, 'model.layer_types': 'linear,full_nope'},
          'granite': {**tiny.MODELS['llama'], **test_documents.GRANITE},
          'gemma4': {**tiny.MODELS['llama'], **test_documents.GEMMA4},
          'sharing': {**tiny.MODELS['llama'], **tiny.SHARING},
          'latent': {**tiny.EXPERTS, **tiny.LATENT},
          'olmo2': {**tiny.MODELS['llama'], 'model.family': 'olmo2', 'model.n_heads': 4, 'model.n_kv_heads': 2}}
# Matrices of whole blocks of codes in four bits.
BLOCKS = {'model.dim': 32, 'model.n_heads': 4, 'model.head_dim': 8, 'model.n_kv_heads': 2, 'model.ffn_dim': 48}
# Widths that tensor cores take, for experts and all.
EVEN = {**BLOCKS, 'model.expert_ffn_dim': 24, 'model.shared_ffn_dim': 16}
CPU = {'training.device': 'cpu'}
CUDA = {'training.device': 'cuda'}  # on one GPU also comm.share_gpu
HYBRID = {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'mesh.replicate': 2}
MESHES = {
    '1x1': (1, {}),
    '1x2': (2, {'parallelism.sharding_strategy': 'full_shard'}),
    '2x1': (2, {'parallelism.sharding_strategy': 'no_shard'}),
    '2x2': (4, HYBRID),
}
# Of models with experts: these are on several ranks.
SPREAD = {
    'two': (2, {**MESHES['1x2'][1], 'parallelism.expert_parallel_degree': 2, 'moe.capacity_factor': 1}),
    'two pairs of': (4, {**HYBRID, 'parallelism.expert_parallel_degree': 2}),
}
# With sequences cut over ranks, or matrices.
CUT = {'parallelism.sharding_strategy': 'full_shard', 'parallelism.context_parallel_degree': 2}
PARTS = {'halves': (2, CUT), 'gathered halves': (2, {**CUT, 'parallelism.context_parallel_method': 'gather'})}
PARTS['halves of matrices'] = (2, {'parallelism.sharding_strategy': 'full_shard', 'parallelism.tensor_parallel_degree': 2})

# With layers on several ranks. Four blocks and eight micro-steps are enough for each schedule.
PIPED = {'parallelism.pipeline_parallel_degree': 2, 'parallelism.sharding_strategy': 'shard_optim'}
STAGED = {
    'two stages': (2, PIPED),
    'two stages, each two ranks': (4, {**PIPED, 'offload.optimizer': 'cpu'}),
    'two late stages': (4, {**PIPED, 'parallelism.sharding_strategy': 'shard_grad_op', 'parallelism.pipeline_parallel_schedule': 'ZBH1'}),
    'chunks of two stages': (2, {**PIPED, 'parallelism.pipeline_parallel_schedule': 'Interleaved1F1B'}),
    'three stages': (3, {**PIPED, 'parallelism.pipeline_parallel_degree': 3}),
    'chunks of three stages': (3, {**PIPED, 'parallelism.pipeline_parallel_degree': 3, 'parallelism.pipeline_parallel_schedule': 'Interleaved1F1B'}),
    'four stages': (4, {**PIPED, 'parallelism.pipeline_parallel_degree': 4}),
    'two stages of experts': (4, {**PIPED, 'parallelism.expert_parallel_degree': 2}),
    'two stages of matrices': (4, {**PIPED, 'parallelism.tensor_parallel_degree': 2}),
    'two stages of halves': (4, {**PIPED, 'parallelism.context_parallel_degree': 2}),
}
DEEP = {'model.n_layers': 4, 'training.global_batch_size': 8, 'training.local_batch_size': 1}
# A gradient norm of matrices and of stages wants vectors of whole groups of 64.
CUT_DEEP = {**DEEP, 'model.dim': 64, 'model.n_heads': 4, 'model.n_kv_heads': 2, 'model.head_dim': 64, 'model.ffn_dim': 128, 'training.seq_len': 8}


# 192 rows a micro-step in blocks of 64, of which a rank with half of them has one and a half.
ROWS = {'activation_checkpoint.mode': 'full', 'debug.row_block': 64, 'training.local_batch_size': 16, 'training.global_batch_size': 16,
        'model.ffn_dim': 200}
BF16 = {'training.mixed_precision_param': 'bfloat16'}
WIDE = {key: CUT_DEEP[key] for key in ('model.dim', 'model.n_heads', 'model.n_kv_heads', 'model.head_dim')}
ADAPTERS = {'lora.rank': 2, 'lora.alpha': 16}


def config(model, **more):
    found = {**MODELS[model], 'training.dataset_path': str(pathlib.Path('tokens.bin').absolute()),
             'training.global_batch_size': 4, 'model.n_layers': 2, 'training.steps': STEPS,
             'lr_scheduler.total_steps': STEPS, 'lr_scheduler.warmup_steps': 1, 'metrics.log_freq': 1, **more}
    return {key: value for key, value in found.items() if value is not None}


@contextlib.contextmanager
def on_mesh(mesh):
    """(ranks, keys). Meanwhile the double of NCCL, which compares what the ranks of a stage call, knows how many stages there are."""
    ranks, axes = {**MESHES, **SPREAD, **PARTS, **STAGED}[mesh]
    os.environ['SHERD_EMULATED_STAGES'] = str(axes.get('parallelism.pipeline_parallel_degree', 1))
    try:
        yield ranks, axes
    finally:
        del os.environ['SHERD_EMULATED_STAGES']


def train(folder, settings, ranks):
    """One rank needs no launcher, whose start would cost as much as a step."""
    return job.train(folder, settings, ranks if ranks > 1 else 0)


KNOWN = {}


def known(settings, ranks):
    """(metrics, folder) of a run that several cases compare with."""
    key = json.dumps([settings, ranks], sort_keys=True)
    if key not in KNOWN:
        folder = f'known{len(KNOWN)}'
        KNOWN[key] = train(folder, settings, ranks), folder
    return KNOWN[key]


def run(name, model, device, mesh='1x1', **more):
    with on_mesh(mesh) as (ranks, axes):
        return job.train(name, config(model, **device, **axes, **more), ranks)


def on_cpu(model, **more):
    return known(config(model, **CPU, **{key: value for key, value in more.items() if not key.startswith('comm.')}), 1)[0]


def as_on_cpu(model, mesh, precision, more):
    more = {'training.mixed_precision_param': precision, **more}
    cpu = on_cpu(model, **more)
    cuda = run('cuda', model, CUDA, mesh, **more)
    # A sum in another order may round a state to the code beside it: over six seeds up to 3.3e-5 after four steps.
    bound = max(BOUND[precision], 1e-4 if more.get('optimizer.state_dtype') == 'int8' else 0)
    wrong = job.differ('losses', job.losses(cuda), job.losses(cpu), bound)
    return wrong + job.differ('norms', [step['grad_norm'] for step in cuda], [step['grad_norm'] for step in cpu], 10 * bound)


def adapted(mesh, precision, **more):
    """Adapters on a model that the CPU has trained."""
    sizes = {} if 'lora.quantize_base' not in more else BLOCKS
    run('whole', 'llama', CPU, **sizes)
    base = str(pathlib.Path('whole/out/checkpoint').absolute())
    return as_on_cpu('llama', mesh, precision,
                     {'lora.rank': 2, 'lora.alpha': 16, 'checkpoint.initial_load_path': base, **sizes, **more})


def same_bits(first, second):
    a, b = (job.losses(run(f'bits{i}', 'llama', CUDA, mesh, **more)) for i, (mesh, more) in enumerate((first, second)))
    return job.differ('losses', a, b, 0)


def tiled(mesh, lora=None, **more):
    """Tiles of whole blocks of rows change no bit of losses, norms and checkpoints, and the plan has them."""
    more = {**ROWS, **more}
    if lora:
        run('base', 'llama', CPU, **{key: value for key, value in more.items() if key.startswith('model.')})
        more |= {**lora, 'checkpoint.initial_load_path': str(pathlib.Path('base/out/checkpoint').absolute())}
    whole, tiles = (run(name, 'llama', CUDA, mesh, **more, **tile) for name, tile in (('whole', {}), ('tiles', {'training.tile_rows': 64})))
    wrong = [line for key in ('loss', 'grad_norm') for line in job.differ(key, [step[key] for step in tiles], [step[key] for step in whole], 0)]
    saved = [(path / 'out/checkpoint' / f'step-{len(whole):08}.h5').read_bytes() for path in map(pathlib.Path, ('whole', 'tiles'))]
    with on_mesh(mesh) as (ranks, _):
        plan = job.sherd('plan', 'c.yaml', '--ranks', ranks, folder='tiles')
    wrong += [] if re.search(r'^tiles +blocks that recompute all send 64 rows at a time', plan, re.M) else ['no tiles are planned:', plan]
    saves = tiles[-1]['arena_bytes'] < whole[-1]['arena_bytes']
    return wrong + ['the checkpoints differ'] * (saved[0] != saved[1]) + ['tiles save no memory'] * (not saves)


def tile_cases():
    return [(f'rows in tiles have the same bits, {name}', functools.partial(tiled, **more), mesh, lora) for name, mesh, lora, more in (
        ('float32', '1x1', None, {}), ('bfloat16 on two', '1x2', None, {**BF16, 'training.global_batch_size': 64}),
        ('with adapters', '1x2', ADAPTERS, {'training.global_batch_size': 32}),
        ('beside four bits', '1x1', {**ADAPTERS, 'lora.quantize_base': 'nf4'}, {**BF16, **BLOCKS, 'model.ffn_dim': 192}),
        ('the same with halves of sequences, all on the host', 'halves', {**ADAPTERS, 'lora.quantize_base': 'nf4'},
         {**BF16, **BLOCKS, 'model.ffn_dim': 192, 'offload.parameters': 'cpu', 'offload.gradients': 'cpu', 'offload.optimizer': 'cpu'}),
        ('halves of sequences', 'halves', None, {'model.n_heads': 4}), ('the same, gathered', 'gathered halves', None, {}),
        ('halves of matrices', 'halves of matrices', None, WIDE), ('the same with adapters', 'halves of matrices', ADAPTERS, WIDE))]


def masked():
    """One token in three counts as a target, and none in every other sequence; those that count have weights."""
    tokens = pathlib.Path('masked.bin').absolute()
    shutil.copy('tokens.bin', tokens)
    count = tokens.stat().st_size // 2
    pathlib.Path(f'{tokens}.mask').write_bytes(bytes(i % 3 == 0 and (i - 1) // tiny.SEQ_LEN % 2 for i in range(count)))
    pathlib.Path(f'{tokens}.weight').write_bytes(struct.pack(f'<{count}e', *(i % 7 / 4 for i in range(count))))
    return as_on_cpu('llama', '2x2', 'float32', {'training.dataset_path': str(tokens), 'data.target_mask': 'must', 'data.token_weight': 'must',
                                                'training.z_loss': 0.01})


def documents(model):
    """Rows of documents, in which positions start again, and a window that is shorter than a row."""
    path = test_documents.write_documents('documents.bin', 1, 90, True)
    return as_on_cpu(model, '1x2', 'float32', {'training.dataset_path': path, 'data.excess_length_strategy': 'split',
                                               'model.attention_window': 5, 'model.full_attention_interval': 2})


def continued(model, mesh='1x1', words=256, **more):
    """Texts on both devices."""
    run('text', model, CPU, **{**more, 'model.vocab_size': words})
    pathlib.Path('text/prompts').write_text('{"prompt": "abc"}\n{"prompt": "d"}\n')
    arguments = ['generate', '--checkpoint', 'out', '--tokenizer', 'byte', '--prompts', 'prompts', '--batch', 2, '--tokens', 20, '--temperature', 0]
    with on_mesh(mesh) as (ranks, axes):
        texts = [job.sherd(*arguments, *(f'--{key}={"true" if value is True else value}' for key, value in keys.items()), ranks=n,
                           folder='text') for n, keys in ((0, CPU), (ranks if ranks > 1 else 0, {**CUDA, **axes}))]
    return [] if len(texts[0]) > 40 and texts[0] == texts[1] else texts


def go_on(folder, device, mesh, steps, **more):
    """Resume in the folder of an earlier run."""
    with on_mesh(mesh) as (ranks, axes):
        (pathlib.Path(folder) / 'c.yaml').write_text(
            job.yaml({'job.dump_folder': 'out', **config('llama', **device, **axes, **more), 'training.steps': steps}))
        job.sherd('train', 'c.yaml', ranks=ranks, folder=folder)


def validation():
    return {'validation.enable': True, 'validation.dataset_path': config('llama')['training.dataset_path'], 'validation.sequences': 5}


def validated(folder):
    lines = (pathlib.Path(folder) / 'out/metrics.jsonl').read_text().splitlines()
    return [line['validation_loss'] for line in map(json.loads, lines) if 'validation_loss' in line]


def checkpoints(first, second, mode, steps=STEPS, **more):
    """Half of the run on one device, half on the other. States show in the loss after the second half's first step."""
    more = {'lr_scheduler.total_steps': steps, **more}
    steps_of_whole, folder = known(config('llama', **CPU, **{'training.steps': steps, **more}), 1)
    more = {'checkpoint.async_mode': mode, 'checkpoint.interval': 1, **more}
    job.prepare('moved', {})
    go_on('moved', *first, steps // 2, **more)
    go_on('moved', *second, steps, **more)
    verify = job.sherd('ckpt', 'verify', f'out/checkpoint/step-{steps:08d}.h5', folder='moved')
    whole = job.losses(steps_of_whole) + validated(folder)[-1:]
    return job.differ('losses', job.losses(job.metrics('moved')) + validated('moved')[-1:], whole, BOUND['float32']) + (
        [] if verify else ['sherd ckpt verify said nothing'])


def evaluates(**more):
    """By one step; what moves between a GPU and its host is for the GPU."""
    found = []
    for device, mesh in ((CPU, '1x1'), (CUDA, '1x2')):
        on_host = {key: value for key, value in more.items() if device == CUDA or not key.startswith('offload.')}
        run('eval', 'llama', device, mesh, **validation(), **{'training.steps': 1, **on_host})
        found.append(validated('eval'))
    return job.differ('validation losses', found[1], found[0], BOUND['float32'])


def traces():
    run('trace', 'llama', CUDA, '1x2', **{'profiling.trace': 'out/trace.json', 'profiling.trace_first_step': 2,
                                          'profiling.trace_steps': 1})
    events = json.loads((pathlib.Path('trace') / 'out/trace.json').read_text())
    events = events if isinstance(events, list) else events['traceEvents']
    spans = [event for event in events if event.get('ph') == 'X']
    names = {event['name'].split()[-1] for event in spans}
    wrong = [f'no {name} in the trace' for name in ('adamw', 'attention', 'all_gather', 'reduce_scatter', 'wait')
             if name not in names]
    return wrong + [f'{event["name"]} takes {event["dur"]} us' for event in spans if not 0 <= event['dur'] < 60e6]
