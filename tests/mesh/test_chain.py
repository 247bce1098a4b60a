#!/usr/bin/env python3
"""One checkpoint through many meshes: each loads what the one before has saved, and saves the same tensors. Prints TAP.

A matrix is so large that no loss is finite, or with Muon the loss is scaled beyond float16, so steps are skipped. At the end the
checkpoint is exported: the bytes are those of an export of the first.

A folder of transformers that a mesh writes has the bytes of those that one rank writes of the same checkpoint, and other
meshes begin with its weights. SHERD_TEST_FEW=1 leaves out most folders.
"""
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

STEPS = 3
SHARD, STRATEGY = 'mesh.shard', 'parallelism.sharding_strategy'
TENSOR, CONTEXT, STAGES, EXPERTS = (f'parallelism.{axis}_parallel_degree'
                                    for axis in ('tensor', 'context', 'pipeline', 'expert'))
RING = 'parallelism.pipeline_parallel_schedule'
OPTIM, GRADS, FULL, ONE = {STRATEGY: 'shard_optim'}, {STRATEGY: 'shard_grad_op'}, {STRATEGY: 'full_shard'}, {}
HYBRID = {STRATEGY: 'hybrid_shard', SHARD: 2}
COMMON = {'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS, 'comm.shared_memory': 'off', 'guard.max_skips': 100}
DENSE = {**tiny.MODELS['llama'], **COMMON, 'model.dim': 64, 'model.head_dim': 16, 'model.n_layers': 4, 'model.n_heads': 4, 'model.n_kv_heads': 4}
SPREAD = {**tiny.EXPERTS, **COMMON, 'model.tie_word_embeddings': False, 'model.dim': 64, 'model.n_heads': 4, 'model.n_kv_heads': 2,
          'moe.load_balance_coeff': 0}
OVERFLOWS = {'training.mixed_precision_param': 'float16', 'training.loss_scale': 2**40}
# The model, and the meshes in turn: ranks and what is changed.
CHAINS = {
    'a dense model': (DENSE, [
        (4, {TENSOR: 4}), (0, ONE), (4, {STAGES: 4, **OPTIM}), (2, {CONTEXT: 2}), (3, GRADS), (4, {TENSOR: 2, CONTEXT: 2}),
        (4, {STAGES: 2, TENSOR: 2, **OPTIM}), (4, HYBRID), (4, {STAGES: 2, CONTEXT: 2, RING: 'Interleaved1F1B', **GRADS}), (2, {TENSOR: 2, **FULL}),
        (8, {STAGES: 2, TENSOR: 2, CONTEXT: 2, **OPTIM}), (6, {STAGES: 3, **GRADS}), (4, {CONTEXT: 4}), (0, ONE)]),
    'experts': (SPREAD, [
        (4, {EXPERTS: 2}), (0, ONE), (3, {EXPERTS: 3, **FULL}), (4, {EXPERTS: 2, CONTEXT: 2}), (2, GRADS),
        (4, {EXPERTS: 2, **HYBRID}),
        (2, {STAGES: 2, **OPTIM}), (4, {STAGES: 2, EXPERTS: 2, **GRADS}), (4, {TENSOR: 2, EXPERTS: 2}),
        (8, {TENSOR: 2, CONTEXT: 2, EXPERTS: 2}), (2, {TENSOR: 2, **FULL}), (8, {STAGES: 2, TENSOR: 2, EXPERTS: 2, **GRADS}),
        (16, {STAGES: 2, TENSOR: 2, CONTEXT: 2, EXPERTS: 2, **OPTIM}), (0, ONE)]),
    'eight experts': ({**SPREAD, 'model.n_experts': 8}, [(4, {EXPERTS: 4}), (0, ONE), (2, {EXPERTS: 2})]),
    'Muon': ({**DENSE, 'optimizer.name': 'muon'}, [(4, FULL), (0, ONE), (3, FULL), (4, HYBRID), (2, OPTIM), (0, ONE)]),
}
LOSS_BOUND = 1e-5
# Else what is only rounding moves a weight as far as any other, and losses of balance are those of each rank's rows.
BEGUN = {'optimizer.eps': 1e-5, 'moe.aux_loss_coeff': 0}
# The model, the mesh that writes a folder, and those that begin with it. Of some, matrices have other bands: of heads, of columns, of
# several matrices in one, of rows alone.
FOLDERS = {
    'matrices of gpt_neox': ({**DENSE, 'model.family': 'gpt_neox'}, (4, {TENSOR: 4}), [(2, {TENSOR: 2})]),
    'matrices of gpt2': ({**DENSE, 'model.family': 'gpt2', 'model.tie_word_embeddings': True}, (4, {TENSOR: 4}), [(2, {TENSOR: 2})]),
    'matrices of phi3': ({**DENSE, 'model.family': 'phi3'}, (4, {TENSOR: 4}), [(2, {TENSOR: 2})]),
    'matrices of qwen3': ({**DENSE, 'model.family': 'qwen3', 'model.tie_word_embeddings': True}, (4, {TENSOR: 4}), [(2, {TENSOR: 2})]),
    'stages': (DENSE, (4, {STAGES: 4, **OPTIM}), [(2, {STAGES: 2, **OPTIM})]),
    'sequences': (DENSE, (2, {CONTEXT: 2}), [(4, {CONTEXT: 4}), (2, {TENSOR: 2})]),
    'sequences, not sharded': (DENSE, (4, {CONTEXT: 2, STRATEGY: 'no_shard'}), [(2, {STAGES: 2, **OPTIM})]),
    'experts': (SPREAD, (2, {EXPERTS: 2}), [(3, {EXPERTS: 3, **FULL}), (2, {TENSOR: 2})]),
    'experts, sequences': (SPREAD, (4, {EXPERTS: 2, CONTEXT: 2}), [(4, {STAGES: 2, EXPERTS: 2, **GRADS}), (2, {CONTEXT: 2})]),
    'experts, all degrees': (SPREAD, (16, {STAGES: 2, TENSOR: 2, CONTEXT: 2, EXPERTS: 2, **OPTIM}), [(2, {EXPERTS: 2})]),
}


def saved(folder, step):
    return pathlib.Path(folder) / f'out/checkpoint/step-{step:08}.h5'


def tensors(path):
    return {(state, name): values.tobytes() for state in checkpoint.STATES
            for name, values in checkpoint.read(path, state).items()}


def listed(path):
    """Names and shapes, by the tool."""
    job.sherd('ckpt', 'verify', path)
    return [line for line in job.sherd('ckpt', 'info', '--tensors', path).splitlines() if ' f32 [' in line]


def exported(path, folder):
    job.sherd('ckpt', 'export', path, '-o', folder)
    return (pathlib.Path(folder) / 'model.safetensors').read_bytes()


def case_chain(name):
    model, meshes = CHAINS[name]
    base, name, step, wrong = {'training.dataset_path': tokens, **model}, name.replace(' ', '-'), STEPS, []
    ranks, changes = meshes[0]
    job.train(name, {**base, **changes}, ranks)
    path = first = saved(name, step)
    if 'optimizer.name' in model:
        base |= OVERFLOWS
    else:
        head = checkpoint.read(path)['lm_head.weight']
        head[...] = 3e38
        checkpoint.replace(path, {'lm_head.weight': head})
    expected = tensors(path)
    for ranks, changes in meshes[1:] + meshes[:1]:
        step += 1
        folder = job.prepare(f'{name}-{step}', {'job.dump_folder': 'out', **base, **changes, 'training.steps': step})
        saved(folder, step - 1).parent.mkdir(parents=True)
        shutil.copy(path, saved(folder, step - 1))
        job.sherd('train', 'c.yaml', ranks=ranks, folder=folder)
        path = saved(folder, step)
        wrong += [f'{changes} on {ranks} ranks saves other tensors'] * (tensors(path) != expected)
    wrong += ['another list of tensors'] * (len(listed(first)) != len(checkpoint.read(first)) or listed(path) != listed(first))
    return wrong + ['another export'] * (exported(path, f'{name}-last') != exported(first, f'{name}-first'))


def files(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def case_folders(name):
    model, (ranks, changes), meshes = FOLDERS[name]
    base, name = {'training.dataset_path': tokens, **model, 'checkpoint.last_save_in_hf': True}, 'folder-' + name.replace(', ', '-').replace(' ', '-')
    job.train(name, {**base, **changes}, ranks)
    one = job.prepare(f'{name}-one', {'job.dump_folder': 'out', **base})
    saved(one, STEPS).parent.mkdir(parents=True)
    shutil.copy(saved(name, STEPS), saved(one, STEPS))
    job.sherd('train', 'c.yaml', folder=one)
    job.sherd('ckpt', 'export', saved(name, STEPS), '-o', f'{name}-out')
    written, by_one = (next(pathlib.Path(folder, 'out/checkpoint').glob('hf-*')) for folder in (name, one))
    wrong = [f'another {what}' for what, found in (('folder', by_one), ('export', f'{name}-out')) if files(found) != files(written)]
    start = {**{key: value for key, value in base.items() if not key.startswith(('model.', 'checkpoint.'))}, **BEGUN,
             'model.hf': str(written.resolve())}
    expected = job.losses(job.train(f'{name}-begun', start))
    for ranks, changes in meshes:
        found = job.losses(job.train(f'{name}-begun', {**start, **changes}, ranks))
        wrong += job.differ(f'losses on {changes}', found, expected, LOSS_BOUND)
    return wrong


if __name__ == '__main__':
    job.need_launcher()
    job.need_modules('h5py', 'numpy')
    import checkpoint
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases([(name, case_chain, name) for name in CHAINS]
                           + [(f'folders: {name}', case_folders, name) for name in list(FOLDERS)[::4 if job.FEW else 1]]))
