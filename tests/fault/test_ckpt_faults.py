#!/usr/bin/env python3
"""Injected storage faults while checkpoints are saved and loaded, on several numbers of ranks. Prints TAP.

ckpt_faults injects one fault after the other and judges each. A save through MPI-IO never waits for a rank that met a
fault. Elsewhere a fault after which a rank would wait for ever must end the job: some seconds after the deadline of a
stage, with the status for communication and one line; the previous checkpoint is unchanged, and no bad one was
committed. The job is then started again after that fault. SHERD_LONG=1 injects many more.
"""
import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

LONG = bool(os.environ.get('SHERD_LONG'))
WORKS = ('save-direct', 'save-async', 'save-mpiio', 'load', 'load-shared', 'save-passed', 'async-passed')
# Ranks: how many faults during each of WORKS.
BUDGET = {1: (40, 30, 20, 20, 0), 2: (30, 25, 15, 20, 10), 3: (15, 15, 5, 10, 10, 15, 15), 4: (10, 5, 0, 0, 0),
          6: (5, 0, 0, 0, 0)}
if LONG:
    BUDGET = {1: (1000, 1000, 1000, 1000), 2: (800, 800, 200, 400), 3: (300, 200, 50, 100, 0, 200, 200), 4: (100, 50, 20, 50),
              6: (50, 20, 10, 20)}
# Everything that rank 0 writes, including HDF5's structures and the index: lost, altered, short or failed.
WRITES = [('save-direct', 1), ('save-async', 1)] + [('save-direct', 2), ('save-async', 2), ('save-mpiio', 2)] * LONG
STAGE_SECONDS = 4
END_SECONDS = 4  # how long a launcher needs after the deadlines of rank 0 and of the others
STATUS_COMM = 5
DIRTY = {'MALLOC_PERTURB_': '165'}  # heap memory that was never written is not zero
PROGRAM = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')) / 'tests/fault/ckpt_faults'


def hashes(folder):
    """Of the previous and the new checkpoint; None if there is none."""
    paths = [folder / f'step-{step:08}.h5' for step in (7, 8)]
    return [hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None for path in paths]


@functools.lru_cache(None)
def reference():
    """The bytes are the same on any number of ranks, so one clean run says what they must be."""
    clean = Series('save-direct', 1, 0, 'reference')
    status, _, _, stderr = clean.start()
    if status != 0:
        raise job.Failed(f'a save without faults: status {status}\n{stderr}')
    return hashes(clean.folder)


class Series:
    """All faults with `text` in their description, for one kind of work on one number of ranks."""

    def __init__(self, work, ranks, budget, folder=None, text=''):
        self.work, self.ranks, self.budget, self.text = work, ranks, budget, text
        self.folder = pathlib.Path(folder or f'{work}-{ranks}{"-all" * bool(text)}').resolve()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.stage_seconds = job.stretch(STAGE_SECONDS)
        self.first, self.bad, self.ended, self.injected, self.sums = 0, [], 0, 0, [0, 0]

    def start(self):
        """One start of the job; returns (status, seconds since its last sign, standard output, standard error)."""
        words = job.command(self.ranks, [self.work, self.folder, self.first, self.budget, self.stage_seconds, self.text])
        words[words.index(os.environ['SHERD'])] = str(PROGRAM)
        with open('stderr', 'w+') as err:
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, text=True,
                                     env=job.environment(self.ranks) | DIRTY, start_new_session=True)
            lines, last = [], time.monotonic()
            for line in child.stdout:
                lines.append(line.rstrip('\n'))
                last = time.monotonic()
            status = child.wait()
            err.seek(0)
            return status, time.monotonic() - last, lines, job.launcher.NOISE.sub('', err.read())

    def judge_end(self, status, seconds, lines, stderr):
        """The job ended at a fault."""
        place = lines[-1] if lines else 'at its start'
        said = [line for line in stderr.splitlines() if line.startswith('sherd: ') and 'error' in line]
        if status != STATUS_COMM or len(said) != 1 or 'takes longer than checkpoint.timeout_seconds' not in said[0]:
            self.bad.append(f'{place}: ended with status {status}\n{stderr}')
        if self.work == 'save-mpiio':  # it never waits for another rank inside MPI-IO
            self.bad.append(f'{place}: the job waited for its deadline')
        if seconds > 2 * self.stage_seconds + job.stretch(END_SECONDS):
            self.bad.append(f'{place}: ended after {seconds:.1f} s')
        before, new = hashes(self.folder)
        if before != reference()[0]:
            self.bad.append(f'{place}: the previous checkpoint has changed')
        if new not in (None, reference()[1]):
            self.bad.append(f'{place}: a bad checkpoint was committed')

    def tidy(self):
        for path in self.folder.glob('.*.tmp*'):
            path.unlink()

    def take(self, lines):
        """Read what a start printed; True if it reached its end."""
        self.bad += [line for line in lines if line.startswith('bad ')]
        places = [int(line.split()[1]) for line in lines if line.startswith('at ')]
        self.injected += len(places)
        self.first = places[-1] + 1 if places else self.budget
        done = [re.findall(r'\d+', line) for line in lines if line.startswith('done ')]
        if done:
            self.budget = min(self.budget, int(done[0][0]))
            self.sums = [a + int(b) for a, b in zip(self.sums, done[0][2:4])]
            if int(done[0][4]):
                self.bad.append(f'{done[0][4]} faults were not met')
        return bool(done)

    def run(self):
        while self.first < self.budget:
            status, seconds, lines, stderr = self.start()
            done = self.take(lines)
            if done and status == 0:
                break
            if done:
                self.bad.append(f'status {status} at the end\n{stderr}')
                break
            self.judge_end(status, seconds, lines, stderr)
            self.ended += 1
            self.tidy()
            if len(self.bad) > 20:
                break
        print(f'# {self.work}, {self.ranks} ranks: {self.injected} faults, {self.ended} of them ended the job by a '
              f'deadline; since the last of these {self.sums[0]} succeeded, {self.sums[1]} refused')
        return self.bad


def case(work, ranks, budget):
    return Series(work, ranks, budget).run()


def case_writes(work, ranks):
    return Series(work, ranks, 1 << 30, text='rank 0: write number').run()


def case_interrupted(work, ranks):
    """A call that a signal interrupts is repeated, including the last one, which makes the new name durable."""
    return Series(work, ranks, 1 << 30, text='EINTR').run()


if __name__ == '__main__':
    job.need_launcher()
    cases = [(f'{work} on {ranks} ranks, {budget} faults', case, work, ranks, budget)
             for ranks, budgets in BUDGET.items() for work, budget in zip(WORKS, budgets) if budget]
    cases += [(f'{work} on {ranks} ranks, every write of rank 0', case_writes, work, ranks) for work, ranks in WRITES]
    cases += [('save-direct on 2 ranks, every call interrupted', case_interrupted, 'save-direct', 2)]
    sys.exit(job.run_cases(cases, deadlines=True))
