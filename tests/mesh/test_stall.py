#!/usr/bin/env python3
"""A rank of a training run is stopped or killed: the others do not wait for it for ever. Prints TAP.

A stopped rank (SIGSTOP) looks like a node that hangs: after comm.train_timeout_seconds one line names it and the job
ends with the class of communication. A killed rank ends the job immediately. No process is left running.

Where rows travel to experts the line also names the block and the wave, whether rows go through shared memory or by
message. So it does of a killed rank if the launcher lets the others go on. A rank that is only late there ends nothing.
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import live
import tiny

TIMEOUT_SECONDS = 2
RECENT = 16  # collectives in a flight file: fewer than a run of 20 steps starts
GRACE_SECONDS = 5
COMM = 5  # the exit status of a communication error
CASES = [(signal.SIGSTOP, 1, 2), (signal.SIGSTOP, 0, 4), (signal.SIGSTOP, 2, 4), (signal.SIGKILL, 1, 4)]
# Nothing else is under way while rows travel, so what stands still is their exchange.
SPREAD = {**tiny.EXPERTS, 'parallelism.expert_parallel_degree': 2, 'parallelism.forward_prefetch': 0,
          'moe.capacity_factor': 1}
FIRST, LATER = 'forward layers.1 all_to_all wave 0', 'backward layers.2 all_to_all wave 1'
WAYS = {'shared memory': {}, 'messages': {'comm.shared_memory': 'off'}}
# How, which rank, ranks, where; by each way. hang: only the thread that computes stands still, so its rank answers.
IN_DISPATCH = [('stop', 1, 2, FIRST), ('hang', 0, 2, LATER), ('hang', 2, 4, FIRST), ('stop', 3, 4, FIRST),
               ('kill', 1, 2, FIRST), ('lost', 0, 2, LATER), ('lost', 1, 2, FIRST), ('late', 1, 2, LATER)]
# lost: killed, and the launcher lets the other go on, as the one of Open MPI 4 does when it is told so.
GO_ON = {'OMPI_MCA_orte_enable_recovery': '1'}
TIMES, STEPS_LATE = 4, 4  # it has been there so often before; steps of a run that goes on


def start(folder, ranks, limit):
    return live.start(folder, {**tiny.MODELS['llama'], 'training.dataset_path': tokens, 'training.steps': 1000000,
                               'training.local_batch_size': tiny.GLOBAL_BATCH // ranks,
                               'comm.train_timeout_seconds': limit, 'comm.trace_buf_size': RECENT,
                               'checkpoint.enable': False}, ranks)


def plant(folder):
    """The flight file of rank 1 would go where somebody planted something; those of the other ranks have a good
    place."""
    (folder / 'victim').write_text('precious')
    (folder / 'out/rank-1.flight.txt').symlink_to('../victim')


def judge_flights(folder, how):
    wrong = [] if (folder / 'victim').read_text() == 'precious' else ['a flight file was written through a link']
    found = [path for path in (folder / 'out').glob('rank-*.flight.txt') if not path.is_symlink()]
    wrong += [f'{path.name} has mode {path.stat().st_mode:o}' for path in found if path.stat().st_mode & 0o022]
    recent = {path.name: sum(not line.startswith('#') for line in path.read_text().splitlines()) for path in found}
    wrong += [f'{name} has {n} collectives, not {RECENT}' for name, n in recent.items() if n != RECENT]
    return wrong + (['no flight file'] if how == signal.SIGSTOP and not found else [])


def judge(status, seconds, most, folder, how, rank):
    text = live.said(folder)
    said = [line for line in text.splitlines() if 'error:' in line and line.startswith('sherd:')]
    wrong = [f'process {number} is still there' for number in launcher.left_alive(folder.absolute())]
    if seconds > most:
        wrong.append(f'took {seconds:.1f} s')
    if how == signal.SIGSTOP and status != COMM:
        wrong.append(f'exit status {status}, expected {COMM}')
    # tests/mpi/stall expects one line; here two ranks may report at once, but must say the same.
    names_it = [re.search(rf'\brank {rank} on \S+ \(no answer\)', line) for line in said]
    if how == signal.SIGSTOP and not (said and all(names_it)):
        wrong.append(f'expected a line that names rank {rank}')
    return wrong + (text.splitlines()[-6:] if wrong else [])


def case(how, rank, ranks):
    folder = pathlib.Path(f'{how.name}-{rank}-of-{ranks}')
    limit = job.stretch(TIMEOUT_SECONDS)
    child = start(folder, ranks, limit)
    try:
        live.wait_for_steps(folder, child, 20)
        begin = time.monotonic()
        plant(folder)
        os.kill(live.find_rank(folder, rank), how)
        most = limit + job.stretch(GRACE_SECONDS)
        status = child.wait(most + 5)
        return judge(status, time.monotonic() - begin, most, folder, how, rank) + judge_flights(folder, how)
    finally:
        launcher.stop(child)


def judge_dispatch(status, seconds, most, folder, how, rank, place):
    said = [line for line in live.said(folder).splitlines() if 'error:' in line and line.startswith('sherd:')]
    doing = 'no answer' if how in ('stop', 'lost') else rf'step \d+, {place}'
    line = (rf'error: all_to_all {place} \(ticket \d+, stream \w+, axis expert of 2 ranks\) is not complete after \S+ s; '
            rf'not in it: rank {rank} on \S+ \({doing}\)')
    wrong = [f'process {number} is still there' for number in launcher.left_alive(folder.absolute())]
    if how == 'late':
        return wrong + ([f'exit status {status}'] if status else []) + said
    wrong += [f'took {seconds:.1f} s'] if seconds > most else []
    if how == 'kill':
        return wrong + ([] if status else ['exit status 0'])
    if how != 'lost':  # that of the launcher says nothing
        wrong += [] if status == COMM else [f'exit status {status}, expected {COMM}']
    wrong += [] if said and all(re.search(line, text) for text in said) else [f'expected a line like {line}']
    return wrong + (live.said(folder).splitlines()[-6:] if wrong else [])


def can_go_on():
    said = subprocess.run([os.environ['MPIRUN'], '--version'], capture_output=True, text=True).stdout
    return re.search(r'\((OpenRTE|Open MPI)\) 4\.', said)


def case_in_dispatch(how, rank, ranks, place, way):
    folder = pathlib.Path(f'{how}-{rank}-of-{ranks}-{way}'.replace(' ', '-'))
    limit = job.stretch(TIMEOUT_SECONDS)
    most = limit + job.stretch(GRACE_SECONDS)
    config = {**SPREAD, **WAYS[way], 'training.dataset_path': tokens, 'training.local_batch_size': 2,
              'training.steps': STEPS_LATE if how == 'late' else 1000000, 'comm.train_timeout_seconds': limit,
              'checkpoint.enable': False}
    child = live.start(folder, config, ranks, DIES_AT=place, DIES_SAVE=str(TIMES), DIES_RANK=str(rank),
                       DIES_HOW='kill' if how == 'lost' else how, DIES_SECONDS=str(limit / 2),
                       **(GO_ON if how == 'lost' else {}))
    try:
        live.wait_until((folder / 'died').exists, folder, child, f'no rank came to {place}')
        begin = time.monotonic()
        status = child.wait(job.SECONDS if how == 'late' else most + 5)
        return judge_dispatch(status, time.monotonic() - begin, most, folder, how, rank, place)
    finally:
        launcher.stop(child)


if __name__ == '__main__':
    job.need_launcher()
    launcher = job.launcher
    os.environ['SHERD'] = os.environ['SHERD_BUILDDIR'] + '/tests/fault/sherd_dies'  # `sherd`, unless DIES_AT is set
    tokens = tiny.write_tokens()
    cases = [(f'{how.name} to rank {rank} of {ranks}', case, how, rank, ranks) for how, rank, ranks in CASES]
    cases += [(f'{how}, rank {rank} of {ranks}, {place}, {way}', case_in_dispatch, how, rank, ranks, place, way)
              for how, rank, ranks, place in IN_DISPATCH for way in WAYS if how != 'lost' or can_go_on()]
    sys.exit(job.run_cases(cases, deadlines=True))
