#!/usr/bin/env python3
"""training.mixed_precision_param: float16: losses like float32, a loss scale that adapts, the same bits on every mesh
and after an interruption, and its use with a folder of transformers, eval and generate. Prints TAP."""
import array
import functools
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

LONG = bool(os.environ.get('SHERD_LONG'))
HALF = tiny.STEPS // 2
F16 = {'training.mixed_precision_param': 'float16'}
# The scale moves: gradients overflow now and then, and the scale doubles after two steps without overflow.
MOVING = {**F16, 'training.loss_scale_init': 2**19, 'training.loss_scale_window': 2}
LEARN = {'training.steps': 300, 'lr_scheduler.total_steps': 300, 'lr_scheduler.warmup_steps': 20, 'optimizer.lr': 3e-3,
         'training.local_batch_size': 24, 'checkpoint.enable': False}
LAST = 50
MESHES = {
    '1 rank, 2 threads': (0, {'training.threads': 2}),
    'full_shard over 2': (2, {'parallelism.sharding_strategy': 'full_shard'}),
    'no_shard over 2, once, saved in the background': (2, {'parallelism.sharding_strategy': 'no_shard',
                                                           'checkpoint.async_mode': 'async'}),
    'shard_optim over 4': (4, {'parallelism.sharding_strategy': 'shard_optim'}),
    'hybrid_shard 2 x 2, without shared memory': (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2,
                                                      'comm.shared_memory': 'off'}),
    'shard_grad_op over 4': (4, {'parallelism.sharding_strategy': 'shard_grad_op'}),
}
SAMPLE = list(MESHES)[1:2] + list(MESHES)[3:5]
NVME = {'offload.optimizer': 'nvme', 'offload.nvme_path': '.'}
GRADS = {'offload.gradients': 'nvme'}
OFFLOADS = {
    'states in a file': (0, {}, NVME),
    'states and gradients in a file': (0, {}, {**NVME, **GRADS}),
    'gradients in a file': (0, {}, {**GRADS, 'offload.nvme_path': '.'}),
    'some states in a file, none carried': (0, {}, {**NVME, 'offload.optimizer_ratio': 0.4, 'offload.overlap_update': 'off'}),
    'states and gradients in a file, full_shard over 2': (2, {'parallelism.sharding_strategy': 'full_shard',
                                                              'comm.shared_memory': 'off'}, {**NVME, **GRADS}),
    'states in a file, no_shard over 2': (2, {'parallelism.sharding_strategy': 'no_shard'}, NVME),
    'states and gradients in a file, shard_optim over 4': (4, {'parallelism.sharding_strategy': 'shard_optim'},
                                                           {**NVME, **GRADS}),
}
folders = itertools.count()


def new_folder():
    return pathlib.Path(f'run-{next(folders)}')


def config(changes):
    return {**tiny.MODELS['llama'], 'training.dataset_path': tokens, 'training.reproducible': 'mesh',
            'training.global_batch_size': 16, 'checkpoint.interval': HALF, **MOVING, **changes}


def saved(folder, step=tiny.STEPS):
    return folder / f'out/checkpoint/step-{step:08}.h5'


def numbers(steps):
    """A norm that is not finite is null in the metrics."""
    return [step[key] if step[key] is not None else -1.0 for step in steps for key in ('loss', 'grad_norm', 'loss_scale')]


@functools.lru_cache(None)
def one_rank():
    folder = new_folder()
    return folder, job.train(folder, config({}))


def judge(folder, steps):
    first, right = one_rank()
    found, wanted = numbers(steps), numbers(right)
    return (job.differ('loss, norm or scale', found, wanted[-len(found):], 0)
            + ([] if saved(folder).read_bytes() == saved(first).read_bytes() else ['the last checkpoints differ']))


def case_moves():
    """The other cases are worth comparing: the scale falls and grows, and the checkpoint lies within a window."""
    folder, steps = one_rank()
    scales = [step['loss_scale'] for step in steps]
    pairs = list(zip(scales, scales[1:]))
    state = re.search(r'; loss_scale (\S+) (\d+) (\d+)', job.sherd('ckpt', 'info', '--config', saved(folder, HALF)))
    wrong = [] if any(a > b for a, b in pairs) and any(a < b for a, b in pairs) else [f'the scales are {scales}']
    return wrong + ([] if state and float.fromhex(state[1]) == scales[HALF] and state[2] == '1' else [f'saved is {state}'])


