#!/usr/bin/env python3
"""One rank has its core only a tenth of the time: the run names it, and the metrics say how late it is. Prints TAP.

Skips if other programs use the cores most of the time: then each rank is late by chance, and no median identifies one.
"""
import os
import pathlib
import re
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import live
import tiny

RANKS, LATE, STEPS_TO_TELL = 3, 1, 200
WORK_SECONDS, PAUSE_SECONDS = 0.003, 0.03
MOST_SLOWNESS, TRIES = 2, 3


def config():
    return {**tiny.MODELS['llama'], 'training.dataset_path': tokens, 'training.steps': 1000000,
            'training.local_batch_size': tiny.GLOBAL_BATCH // RANKS, 'checkpoint.enable': False, 'metrics.log_freq': 10,
            'model.dim': 160, 'model.head_dim': 32, 'model.ffn_dim': 800}  # most of a step is work, not waiting


def steps(folder):
    return job.metrics(folder)


def slow_down(folder, child):
    """Run until the rank is named, or for too long; returns the number of steps that this took, scaled down if others
    had the cores."""
    before, end, late = len(steps(folder)), time.monotonic() + job.SECONDS, live.find_rank(folder, LATE)
    slow = job.slowness()
    while 'straggler' not in live.said(folder) and time.monotonic() < end and child.poll() is None:
        slow = max(slow, job.slowness())
        os.kill(late, signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS * slow)
        os.kill(late, signal.SIGCONT)
        time.sleep(WORK_SECONDS)
    return (len(steps(folder)) - before) / slow


def judge(folder, took):
    named = re.search(rf'straggler: rank {LATE} on \S+ has worked \S+ s per step for \d+ steps, ([\d.]+) times the median',
                      live.said(folder))
    paces = [step['rank_seconds'] for step in steps(folder) if 'rank_seconds' in step]
    wrong = [] if named and float(named.group(1)) > 1.5 else [live.said(folder)]
    wrong += [] if took <= STEPS_TO_TELL else [f'it took {took:.0f} steps']
    last = paces[-1]
    if not (last['slowest_rank'] == LATE and last['max'] > 1.5 * last['median'] >= last['min'] > 0 and last['slowest_node']):
        wrong.append(f'metrics: {last}')
    return wrong


def case():
    """Try again, since other programs may make another rank the late one; on a quiet machine it must be this one."""
    wrong = attempt()
    for _ in range(TRIES - 1):
        if wrong and job.slowness() > 1:
            job.skip_all(f'too busy to tell a late rank from the others: {wrong}')
        wrong = wrong and attempt()
    return wrong


def attempt():
    folder = pathlib.Path('late')
    child = live.start(folder, config(), RANKS)
    try:
        live.wait_for_steps(folder, child, 2)
        return judge(folder, slow_down(folder, child))
    finally:
        live.send(folder, signal.SIGCONT, [LATE])
        live.send(folder, signal.SIGUSR1, range(RANKS))
        child.wait(job.SECONDS)
        job.launcher.stop(child)


if __name__ == '__main__':
    job.need_launcher()
    if job.slowness() > MOST_SLOWNESS:
        job.skip_all(f'too busy to tell a late rank from the others: a load of {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores')
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases([('a rank that is late is named', case)]))
