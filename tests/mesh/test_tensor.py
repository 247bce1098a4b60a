#!/usr/bin/env python3
"""Matrices cut over ranks (parallelism.tensor_parallel_degree): the numbers of whole matrices. Prints TAP.

Losses, norms and validation are those of one rank to LOSS_BOUND; memory is what the plan says. What only moves or
repeats operations on the same mesh changes no bit. A checkpoint is loaded and saved by 4 ranks with a part of each
matrix, then by one, then by 2, with the same bytes. SHERD_TEST_FEW=1 leaves out most rows.
"""
import functools
import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import test_memory
import tiny

STEPS = 3
LOSS_BOUND = 1e-5
TP, CP = 'parallelism.tensor_parallel_degree', 'parallelism.context_parallel_degree'
COMMON = {'model.n_heads': 4, 'training.global_batch_size': 12, 'training.local_batch_size': 3, 'training.steps': STEPS,
          'lr_scheduler.total_steps': STEPS, 'validation.enable': True, 'validation.freq': STEPS,
          'validation.sequences': 10, 'metrics.log_freq': 1, 'model.n_kv_heads': 4}
DOCUMENTS = {'data.document_mask': True, 'data.document_separator': 7}
WIDE = {**tiny.MODELS['llama'], **COMMON, 'model.dim': 128, 'model.head_dim': 32, 'model.ffn_dim': 256, 'model.init_std': 0.02}
LLAMA, GPT2 = {**tiny.MODELS['llama'], **COMMON}, {**tiny.MODELS['gpt2'], **COMMON, 'model.dim': 16}
KINDS = {
    'llama': LLAMA,
    'llama, two kv heads, documents': {**LLAMA, **DOCUMENTS, 'model.n_kv_heads': 2},
    'gpt2': GPT2,
    'phi3': {**LLAMA, 'model.family': 'phi3', 'model.n_kv_heads': 2},
    'gpt_neox': {**GPT2, 'model.family': 'gpt_neox', 'model.tie_word_embeddings': False},
    'gemma3': {**LLAMA, 'model.family': 'gemma3_text', 'model.tie_word_embeddings': True},
    'qwen3': {**LLAMA, 'model.family': 'qwen3', 'model.tie_word_embeddings': True},
    'llama, wide': {**LLAMA, 'model.dim': 256, 'model.init_std': 0.02},
    'adapters': {**WIDE, 'lora.rank': 2},
    'adapters of some': {**WIDE, 'lora.rank': 3, 'lora.target_modules': 'q_proj,v_proj,o_proj,up_proj'},
    'adapters in four bits': {**WIDE, 'lora.rank': 2, 'lora.quantize_base': 'nf4'},
    'adapters of biases in four bits': {**WIDE, 'model.family': 'qwen2', 'lora.rank': 2, 'lora.quantize_base': 'nf4'},
    'starcoder2': {**LLAMA, 'model.family': 'starcoder2', 'model.n_kv_heads': 2},
}
APART = {'comm.shared_memory': 'off'}
INLINE = {'comm.progress': 'inline'}
FULL = {'activation_checkpoint.mode': 'full'}
SELECTIVE = {'activation_checkpoint.mode': 'selective'}
STATES = {'offload.optimizer': 'nvme', 'offload.nvme_path': '.'}
ONE = {'training.local_batch_size': 1}
SPILLED = {'offload.activations': 'nvme', 'offload.nvme_path': '.'}


def on(kind, strategy, ranks, degree, *more):
    found = {'parallelism.sharding_strategy': strategy, TP: degree}
    for changes in more:
        found |= changes
    return kind, ranks, found


