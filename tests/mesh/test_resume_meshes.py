#!/usr/bin/env python3
"""`sherd train` on every mesh loads and saves the same file, to the bit. Prints TAP.

One rank trains some steps; then the head is made huge. A run that continues from there, on whatever mesh, has no finite
loss, so it skips the step and saves the parameters and both moments unchanged, as it loaded them. The files of all
meshes have one SHA-256 and differ from the loaded file only in the number of steps and what depends on it. Since each
mesh loads a file that another mesh could have written, this covers every pair of meshes: with SHERD_LONG=1 29 x 29 of
them, all replicate x shard of 1 to 16 ranks, for a model whose sizes no number of ranks divides.
"""
import functools
import hashlib
import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

MODELS = {'llama': tiny.MODELS['llama'], 'experts': tiny.EXPERTS}
RANKS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
ALL = [(ranks // shard, shard) for ranks in RANKS for shard in range(1, ranks + 1) if ranks % shard == 0]
MESHES = ALL if os.environ.get('SHERD_LONG') else [(1, 1), (2, 3), (5, 1), (1, 8)]
STEPS = 3
BATCH = {'training.global_batch_size': 240, 'training.steps': STEPS}  # all RANKS divide 240


def config(model, **changes):
    return {'job.dump_folder': 'out', 'training.dataset_path': tokens, **MODELS[model], **BATCH, **changes}


def saved(folder, step):
    return pathlib.Path(folder) / f'out/checkpoint/step-{step:08}.h5'


@functools.lru_cache(None)
def make_seed(model):
    """Three trained steps, and numbers in the head that are finite but have products that are not. Returns its path and
    its tensors."""
    job.train(f'seed-{model}', config(model))
    path = saved(f'seed-{model}', STEPS)
    name = 'lm_head.weight'
    values = checkpoint.read(path)[name]
    values[...] = 3e38
    checkpoint.replace(path, {name: values})
    return path, tensors(path)


def tensors(path):
    return {(state, name): values.tobytes() for state in checkpoint.STATES
            for name, values in checkpoint.read(path, state).items()}


def case(model, replicate, shard):
    ranks, (seed, expected) = replicate * shard, make_seed(model)
    folder = job.prepare(f'mesh-{replicate}x{shard}', config(model, **{
        'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.replicate': replicate, 'mesh.shard': shard,
        'training.steps': STEPS + 1}))
    saved(folder, STEPS).parent.mkdir(parents=True)
    shutil.copy(seed, saved(folder, STEPS))
    job.sherd('train', 'c.yaml', ranks=0 if ranks == 1 else ranks, folder=folder)
    path = saved(folder, STEPS + 1)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    first.setdefault(model, digest)
    wrong = [] if digest == first[model] else [f'SHA-256 {digest}, of the first mesh {first[model]}']
    differ = [key for key, values in tensors(path).items() if values != expected[key]]
    wrong += [f'not as it was loaded: {differ}'] if differ else []
    shutil.rmtree(folder)
    return wrong


if __name__ == '__main__':
    job.need_launcher()
    job.need_modules('h5py', 'numpy')
    import checkpoint
    tokens, first = tiny.write_tokens(), {}
    sys.exit(job.run_cases([(f'{model}, {replicate} x {shard}', case, model, replicate, shard)
                            for model in MODELS for replicate, shard in MESHES]))
