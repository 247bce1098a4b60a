#!/usr/bin/env python3
"""The whole trainer on emulated GPUs: it learns as on the CPU, on any mesh and through both ways of communication, takes
its checkpoints to the CPU and back, and an event that is forgotten is found. Prints TAP. SHERD_LONG=1 runs more of each.

Only in a build that was configured --with-cuda=emulated.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / name) for name in ('gold', 'mesh')]
import job
import tiny

LONG = bool(os.environ.get('SHERD_LONG'))
BOUND = {'float32': 1e-5, 'bfloat16': 1e-2}  # sums in another order; rounded to 8 bits in other places
STEPS = 2
CPU = {'training.device': 'cpu'}
CUDA = {'training.device': 'cuda'}
HYBRID = {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'mesh.replicate': 2}
MESHES = {
    '1x1': (1, {}),
    '1x2': (2, {'parallelism.sharding_strategy': 'full_shard'}),
    '2x1': (2, {'parallelism.sharding_strategy': 'no_shard'}),
    '2x2': (4, HYBRID),
}


def config(model, **more):
    return {**tiny.MODELS[model], 'training.dataset_path': TOKENS, 'training.global_batch_size': 4, 'model.n_layers': 2,
            'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS, 'lr_scheduler.warmup_steps': 1,
            'metrics.log_freq': 1, **more}


def run(name, model, device, mesh='1x1', **more):
    ranks, axes = MESHES[mesh]
    return job.train(name, config(model, **device, **axes, **more), ranks)


def as_on_cpu(model, mesh, precision, more):
    more = {'training.mixed_precision_param': precision, **more}
    cpu = run('cpu', model, CPU, **{key: value for key, value in more.items() if not key.startswith('comm.')})
    cuda = run('cuda', model, CUDA, mesh, **more)
    wrong = job.differ('losses', job.losses(cuda), job.losses(cpu), BOUND[precision])
    return wrong + job.differ('norms', [step['grad_norm'] for step in cuda], [step['grad_norm'] for step in cpu],
                              10 * BOUND[precision])


def same_bits(first, second):
    a, b = (job.losses(run(f'bits{i}', 'llama', CUDA, mesh, **more)) for i, (mesh, more) in enumerate((first, second)))
    return job.differ('losses', a, b, 0)


def go_on(folder, device, mesh, steps, **more):
    """Resume in the folder of an earlier run."""
    ranks, axes = MESHES[mesh]
    (pathlib.Path(folder) / 'c.yaml').write_text(
        job.yaml({'job.dump_folder': 'out', **config('llama', **device, **axes, **more), 'training.steps': steps}))
    job.sherd('train', 'c.yaml', ranks=ranks, folder=folder)


def checkpoints(first, second, mode):
    """Half of the run on one device, half on the other."""
    more = {'checkpoint.async_mode': mode, 'checkpoint.interval': 1}
    whole = job.losses(run('whole', 'llama', CPU))
    job.prepare('moved', {})
    go_on('moved', *first, STEPS // 2, **more)
    go_on('moved', *second, STEPS, **more)
    verify = job.sherd('ckpt', 'verify', f'out/checkpoint/step-{STEPS:08d}.h5', folder='moved')
    return job.differ('losses', job.losses(job.metrics('moved')), whole, BOUND['float32']) + (
        [] if verify else ['sherd ckpt verify said nothing'])


def evaluates():
    path = {'validation.enable': True, 'validation.dataset_path': TOKENS, 'validation.sequences': 5}
    found = []
    for device, mesh in ((CPU, '1x1'), (CUDA, '1x2')):
        run('eval', 'llama', device, mesh, **path, **{'training.steps': 1})
        lines = (pathlib.Path('eval') / 'out/metrics.jsonl').read_text().splitlines()
        found.append([line['validation_loss'] for line in map(json.loads, lines) if 'validation_loss' in line])
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


def refused(name, ranks, word, **more):
    job.prepare(name, {'job.dump_folder': 'out', **config('llama', **CUDA, **more)})
    done = subprocess.run(job.command(ranks, ['train', 'c.yaml']), cwd=name, capture_output=True, text=True,
                          env=job.environment(ranks), timeout=job.SECONDS, stdin=subprocess.DEVNULL)
    if done.returncode == 0 or not re.search(word, done.stderr):
        return [f'exit {done.returncode}, expected a refusal with "{word}":', done.stderr]
    return []


def forgotten(wait, backend, word):
    """Leave out one of the waits of a queue for an event; which is the how manieth follows from the schedule of this model,
    and a changed one shows here as another message."""
    os.environ['SHERD_EMULATED_DROP'] = str(wait)
    try:
        return refused('forgotten', 2, word, **{'training.steps': 2, 'comm.backend': backend})
    finally:
        del os.environ['SHERD_EMULATED_DROP']


def tree_by_nccl():
    return refused('tree', 1, 'nccl sums in an order of its own', **{'training.reproducible': 'mesh',
                                                                     'comm.backend': 'nccl'})


def shared():
    os.environ['SHERD_EMULATED_GPUS'] = '1'
    try:
        return (refused('shared', 2, '2 ranks of this node would use GPU 0')
                + as_on_cpu('llama', '1x2', 'float32', {'comm.share_gpu': True}))
    finally:
        os.environ['SHERD_EMULATED_GPUS'] = '8'


def no_gpu():
    os.environ['SHERD_EMULATED_GPUS'] = '0'
    try:
        return refused('none', 1, 'training.device=cuda: no CUDA-capable device')
    finally:
        os.environ['SHERD_EMULATED_GPUS'] = '8'


def main():
    if b'SHERD_EMULATED_GPUS' not in pathlib.Path(os.environ['SHERD']).read_bytes():
        job.skip_all('this build has no emulated GPUs (configure --with-cuda=emulated)')
    job.need_launcher()
    os.environ['SHERD_EMULATED_GPUS'] = '8'
    global TOKENS
    TOKENS = tiny.write_tokens()
    mpi, tree = {'comm.backend': 'mpi'}, {'training.reproducible': 'mesh'}
    trains = [('llama', '1x1', 'float32', {}), ('gpt2', '1x2', 'float32', {}), ('gpt2', '2x1', 'bfloat16', {}),
              ('llama', '2x2', 'float32', {}), ('llama', '2x2', 'float32', mpi)]
    if LONG:
        trains += [(model, mesh, precision, more) for model in tiny.MODELS for mesh in MESHES for precision in BOUND
                   for more in ({}, mpi)]
    cases = [(f'{model} on {mesh} in {precision} {"mpi" if more else ""} learns as on the CPU', as_on_cpu, model, mesh,
              precision, more) for model, mesh, precision, more in trains]
    cases += [
        ('two runs on one mesh have the same bits', same_bits, ('1x2', {}), ('1x2', {})),
        ('sums in a tree have the same bits on every mesh', same_bits, ('1x1', tree), ('1x2', tree)),
        ('a checkpoint of GPUs goes on on the CPU', checkpoints, (CUDA, '1x2'), (CPU, '1x1'), 'disabled'),
        ('one of the CPU goes on on GPUs, and is saved behind them', checkpoints, (CPU, '1x1'), (CUDA, '1x2'), 'async'),
        ('validation', evaluates),
        ('a trace', traces),
        ('a gather that nothing waits for is found', forgotten, 3, 'nccl', "reads memory that 'ncclAllGather' writes"),
        ('a gather that waits for nothing is found', forgotten, 8, 'nccl', "'ncclAllGather' writes memory"),
        ('a reduction that waits for nothing is found', forgotten, 11, 'nccl', "'ncclReduceScatter' reads memory"),
        ('a copy to the host that waits for nothing is found', forgotten, 7, 'mpi', "'copy' reads memory"),
        ('sums in a tree are not for NCCL', tree_by_nccl),
        ('ranks share a GPU when they are let', shared),
        ('a host without GPUs is told from one', no_gpu),
    ]
    return job.run_cases(cases)


if __name__ == '__main__':
    sys.exit(main())
