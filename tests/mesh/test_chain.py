#!/usr/bin/env python3
"""One checkpoint through many meshes: each loads what the one before has saved, and saves the same tensors. Prints TAP.

A matrix is so large that no loss is finite, or with Muon the loss is scaled beyond float16, so steps are skipped. At the end the
checkpoint is exported: the bytes are those of an export of the first.
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
DENSE = {**tiny.MODELS['llama'], **COMMON, 'model.dim': 64, 'model.n_layers': 4, 'model.n_heads': 4, 'model.n_kv_heads': 4}
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


if __name__ == '__main__':
    job.need_launcher()
    job.need_modules('h5py', 'numpy')
    import checkpoint
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases([(name, case_chain, name) for name in CHAINS]))
