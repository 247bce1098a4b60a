#!/usr/bin/env python3
"""Signals while a run starts: none is lost, and none ends the job. Prints TAP.

A preloaded library (late.c) delays the start of MPI, so the test knows what the ranks are doing when the signal
arrives. Commands that do not train end immediately, like any program.
"""
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import live
import tiny

REQUEUE = 75
RANKS = 2
PLACES = ('load', 'before', 'after')
OURS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


def config():
    return {**tiny.MODELS['llama'], 'training.dataset_path': tokens, 'training.steps': 1000000,
            'lr_scheduler.total_steps': 500, 'checkpoint.interval': 1000000, 'job.dump_folder': 'out'}


class Held:
    """A command that stands still at the start of MPI."""

    def __init__(self, name, ranks, words=('train', 'c.yaml'), stops=PLACES[1:]):
        self.folder, self.ranks = job.prepare(name, config()), ranks
        for place in set(PLACES) - set(stops):
            self.go(place)
        shim = pathlib.Path(os.environ['SHERD_BUILDDIR']).absolute() / 'tests/mesh/late.so'
        environment = {**job.environment(ranks), 'LD_PRELOAD': job.launcher.preload(shim), 'LATE_FOLDER': str(self.folder.absolute()),
                       **({'LATE_LOAD': '1'} if 'load' in stops and not ranks else {})}
        for name in job.launcher.WAITS:  # so that the program starts itself again
            environment.pop(name)
        # A test in the background starts with SIGINT ignored, and would pass that on.
        with open(self.folder / 'stderr', 'wb') as errors:
            self.child = subprocess.Popen(job.command(ranks, words), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                                          cwd=self.folder, env=environment, start_new_session=True,
                                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        job.launcher.stop(self.child)

    def go(self, place):
        (self.folder / f'go-{place}').touch()

    def wait_at(self, place):
        for rank in range(max(1, self.ranks)):
            live.wait_until((self.folder / f'{place}.{rank}').exists, self.folder, self.child, f'not {place} MPI_Init')

    def send(self, number, rank=0):
        if self.ranks:
            live.send(self.folder, number, [rank])
        else:
            self.child.send_signal(number)

    def end(self):
        status = self.child.wait(job.SECONDS)
        return status, live.said(self.folder)


def is_kept(status, said, reason):
    wrong = [] if status == REQUEUE else [f'exit status {status}, expected {REQUEUE}']
    wrong += [] if reason in said else [f'it does not say "{reason}"']
    return wrong + (said.splitlines() if wrong else [])


def case_kept(place, number, ranks):
    """The run does no step, and says which signal asked it to stop."""
    with Held(f'{place}-{number.name}-{ranks}', ranks, stops=[place]) as run:
        run.wait_at(place)
        run.send(number, rank=max(0, ranks - 1))
        time.sleep(0.05)
        run.go(place)
        return is_kept(*run.end(), f'{number.name} to 1 of {max(1, ranks)} ranks')


def case_any_moment():
    """From the start of main, which the first place reports, to the first steps."""
    draw, wrong = random.Random(7), []
    for attempt in range(4):
        with Held(f'any-{attempt}', RANKS, stops=[]) as run:
            run.wait_at('before')
            time.sleep(draw.uniform(0, 0.6))
            run.send(draw.choice(OURS[:2]), rank=draw.randrange(RANKS))
            wrong += is_kept(*run.end(), ' to 1 of 2 ranks')
    return wrong


def case_twice():
    """The second Ctrl-C ends a run whose MPI does not start."""
    with Held('twice', 0) as run:
        run.wait_at('before')
        run.send(signal.SIGINT)
        notice = 'Ctrl-C: stopping before the first step; another Ctrl-C gives up'
        live.wait_until(lambda: notice in live.said(run.folder), run.folder, run.child, 'no notice')
        time.sleep(0.2)
        if run.child.poll() is not None:
            return ['the first one has ended it']
        run.send(signal.SIGINT)
        status, _ = run.end()
        return [] if status == -signal.SIGINT else [f'exit status {status}']


def children(pid):
    return [int(word) for task in pathlib.Path(f'/proc/{pid}/task').iterdir()
            for word in (task / 'children').read_text().split()]


def blocked(pid):
    """Those of Sherd's signals that a process blocks or ignores."""
    masks = [line.split()[1] for line in pathlib.Path(f'/proc/{pid}/status').read_text().splitlines()
             if line.startswith(('SigBlk:', 'SigIgn:'))]
    return [number.name for number in OURS if any(int(mask, 16) >> number - 1 & 1 for mask in masks)]


def case_children():
    """The process that MPI starts alongside a program without a launcher can be asked to end."""
    with Held('children', 0) as run:
        run.wait_at('before')
        run.go('before')
        run.wait_at('after')
        return [f'process {pid} blocks or ignores {blocked(pid)}' for pid in children(run.child.pid) if blocked(pid)]


def case_other(number):
    """A command that does not train: its result is not wanted any more."""
    with Held(f'other-{number.name}', 0, words=('doctor', 'c.yaml')) as run:
        run.wait_at('before')
        run.send(number)
        status, _ = run.end()
        return [] if status == -number else [f'exit status {status}']


def case_alone(number):
    """A command without MPI, which waits for a reader of its output."""
    words = [os.environ['SHERD'], 'plan', str(job.TOP / 'examples/llama3.1-8b.yaml'), '--ranks', '8', '--show']
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        child.stdout.read(1)
        child.send_signal(number)
        status = child.wait(job.SECONDS)
    finally:
        child.kill()
        child.stdout.close()
    return [] if status == -number else [f'exit status {status}']


CASES = [(f'{number.name} {place} {"of libraries" if place == "load" else "MPI_Init"}, {ranks or "no"} ranks', case_kept, place, number, ranks)
         for place, number, ranks in (('before', signal.SIGUSR1, RANKS), ('before', signal.SIGTERM, RANKS),
                                      ('after', signal.SIGUSR1, RANKS), ('before', signal.SIGTERM, 0),
                                      ('load', signal.SIGUSR1, 0), ('load', signal.SIGINT, 0),
                                      ('before', signal.SIGINT, 0), ('after', signal.SIGTERM, 0))]
CASES += [
    ('at any moment', case_any_moment),
    ('Ctrl-C twice', case_twice),
    ('processes that MPI starts', case_children),
    ('SIGTERM to another command', case_other, signal.SIGTERM),
    ('SIGINT to another command', case_other, signal.SIGINT),
    ('SIGTERM to a command without MPI', case_alone, signal.SIGTERM),
    ('SIGINT to a command without MPI', case_alone, signal.SIGINT),
]

if __name__ == '__main__':
    job.need_launcher()
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(CASES))
