#!/usr/bin/env python3
"""The whole trainer on a double of NCCL in which a call fails, hangs, or is followed by a failure of the communicator,
on one rank or on all: the job ends in time, with class 5 and one line, whatever the call was. Prints TAP. SHERD_LONG=1
tries more of them.

Only in a build that was configured --with-cuda=emulated.
"""
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from trains import CUDA, DEEP, MESHES, MODELS, SPREAD, STAGED, config, job, tiny

LONG = bool(os.environ.get('SHERD_LONG'))
HANG_SECONDS = 3    # comm.train_timeout_seconds, if that is what ends the job
PATIENT_SECONDS = 60  # the same if it is not
GRACE_SECONDS = 5   # after the limit

# Call, rank, which of its calls, what happens to it, mesh, what the line says.
QUICK = [
    ('ncclGetVersion', '1', 1, 'error', '1x2', 'error: rank 1: NCCL: ncclGetVersion: unhandled system error'),
    ('ncclGetUniqueId', '0', 1, 'error', '1x2', 'ncclGetUniqueId: unhandled system error'),
    ('ncclGetUniqueId', '0', 1, 'hang', '1x2', 'ncclGetUniqueId is not complete after LIMIT s'),
    ('ncclCommInitRankConfig', '1', 1, 'error', '1x2', 'rank 1: error: NCCL: connecting all ranks: unhandled'),
    ('ncclCommInitRankConfig', '*', 1, 'error', '2x2', r'rank \d: error: NCCL: connecting all ranks: unhandled'),
    ('ncclCommInitRankConfig', '1', 1, 'hang', '1x2', 'connecting all ranks is not complete after LIMIT s'),
    ('ncclCommInitRankConfig', '*', 1, 'hang', '1x2', 'connecting all ranks is not complete after LIMIT s'),
    ('ncclCommSplit', '0', 2, 'error', '1x2', 'rank 0: error: NCCL: sherd reduce shard: unhandled system error'),
    ('ncclCommSplit', '*', 1, 'error', '2x2', 'NCCL: sherd gather shard: unhandled system error'),
    ('ncclCommSplit', '1', 1, 'async', '1x2', 'rank 1: error: NCCL: sherd gather shard: remote process'),
    ('ncclAllGather', '1', 1, 'error', '1x2', 'rank 1: error: NCCL: sherd gather shard: unhandled'),
    ('ncclAllGather', '*', 4, 'error', '2x2', r'NCCL: .*all_gather: unhandled system error'),
    ('ncclReduceScatter', '0', 3, 'error', '1x2', r'rank 0: error: NCCL: .*reduce_scatter: unhandled'),
    ('ncclReduceScatter', '1', 2, 'hang', '1x2', 'is not complete after LIMIT s'),
    ('ncclReduceScatter', '1', 2, 'async', '1x2', 'rank 1: error: NCCL: sherd reduce shard: remote process'),
    ('ncclAllReduce', '3', 9, 'error', '2x2', r'rank 3: error: NCCL: .*all_reduce: unhandled'),
    ('ncclSend', '1', 10, 'error', 'experts', r'rank 1: error: NCCL: forward layers.\d all_to_all wave \d: unhandled'),
    ('ncclRecv', '0', 12, 'async', 'experts', 'rank 0: error: NCCL: sherd dispatch expert: remote process'),
    ('ncclGroupEnd', '1', 9, 'hang', 'experts', 'is not complete after LIMIT s'),
    ('ncclSend', '0', 4, 'error', 'stages', r'rank 0: error: NCCL: forward .*send.*: unhandled'),
    ('ncclRecv', '1', 4, 'hang', 'stages', 'is not complete after LIMIT s'),
    ('ncclRecv', '0', 3, 'async', 'stages', 'rank 0: error: NCCL: sherd .* pipeline: remote process'),
    ('ncclCommGetAsyncError', '*', 3, 'error', '1x2', 'asking a communicator for its state: unhandled system error'),
    ('ncclCommFinalize', '1', 1, 'error', '1x2', 'rank 1: error: NCCL: closing a communicator: unhandled'),
    ('ncclCommFinalize', '0', 2, 'hang', '1x2', 'closing a communicator is not complete after LIMIT s'),
    ('ncclCommDestroy', '*', 1, 'error', '1x2', 'closing a communicator: unhandled'),
]
COUNTS = {'ncclGetUniqueId': [1], 'ncclCommInitRankConfig': [1], 'ncclCommSplit': [1, 2], 'ncclAllGather': [1, 2, 3, 5, 8],
          'ncclReduceScatter': [1, 2, 4], 'ncclCommGetAsyncError': [1, 3], 'ncclCommFinalize': [1, 3],
          'ncclCommDestroy': [1, 3]}
WHATS = {'ncclAllGather': ['error', 'async'], 'ncclReduceScatter': ['error', 'async'], 'ncclCommSplit': ['error', 'async']}


