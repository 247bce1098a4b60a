#!/usr/bin/env python3
"""Training whose checkpoints cannot be saved: one save meets a fault, or all saves do. Prints TAP.

A failed save is one warning and one line of the metrics; training continues to the same bits, the earlier checkpoints
are whole, and the next ones are saved. Too many failures in a row end the job with the status for data, and so does a
last step whose second attempt to save fails. Synchronous and asynchronous. SHERD_LONG=1: all faults on 1 to 4 ranks, by
both I/O methods.
"""
import errno
import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import tiny

LONG = bool(os.environ.get('SHERD_LONG'))
SHIM = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')) / 'tests/fault/shim.so'
EVERY = 2
SAVED = list(range(EVERY, tiny.STEPS + 1, EVERY))
MET = SAVED[1]  # the save that meets the fault
STATUS_DATA = 3
MODES = {'sync': {}, 'async': {'checkpoint.async_mode': 'async'}, 'mpiio': {'checkpoint.io': 'mpiio'}}
# The call of the save that fails, on the first or the last rank.
FAULTS = [('reserve', 'ENOSPC', 0), ('write', 'EIO', -1), ('write', 'EDQUOT', 0), ('sync', 'EIO', -1),
          ('rename', 'EACCES', 0), ('rename', 'EROFS', 0), ('open', 'EMFILE', -1)]
SHORT = [('sync', 3, FAULTS[0]), ('sync', 3, FAULTS[1]), ('sync', 3, FAULTS[3]), ('sync', 1, FAULTS[4]),
         ('async', 2, FAULTS[1]), ('async', 3, FAULTS[3]), ('mpiio', 2, FAULTS[1])]
folders = itertools.count()


def config(mode, **more):
    return {'job.dump_folder': 'out', 'training.dataset_path': tokens, 'checkpoint.interval': EVERY,
            'metrics.log_freq': 1, **tiny.MODELS['llama'], **MODES[mode], **more}