def case_mesh(mesh):
    ranks, changes = MESHES[mesh]
    folder = new_folder()
    return judge(folder, job.train(folder, config(changes), ranks))


def case_offloaded(name):
    """A step skipped for an overflow leaves no pending update, and does not lose the update that was carried into
    it."""
    ranks, changes, offload = OFFLOADS[name]
    folder = new_folder()
    steps = job.train(folder, config({**changes, **offload}), ranks)
    before = [a['step'] % HALF and 'skipped' not in a and 'skipped' in b for a, b in zip(steps, steps[1:])]
    wrong = [] if any(before) else ['no step with an overflow carries an update']
    wrong += [] if sum(step['offload_written_bytes'] for step in steps) else ['nothing was moved']
    left = [path.name for path in folder.iterdir() if path.name not in ('c.yaml', 'out')]
    return judge(folder, steps) + wrong + ([f'left behind: {left}'] if left else [])


def take_up(first, changes, ranks=0):
    """Continue from the middle of a run; returns (folder, the finished process)."""
    folder = job.prepare(new_folder(), {'job.dump_folder': 'out', **changes})
    saved(folder).parent.mkdir(parents=True)
    shutil.copy(saved(first, HALF), saved(folder, HALF))
    return folder, run(ranks, ['train', 'c.yaml'], folder)


def run(ranks, words, folder):
    return subprocess.run(job.command(ranks, words), stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder,
                          env=job.environment(ranks), timeout=job.SECONDS, check=False)


def case_taken_up(mesh):
    ranks, changes = MESHES[mesh]
    folder, done = take_up(one_rank()[0], config(changes), ranks)
    return [done.stderr] if done.returncode else judge(folder, job.metrics(folder))


def case_changed(before, after, scale):
    """A run continues in another type, with its parameters; its scale starts again, because none was saved."""
    first = new_folder()
    whole = job.train(first, config({'training.mixed_precision_param': before}))
    folder, done = take_up(first, config({'training.mixed_precision_param': after}))
    if done.returncode:
        return [done.stderr]
    steps = job.metrics(folder)
    wrong = [] if steps[0].get('loss_scale') == scale else [f'the first scale is {steps[0].get("loss_scale")}']
    return wrong + job.differ('loss', job.losses(steps)[:1], job.losses(whole[HALF:])[:1], 1e-2)


@functools.lru_cache(None)
def learnt(model, dtype, **changes):
    return job.train(new_folder(), {**tiny.MODELS[model], **LEARN, 'training.dataset_path': sentences(),
                                    'training.mixed_precision_param': dtype, **changes})


sentences = functools.lru_cache(None)(tiny.write_sentences)


def mean(steps):
    return sum(job.losses(steps)[-LAST:]) / LAST


def case_learns(model):
    """The curve of float32, within 1 % everywhere, and norms of the unscaled loss."""
    exact, found = learnt(model, 'float32'), learnt(model, 'float16')
    print(f'# {model}: {mean(found):.4f} in float16, {mean(exact):.4f} in float32, from {exact[0]["loss"]:.4f}')
    wrong = job.differ('loss', job.losses(found), job.losses(exact), 1e-2)
    wrong += job.differ('the first norm', [found[0]['grad_norm']], [exact[0]['grad_norm']], 1e-2)
    return wrong + [f'step {step["step"]} is left out' for step in found if 'skipped' in step]


def case_falls():
    """A scale that is far too large is halved in each skipped step, and then the run learns like the others."""
    steps = job.train(new_folder(), {**tiny.MODELS['llama'], **LEARN, **F16, 'training.dataset_path': sentences(),
                                     'training.loss_scale_init': 2**40, 'guard.action': 'stop'})
    skipped = [step for step in steps if 'skipped' in step]
    scales = [step['loss_scale'] for step in skipped]
    wrong = [] if len(scales) > 10 and scales[:2] == [2**40, 2**40] else [f'the first scales are {scales[:3]}']
    wrong += [f'{a} is followed by {b}' for a, b in zip(scales[1:], scales[2:]) if b != a / 2]
    wrong += [f'step {step["step"]}: {step["skipped"]}' for step in skipped if step['skipped'] != 'gradients overflow float16']
    exact = learnt('llama', 'float32')
    return wrong + job.differ('the last losses', [mean(steps)], [mean(exact)], 2e-2)


def case_two_scales():
    """A power of two only changes bits of numbers that are subnormal in float16: norms and losses are close to those of
    another scale."""
    runs = [job.train(new_folder(), config({'training.loss_scale': scale})) for scale in (2**12, 2**14)]
    first, second = ([step[key] for step in steps for key in ('loss', 'grad_norm')] for steps in runs)
    return job.differ('loss or norm', first, second, 1e-3)