def every():
    """One after another on 2, 4 and 6 ranks; cases that hang take long, so there are few of them."""
    who = {'1x2': ('0', '1', '*'), '2x2': ('0', '1', '*'), '1x6': ('*',)}
    some = [(call, rank, count, what, mesh, '') for mesh, ranks in who.items() for call in COUNTS
            for count in COUNTS[call] for what in WHATS.get(call, ['error']) for rank in ranks
            if call != 'ncclGetUniqueId' or rank == '0']
    return some + [(call, rank, 1, 'hang', '2x2', 'not complete after') for call in COUNTS for rank in ('0', '1', '*')
                   if call not in ('ncclGetUniqueId', 'ncclCommGetAsyncError', 'ncclCommDestroy')]


def working(folder):
    """Processes of the job: those whose working directory is its folder."""
    found = []
    for entry in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            if (entry / 'cwd').resolve() == folder and b'sherd' in (entry / 'cmdline').read_bytes().split(b'\0')[0]:
                found.append(entry.name)
        except OSError:
            continue
    return found


def alive(folder):
    """Processes that remain after the launcher has left. Those that it has killed take a moment to go."""
    until = time.monotonic() + job.launcher.LEAVE_SECONDS
    while working(folder) and time.monotonic() < until:
        time.sleep(0.05)
    return working(folder)


def run(folder, ranks, limit, environment, **more):
    """Exit status, lines of Sherd's errors, and the seconds taken."""
    meet = pathlib.Path(f'/dev/shm/sherd-test-{os.getpid()}')
    meet.mkdir(exist_ok=True)
    job.prepare(folder, {'job.dump_folder': 'out', **config('llama', **CUDA, **more),
                         'comm.train_timeout_seconds': limit})
    begin = time.monotonic()
    try:
        done = subprocess.run(job.command(ranks, ['train', 'c.yaml']), cwd=folder, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=job.SECONDS,
                              env={**job.environment(ranks), **environment, 'SHERD_EMULATED_FOLDER': str(meet)})
    finally:
        shutil.rmtree(meet)
    seconds = time.monotonic() - begin
    return done, [line for line in done.stderr.splitlines() if re.match(r'sherd: .*error: ', line)], seconds


@functools.lru_cache(None)
def start_seconds():
    """How long a job of two ranks takes from start to end now, times three: the machine may be busy."""
    return max(4, 3 * run('well', 2, job.stretch(PATIENT_SECONDS), {}, **MESHES['1x2'][1])[2])


def fails(call, rank, count, what, mesh, says):
    ranks, axes = MESHES[mesh]
    limit = job.stretch(HANG_SECONDS if what == 'hang' else PATIENT_SECONDS)
    fault = {'SHERD_EMULATED_NCCL_FAIL': f'{call} {rank} {count} {what}',
             'SHERD_EMULATED_STAGES': str(axes.get('parallelism.pipeline_parallel_degree', 1))}
    done, lines, seconds = run('failing', ranks, limit, fault, **axes)
    wrong = []
    if done.returncode != 5 or len(lines) != 1 or not re.search(says.replace('LIMIT', str(limit)), lines[0]):
        wrong += [f'exit {done.returncode}, expected 5 and one line with "{says}":', done.stderr]
    if seconds > (limit + job.stretch(GRACE_SECONDS) + start_seconds() if what == 'hang' else limit):
        wrong += [f'took {seconds:.1f} s']
    left = alive(pathlib.Path('failing').resolve())
    return wrong + ([f'still alive: {left}'] if left else [])


def unlimited():
    """Without a time limit no call takes too long."""
    done, _, _ = run('unlimited', 2, 0, {'SHERD_EMULATED_NCCL_DELAY': '50000'}, **MESHES['1x2'][1])
    return [] if done.returncode == 0 else [f'exit {done.returncode}:', done.stderr]


def too_old(backend):
    done, lines, _ = run('old', 2, PATIENT_SECONDS, {'SHERD_EMULATED_NCCL_VERSION': '22105'}, **MESHES['1x2'][1],
                         **{'comm.backend': backend})
    if done.returncode == 5 and len(lines) == 1 and 'NCCL 2.21.5 is loaded' in lines[0]:
        return []
    return [f'exit {done.returncode}, expected a refusal:', done.stderr]


def main():
    job.need_emulated_gpus()
    MESHES['experts'] = (2, {**MODELS['experts'], **SPREAD['two'][1], 'training.global_batch_size': 4, 'training.steps': 2})
    MESHES['stages'] = (2, {**STAGED['two stages'][1], **DEEP})
    MESHES['1x6'] = (6, {'parallelism.sharding_strategy': 'full_shard', 'training.global_batch_size': 6})
    tiny.write_tokens()
    cases = [(f'{call} {count} on rank {rank} of {mesh}: {what}', fails, call, rank, count, what, mesh, says)
             for call, rank, count, what, mesh, says in QUICK + (every() if LONG else [])]
    cases += [('slow calls, comm.train_timeout_seconds=0', unlimited)]
    cases += [(f'NCCL 2.21 is refused, comm.backend={backend}', too_old, backend) for backend in ('nccl', 'auto')]
    return job.run_cases(cases, deadlines=True)


if __name__ == '__main__':
    sys.exit(main())