class Run:
    """A training run in its own folder, one rank of which meets a fault when the checkpoint of `step` is saved."""

    def __init__(self, settings, ranks, step=None, fault=None, lasting=False):
        self.folder, self.settings = job.prepare(f'run-{next(folders)}', settings).resolve(), settings
        env = job.environment(ranks)
        if fault:
            call, error, rank = fault
            env |= {'LD_PRELOAD': job.launcher.preload(SHIM), 'SHIM_FOLDER': 'out/checkpoint', 'SHIM_RANK': str(rank % ranks),
                    'SHIM_CALL': call, 'SHIM_NUMBER': '1', 'SHIM_FAULT': str(getattr(errno, error)),
                    'SHIM_COUNTS': str(self.folder / 'counts')}
            env |= {'SHIM_AFTER': f'step-{step:08}.h5'} if step else {}
            env |= {'SHIM_LASTING': '1'} if lasting else {}
            # The sanitizers' library need not come first here.
            env['ASAN_OPTIONS'] = f"{env.get('ASAN_OPTIONS', '')}:verify_asan_link_order=0"
        done = subprocess.run(job.command(ranks, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, cwd=self.folder, env=env, timeout=job.SECONDS)
        self.status, self.stderr, self.rank = done.returncode, done.stderr, str(fault[2] % ranks if fault else 0)

    def said(self, level):
        return [line for line in self.stderr.splitlines() if f'{level}: ' in line and line.startswith('sherd: ')]

    def checkpoint(self, step):
        return self.folder / f'out/checkpoint/step-{step:08}.h5'

    def events(self):
        lines = (self.folder / 'out/metrics.jsonl').read_text().splitlines()
        return [line for line in map(json.loads, lines) if line.get('event') == 'checkpoint_failed']

    def calls(self):
        """The calls of the faulty rank since the start of the faulty save."""
        lines = map(str.split, (self.folder / 'counts').read_text().splitlines())
        return next(words[1:] for words in lines if words[0] == self.rank and len(words) > 1)

    def judge(self, status, steps, failed, error):
        """Expected are the exit status, the checkpoints, and the steps that were not saved, one per failure."""
        wrong = [] if self.status == status else [f'exit {self.status}, expected {status}']
        there = sorted(path.name for path in self.checkpoint(0).parent.iterdir() if path.name != '.lock')
        if there != [self.checkpoint(step).name for step in steps]:
            wrong.append(f'in the folder: {there}')
        listed = job.sherd('ckpt', 'ls', self.checkpoint(0).parent) if there else ''
        if listed.count('valid') != len(there):
            wrong.append(listed)
        events, warnings = self.events(), self.said('warning')
        if [event['step'] for event in events] != failed:
            wrong.append(f'in the metrics: {events}')
        # MPI-IO says only that something failed.
        reasons = [os.strerror(getattr(errno, error))] + ['failed'] * ('checkpoint.io' in self.settings)
        if not all(any(reason in event['reason'] for reason in reasons) for event in events):
            wrong.append(f'wrong reason: {events}')
        ended = int(status != 0)
        if len(warnings) != len(failed) - ended or len(self.said('error')) != ended:
            wrong.append('not one line per failure')
        return wrong + ([self.stderr] if wrong else [])


@functools.lru_cache(None)
def unbroken():
    run = Run(config('sync'), 1)
    if run.status != 0:
        raise job.Failed(run.stderr)
    return job.losses(job.metrics(run.folder))


def judge_losses(run):
    """On other meshes the losses are a few units off; on the one rank of the reference they are the same."""
    return job.differ('losses', job.losses(job.metrics(run.folder)), unbroken(), 1e-5)


def judge_syncs(run):
    """After a failed fsync the kernel may forget the data that it could not write, and report success for the next
    fsync."""
    calls = run.calls()
    rest = calls[calls.index('sync') + 1:]
    until_next = rest[:rest.index('open')] if 'open' in rest else rest
    return ['fsync was tried again on the same file'] if 'sync' in until_next else []


def goes_on(mode, ranks, fault):
    run = Run(config(mode), ranks, MET, fault)
    wrong = run.judge(0, [step for step in SAVED if step != MET], [MET], fault[1])
    wrong += judge_syncs(run) if fault[0] == 'sync' else []
    return wrong + judge_losses(run)


def too_many(mode, most):
    """Every save fails: most + 1 failures end the job."""
    run = Run(config(mode, **{'checkpoint.max_failures': most}), 2, SAVED[0], ('sync', 'EIO', -1), lasting=True)
    wrong = run.judge(STATUS_DATA, [], SAVED[:most + 1], 'EIO')
    if f'checkpoint.max_failures={most})' not in run.stderr:
        wrong.append(run.stderr)
    done = len(job.metrics(run.folder))
    # In the background, training does more steps before it meets the failure.
    most_done = tiny.STEPS if mode == 'async' else SAVED[most]
    return wrong + ([] if SAVED[most] <= done <= most_done else [f'{done} steps'])


def last_again(mode):
    """The second attempt to save the last step succeeds."""
    run = Run(config(mode), 2, tiny.STEPS, ('write', 'ENOSPC', -1))
    return run.judge(0, SAVED, [tiny.STEPS], 'ENOSPC') + judge_losses(run)


def last_lost(mode):
    run = Run(config(mode), 2, tiny.STEPS, ('rename', 'EACCES', 0), lasting=True)
    return run.judge(STATUS_DATA, SAVED[:-1], [tiny.STEPS] * 2, 'EACCES') + judge_losses(run)


def at_start(error):
    """A folder in which no file can be created is found before the first save."""
    run = Run(config('sync'), 2, None, ('open', error, 0), lasting=True)
    says = 'checkpoint folder out/checkpoint cannot be written: create out/checkpoint/.step-'
    wrong = [] if run.status == STATUS_DATA else [f'exit {run.status}']
    if len(run.said('error')) != 1 or says not in run.stderr or os.strerror(getattr(errno, error)) not in run.stderr:
        wrong.append(run.stderr)
    return wrong + (['training began'] if (run.folder / 'out/metrics.jsonl').exists() else [])


def make_cases():
    some = [(mode, ranks, fault) for mode in MODES for ranks in (1, 2, 3, 4) for fault in FAULTS] if LONG else SHORT
    cases = [(f'{mode}, {ranks} ranks, {" ".join(map(str, fault))}', goes_on, mode, ranks, fault)
             for mode, ranks, fault in some]
    many = [('sync', 0), ('async', 1)] + [('sync', 2), ('async', 3), ('mpiio', 1)] * LONG
    cases += [(f'{mode}, more than {most} failures', too_many, mode, most) for mode, most in many]
    cases += [(f'{mode}, the last step, saved at the second try', last_again, mode) for mode in MODES
              if LONG or mode == 'async']
    cases += [(f'{mode}, the last step, lost', last_lost, mode) for mode in MODES if LONG or mode != 'mpiio']
    return cases + [(f'start in a folder with {error}', at_start, error) for error in ['EROFS'] + ['EACCES'] * LONG]


if __name__ == '__main__':
    job.need_launcher()
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(make_cases()))