MESHES = {
    'full_shard, 2 of 2': on('llama', 'full_shard', 2, 2),
    'full_shard, 4 of 4': on('llama', 'full_shard', 4, 4, FULL),
    'full_shard, 2 of 4': on('llama, two kv heads, documents', 'full_shard', 4, 2, INLINE, SELECTIVE),
    'full_shard, resharded over 2': on('gpt2', 'full_shard', 4, 2, {'parallelism.reshard_after_forward': 2}),
    'full_shard, whose ranks cut sequences too': on('llama', 'full_shard', 4, 2, {CP: 2}, FULL),
    'shard_grad_op, 2 of 4': on('gpt2', 'shard_grad_op', 4, 2, FULL),
    'shard_optim, 2 of 4, states in a file': on('qwen3', 'shard_optim', 4, 2, STATES, ONE),
    'shard_optim, 4 of 4, activations in a file': on('llama, wide', 'shard_optim', 4, 4, SPILLED),
    'hybrid_shard, 2 of 4': on('gemma3', 'hybrid_shard', 4, 2, {'mesh.shard': 1}),
    'hybrid_shard_zero2, 2 of 4': on('phi3', 'hybrid_shard_zero2', 4, 2, {'mesh.shard': 1}, ONE),
    'adapters, 2 of 4': on('adapters', 'full_shard', 4, 2, SELECTIVE),
    'adapters of some, 4 of 4': on('adapters of some', 'shard_optim', 4, 4, FULL),
    'adapters in four bits, 2 of 2': on('adapters in four bits', 'full_shard', 2, 2),
    'adapters of biases in four bits, 2 of 4': on('adapters of biases in four bits', 'shard_grad_op', 4, 2, SELECTIVE),
    'no_shard, 4 of 4': on('gpt_neox', 'no_shard', 4, 4),
    'no_shard, 2 of 4, tiles': on('starcoder2', 'no_shard', 4, 2, FULL, {'training.tile_rows': 64, 'training.local_batch_size': 6}),
}
# Changes that only move or repeat operations.
MOVED = (INLINE, FULL, {**SELECTIVE, 'parallelism.forward_prefetch': 3, 'parallelism.backward_prefetch': 0}, SPILLED)
if job.FEW:
    MESHES = dict(list(MESHES.items())[::5])
    MOVED = MOVED[:1]


def config(changes):
    data = {'training.dataset_path': tokens, 'validation.dataset_path': tokens}
    return {**data, **changes, **({'checkpoint.initial_load_path': base(changes['model.family'])} if 'lora.rank' in changes else {})}


@functools.lru_cache(None)
def base(family):
    folder = 'base-' + family
    job.train(folder, config({**WIDE, 'model.family': family, 'training.steps': 1}))
    return str(saved(folder, 1).resolve().parent.parent)


def saved(folder, step=STEPS):
    return pathlib.Path(folder) / f'out/checkpoint/step-{step:08}.h5'


def train(name, changes, ranks=0):
    """Returns losses, norms and the losses of validation; and the metrics of all steps."""
    folder = pathlib.Path(name.replace(', ', '-').replace(' ', '-'))
    steps = job.train(folder, changes, ranks)
    lines = map(json.loads, (folder / 'out/metrics.jsonl').read_text().splitlines())
    numbers = [step[key] for step in steps for key in ('loss', 'grad_norm')]
    numbers += [line['validation_loss'] for line in lines if 'validation_loss' in line]
    shutil.rmtree(folder)
    return numbers, steps


@functools.lru_cache(None)
def one_rank(kind):
    return train('one ' + kind, config(KINDS[kind]))[0]


def case_mesh(name):
    kind, ranks, changes = MESHES[name]
    changes = config({**KINDS[kind], **changes})
    numbers, steps = train('run ' + name, changes, ranks)
    planned = test_memory.plan({'mesh.ranks_per_node': ranks, **changes}, ranks)[test_memory.ARENA]
    wrong = [f'arena of {steps[-1]["arena_bytes"]} bytes, planned {planned}'] * (steps[-1]['arena_bytes'] != planned)
    return wrong + job.differ('losses and norms', numbers, one_rank(kind), LOSS_BOUND)


def case_moved(number):
    """Everything at another place: the same bytes."""
    found = []
    for i, more in enumerate(({}, MOVED[number])):
        job.train(f'moved-{number}-{i}', config({**KINDS['llama, wide'], TP: 2, **more}), 4)
        found.append(saved(f'moved-{number}-{i}').read_bytes())
    return [] if found[0] == found[1] else [f'{MOVED[number]} changes bits']


