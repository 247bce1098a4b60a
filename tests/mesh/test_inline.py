#!/usr/bin/env python3
"""comm.progress=inline: the same bits with an MPI library that only one thread may call, even if ranks wait inside it.
Prints TAP."""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

SHIM = pathlib.Path(os.environ['SHERD_BUILDDIR']).absolute() / 'tests/mesh/single.so'
INLINE = {'comm.progress': 'inline'}
IN_MPI = {**INLINE, 'comm.train_timeout_seconds': 0}
APART = {'comm.shared_memory': 'off'}
WAYS = [
    (2, {'parallelism.sharding_strategy': 'full_shard', **APART}),
    (3, {'parallelism.sharding_strategy': 'full_shard'}),
    (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.replicate': 2, 'mesh.shard': 2, **APART}),
    (2, {'parallelism.sharding_strategy': 'no_shard', 'training.reproducible': 'mesh'}),
    (3, {'parallelism.sharding_strategy': 'shard_grad_op', 'checkpoint.async_mode': 'async', 'checkpoint.interval': 2}),
]


def config(ranks):
    return {**tiny.MODELS['llama'], 'training.dataset_path': str(pathlib.Path('tokens.bin').absolute()), 'training.steps': 4,
            'lr_scheduler.total_steps': 4, 'training.device': 'cpu', 'checkpoint.interval': 1000, 'metrics.log_freq': 1000,
            'training.local_batch_size': tiny.GLOBAL_BATCH // ranks}


def train(name, ranks, changes, shim, words=('train', 'c.yaml')):
    """The program with a single-threaded MPI library, or the system's own."""
    folder = job.prepare(name, {'job.dump_folder': 'out', **config(ranks), **changes})
    env = job.environment(ranks)
    if shim and not SHIM.exists():
        raise job.Failed(f'{SHIM} is not built')
    if shim:
        env['LD_PRELOAD'] = job.launcher.preload(SHIM)
    return subprocess.run(job.command(ranks, [*words]), cwd=folder, env=env, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=job.SECONDS, check=False)


def same(number, ranks, changes):
    runs = {name: train(name, ranks, {**changes, **more}, shim) for name, more, shim in
            ((f'thread-{number}', {}, False), (f'inline-{number}', INLINE, True), (f'in-mpi-{number}', IN_MPI, True))}
    wrong = [f'{name}: exit {run.returncode}: {run.stderr}' for name, run in runs.items() if run.returncode]
    if wrong:
        return wrong
    losses = [[(row['loss'], row['grad_norm']) for row in job.metrics(name)] for name in runs]
    return [] if losses[0] == losses[1] == losses[2] else [
        f'{losses[0]} with a thread, {losses[1]} inline, {losses[2]} waiting inside of MPI']


def refused(name, changes, shim, status, says):
    run = train(name, 2, changes, shim)
    lines = [line for line in run.stderr.splitlines() if 'error: ' in line]
    return [] if run.returncode == status and len(lines) == 1 and says in lines[0] else [
        f'exit {run.returncode}, expected {status} with "{says}": {run.stderr}']


def bench():
    """`bench comm` measures the way that training takes."""
    words = 'bench', 'comm', 'c.yaml', '--repeat=1', '--max-bytes=4KiB'
    runs = [train(f'bench-{i}', 2, changes, True, words) for i, changes in enumerate((INLINE, IN_MPI))]
    return [f'exit {run.returncode}: {run.stderr}' for run in runs if run.returncode]


if __name__ == '__main__':
    job.need_launcher()
    tiny.write_tokens('tokens.bin')
    cases = [(f'the same bits on {ranks} ranks, {changes}', same, i, ranks, changes) for i, (ranks, changes) in enumerate(WAYS)]
    cases += [('a thread where there may be none', refused, 'thread', {}, True, 5, 'comm.progress=inline'), ('bench comm', bench)]
    sys.exit(job.run_cases(cases))