def case_fixed():
    """The guard handles an overflow at a fixed scale."""
    folder = job.prepare(new_folder(), {'job.dump_folder': 'out', **config({'training.loss_scale': 2**40, 'guard.max_skips': 2})})
    done = run(0, ['train', 'c.yaml'], folder)
    right = done.returncode == 6 and 'as many steps were skipped in a row as guard.max_skips allows: 2' in done.stderr
    return [] if right and len(job.metrics(folder)) == 2 else [f'exit {done.returncode}: {done.stderr}']


def case_refused(words, text):
    folder = job.prepare(new_folder(), {'job.dump_folder': 'out', **config(F16)})
    done = run(0, ['plan' if 'device' in words[0] else 'train', 'c.yaml', *words], folder)
    lines = done.stderr.strip().splitlines()
    return [] if done.returncode == 2 and len(lines) == 1 and text in lines[0] else [f'exit {done.returncode}: {done.stderr}']


def case_used():
    """A run writes a folder of transformers and starts from it, to the bit; eval and generate accept the checkpoint."""
    folder = new_folder()
    words = {'model.vocab_size': 256, 'training.dataset_path': text_tokens(), 'data.token_type': 'uint16'}
    job.train(folder, config({**words, 'checkpoint.last_save_in_hf': True}))
    ends = [job.sherd('eval', '--checkpoint', saved(folder), '--data', text_tokens(), *more).split()
            for more in ([], ['--training.mixed_precision_param=float32'])]
    found = [float(next(b for a, b in zip(end, end[1:]) if a == 'loss').rstrip(',')) for end in ends]
    wrong = job.differ('loss of float16', found[:1], found[1:], 1e-3)
    said = [job.sherd('generate', '--checkpoint', saved(folder), '--prompt', 'Once', '--tokens', 5, '--temperature', 0, *more)
            for more in ([], ['--training.mixed_precision_param=float32'])]
    wrong += [] if said[0].startswith('Once') else [f'generate says {said[0]}']
    exported = next((folder / 'out').rglob('config.json')).parent
    again = new_folder()
    steps = job.train(again, config({**words, 'model.hf_assets_path': str(exported.absolute()), 'training.steps': 1,
                                     'checkpoint.create_seed_checkpoint': True}))
    wrong += [] if steps[0]['loss_scale'] == MOVING['training.loss_scale_init'] else ['no new scale']
    first, second = (tensor(run, step) for run, step in ((folder, tiny.STEPS), (again, 0)))
    return wrong + ([] if first == second else ['the parameters of the folder are others'])


def tensor(folder, step):
    job.sherd('ckpt', 'extract', f'out/checkpoint/step-{step:08d}.h5', 'model.layers.1.mlp.down_proj.weight', '-o', 'x.npy',
              folder=folder)
    return (folder / 'x.npy').read_bytes()


@functools.lru_cache(None)
def text_tokens():
    path = pathlib.Path('bytes.bin')
    path.write_bytes(array.array('H', [*b'Once upon a time there was a small model. ' * 60]).tobytes())
    return str(path.absolute())


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    many = job.can_launch()
    cases = [('the scale moves', case_moves), ('from a scale of 2^40', case_falls), ('at a fixed scale', case_fixed)]
    cases += [(f'{model} learns as in float32', case_learns, model) for model in tiny.MODELS]
    cases += [(mesh, case_mesh, mesh) for mesh in (MESHES if LONG else SAMPLE) if MESHES[mesh][0] == 0 or many]
    cases += [(f'taken up by {mesh}', case_taken_up, mesh)
              for mesh in (list(MESHES)[:2] if many else list(MESHES)[:1])]
    cases += [(name, case_offloaded, name) for name in OFFLOADS if OFFLOADS[name][0] == 0 or many]
    cases += [('from bfloat16 to float16', case_changed, 'bfloat16', 'float16', MOVING['training.loss_scale_init']),
              ('from float16 to float32', case_changed, 'float16', 'float32', None)]
    cases += [('two scales', case_two_scales), ('used', case_used)]
    cases += [(f'refused with {words[0]}', case_refused, words, text) for words, text in (
        (['--training.device=cuda'], 'float16: its kernels are for CPUs'),
        (['--lora.rank=2'], 'float16: adapters (lora.rank)'))]
    sys.exit(job.run_cases(cases))