def case_resume():
    """Each mesh loads what the one before has saved. The head is so large that no loss is finite, so a step is skipped."""
    base = config({**KINDS['phi3'], 'model.n_kv_heads': 4, 'validation.enable': False, 'training.local_batch_size': 1, TP: 4})
    job.train('resume', base, 4)
    path, step, wrong = saved('resume'), STEPS, []
    head = checkpoint.read(path)['lm_head.weight']
    head[...] = 3e38
    checkpoint.replace(path, {'lm_head.weight': head})
    expected = tensors(path)
    for ranks, degree in ((0, 1), (2, 2), (4, 2), (4, 4)):
        step += 1
        folder = job.prepare(f'resume-{ranks}-{degree}',
                             {'job.dump_folder': 'out', **base, TP: degree, 'training.steps': step})
        saved(folder, step - 1).parent.mkdir(parents=True)
        shutil.copy(path, saved(folder, step - 1))
        job.sherd('train', 'c.yaml', ranks=ranks, folder=folder)
        path = saved(folder, step)
        wrong += [f'degree {degree} saves other tensors'] * (tensors(path) != expected)
    return wrong


def case_parameters(kind):
    """What all ranks hold whole is trained as on one rank: the gradient of norms, biases and halves of adapters is summed
    over all rows and all parts."""
    for name, ranks, degree in (('whole', 0, 1), ('cut', 4, 4)):
        job.train(f'{name}-{kind}', config({**KINDS[kind], 'optimizer.eps': 1e-3, TP: degree}), ranks)
    whole, cut = (checkpoint.read(saved(f'{name}-{kind}')) for name in ('whole', 'cut'))
    return [f'{name} differs by {abs(cut[name] - whole[name]).max()}' for name in whole
            if abs(cut[name] - whole[name]).max() > LOSS_BOUND * max(1, abs(whole[name]).max())]


def case_folders():
    """A folder of transformers that 4 ranks write is the one that a single process makes of their checkpoint, and 2 ranks
    with halves of each matrix begin with its weights."""
    changes = config({**LLAMA, 'model.family': 'phi3', TP: 4, 'checkpoint.last_save_in_hf': True})
    job.train('written', changes, 4)
    job.sherd('ckpt', 'export', saved('written'), '-o', 'exported')
    names = ('model.safetensors',)
    found = [next(pathlib.Path('written/out').rglob(name)).read_bytes() for name in names]
    wrong = ['another folder'] * (found != [(pathlib.Path('exported') / name).read_bytes() for name in names])
    other = {key: value for key, value in LLAMA.items() if not key.startswith('model.')}
    start = {**config(other), 'model.hf': str(pathlib.Path('exported').resolve())}
    runs = [job.losses(job.train(f'read-{degree}', {**start, TP: degree}, ranks)) for ranks, degree in ((0, 1), (2, 2))]
    return wrong + job.differ('losses', runs[1], runs[0], LOSS_BOUND)


def case_blocks():
    """Four bits need parts of whole blocks."""
    folder = job.prepare('blocks', {'job.dump_folder': 'out', **config({**KINDS['adapters in four bits'], TP: 4})})
    try:
        return [job.sherd('plan', 'c.yaml', '--ranks', 4, folder=folder)]
    except job.Failed as refusal:
        said = str(refusal)
    return [] if 'packs 64 neighbours of a matrix together, but these ranks have 32 of 128' in said else [said]


def case_announced():
    """The lines that announce a run and its plan say what is cut over its ranks."""
    changes = config({**LLAMA, TP: 2, 'training.steps': 1, 'validation.enable': False})
    folder = job.prepare('said', {'job.dump_folder': 'out', **changes})
    said = job.launch('train', 'c.yaml', ranks=4, folder=folder)[1]
    planned = job.sherd('plan', 'c.yaml', '--ranks', 4, folder=folder)
    return ([said] * ('1 x 2 ranks (replicate x shard), matrices over 2, ' not in said)
            + [planned] * ('matrices of blocks are cut over 2 ranks, 18 rows on each' not in planned))


def tensors(path):
    return {(state, name): values.tobytes() for state in checkpoint.STATES
            for name, values in checkpoint.read(path, state).items()}


def cases():
    return ([(name, case_mesh, name) for name in MESHES]
            + [(f'moved, {number}', case_moved, number) for number in range(len(MOVED))]
            + [('checkpoints do not show the degree', case_resume), ('announced', case_announced), ('folders', case_folders)]
            + [(f'parameters, {kind}', case_parameters, kind) for kind in ('gpt2', 'adapters')] + [('blocks', case_blocks)])


if __name__ == '__main__':
    job.need_launcher()
    job.need_modules('h5py', 'numpy')
    import checkpoint
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(cases()))
