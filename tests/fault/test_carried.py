#!/usr/bin/env python3
"""Optimizer states and gradients in a file, with an update that is pending and carried out in the next step's forward, meet a
disk that fails, a kill and a signal to stop. Prints TAP.

A request to the scratch file that fails, or returns bytes that differ from what was written, ends the job in one line
that names the step and the tensor that was moved; no step is reported that was not made, and the previous checkpoint is
whole. Started again, the run ends with the losses and the checkpoint, to the bit, of a run that has everything in
memory. A request that was done in part is completed.
"""
import errno
import itertools
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import tiny

SHIM = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).absolute() / 'tests/fault/shim.so'
STEPS, INTERVAL = 8, 4  # of four updates one is done immediately, for a save, and three are carried
PLACES = 12 if os.environ.get('SHERD_LONG') else 1  # places for each call and fault
NUMBERS = ('loss', 'grad_norm', 'lr')
STATUS_DATA, STATUS_STOPPED = 3, 75
FROM_LAST = 16  # a save's threads share the room there is, so two saves may differ in their number of reads


def config(**more):
    return {'job.dump_folder': 'out', **tiny.MODELS['llama'], 'training.dataset_path': tokens, 'training.steps': STEPS,
            'lr_scheduler.total_steps': STEPS, 'training.mixed_precision_param': 'bfloat16', 'training.device': 'cpu',
            'training.local_batch_size': 3, 'checkpoint.interval': INTERVAL, 'metrics.log_freq': 1000, **more}


GRADIENTS = {'offload.gradients': 'nvme', 'offload.nvme_path': 'scratch'}
FILE = {'offload.optimizer': 'nvme', **GRADIENTS}
# What is in the file, and the words of an error that say so.
HOMES = {
    'states and gradients': (FILE, r'step \d+[:,] .*(optimizer states|gradients).*: scratch file in scratch: '),
    'gradients': (GRADIENTS, r'step \d+, \w+ \S+ (fetch|evict) gradients: scratch file in scratch: '),
}
# More states than there is room to read at once, so a save fetches them again; and the same steps as above.
MANY = {**FILE, 'model.n_layers': 96, 'training.global_batch_size': 1, 'training.local_batch_size': 1,
        'activation_checkpoint.mode': 'full', 'training.steps': 2,
        'lr_scheduler.total_steps': 2, 'lr_scheduler.warmup_steps': 0}
# What a disk call does, and what the one line says about it; None: the job continues.
FAULTS = [
    ('fails', ('read', 'write'), errno.EIO, False, os.strerror(errno.EIO)),
    ('finds no space from then on', ('write',), errno.ENOSPC, True, os.strerror(errno.ENOSPC)),
    ('flips a bit', ('read', 'write'), 'flip', False, 'damaged at byte '),
    ('does nothing', ('write',), 'lose', False, 'damaged at byte '),
    ('moves half', ('read', 'write'), 'short', False, None),
    ('moves half from then on', ('read', 'write'), 'short', True, 'the disk moves less than a page in one call'),
    ('kills', ('read', 'write'), 'kill', False, None),
]


def prepare(name, more):
    folder = job.prepare(name, config(**more))
    (folder / 'scratch').mkdir(exist_ok=True)
    return folder


def train(folder, env=(), ranks=0):
    done = subprocess.run(job.command(ranks, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          cwd=folder, env=job.environment(ranks) | dict(env), timeout=job.SECONDS)
    return done.returncode, done.stderr


def shim(call, number, fault, counts='', lasting=False, rank=0):
    env = {'LD_PRELOAD': SHIM, 'SHIM_FOLDER': 'scratch', 'SHIM_RANK': rank, 'SHIM_CALL': call, 'SHIM_NUMBER': number,
           'SHIM_FAULT': fault, **({'SHIM_COUNTS': counts} if counts else {}), **({'SHIM_LASTING': 1} if lasting else {})}
    return {key: str(value) for key, value in env.items()}


def steps_of(folder):
    metrics = folder / 'out/metrics.jsonl'
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return {row['step']: [row[key] for key in NUMBERS] for row in map(json.loads, lines) if 'grad_norm' in row}


def as_in_memory(name, folder):
    """The rows in the file; a resumed run writes some of them again."""
    return [f'{name}: step {step} is {row}, not {whole[step]}' for step, row in steps_of(folder).items()
            if row != whole[step]]


def ends_well(name, folder):
    """Start the run again."""
    status, error = train(folder)
    last = f'out/checkpoint/step-{STEPS:08}.h5'
    wrong = as_in_memory(name, folder) + ([] if status == 0 else [f'{name}: started again: exit {status}: {error}'])
    if list((folder / 'scratch').iterdir()):
        wrong.append(f'{name}: {list((folder / "scratch").iterdir())} was left behind')
    if status == 0 and (folder / last).read_bytes() != (memory / last).read_bytes():
        wrong.append(f'{name}: the last checkpoint differs')
    return wrong


def breaks(name, home, call, number, fault, lasting, says):
    """The job ends in one line, or continues with the same bits."""
    more, what = HOMES[home]
    folder = prepare(name, more)
    status, error = train(folder, shim(call, number, fault, lasting=lasting))
    lines = [line for line in error.splitlines() if 'error:' in line]
    if fault == 'kill':
        right = status == -signal.SIGKILL
    elif says is None:
        right = status == 0 and not lines
    else:
        right = status == STATUS_DATA and len(lines) == 1 and says in lines[0] and re.search(what, lines[0])
        right = right and 'not saved' not in error
    if not right:
        return [f'{name}: exit {status}: {error}']
    return as_in_memory(name, folder) + ends_well(name, folder)


def lost_in_a_save(name, ranks, fault, says):
    """The last reads of a run are for its last checkpoint. Data that does not come back is lost for a second attempt as
    well: the job ends with the disk's own line, and not as a failed save."""
    more = {**MANY, 'training.global_batch_size': max(ranks, 1)}
    folder, last = prepare(name, more), max(ranks - 1, 0)
    number = calls_of(f'{name}-counted', more, ranks)['read'] - FROM_LAST
    status, error = train(folder, shim('read', number, fault, rank=last), ranks)
    lines = [line for line in error.splitlines() if 'error:' in line]
    who = f'rank {last}: ' if last else ''
    wanted = rf'error: step 2, save: {who}optimizer states of \S+, elements \d+ to \d+: scratch file in scratch: .*{says}'
    if status != STATUS_DATA or len(lines) != 1 or not re.search(wanted, lines[0]) or 'not saved' in error:
        return [f'{name}: exit {status}: {error}']
    left = [str(path) for path in (folder / 'out/checkpoint').iterdir() if path.name != '.lock']
    return [f'{name}: left behind: {left}'] if left else []


def lost_in_a_load(name):
    """If loaded data cannot be evicted, the checkpoint is not at fault: no earlier one is tried instead."""
    more = {**MANY, 'checkpoint.interval': 1}
    folder = prepare(name, more)
    status, error = train(folder)
    if status:
        return [f'{name}: exit {status}: {error}']
    (folder / 'c.yaml').write_text(job.yaml(config(**{**more, 'training.steps': 3})))
    status, error = train(folder, shim('write', 3, errno.EIO))
    lines = [line for line in error.splitlines() if 'error:' in line]
    wanted = r'error: load out/checkpoint/step-00000002\.h5: optimizer states of .*: scratch file in scratch: write .*Input/output'
    if status != STATUS_DATA or len(lines) != 1 or not re.search(wanted, lines[0]) or 'step-00000001' in error:
        return [f'{name}: exit {status}: {error}']
    return []


def stopped(name):
    """Between saves: the pending update is done before the save that the signal asks for."""
    folder = prepare(name, {**FILE, 'training.steps': 100000, 'checkpoint.interval': 100000})
    run = subprocess.Popen(job.command(0, ['train', 'c.yaml']), cwd=folder, stdin=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True, env=job.environment(0))
    metrics, end = folder / 'out/metrics.jsonl', time.monotonic() + job.SECONDS
    while run.poll() is None and time.monotonic() < end and not (metrics.exists() and metrics.read_text().count('grad_norm')):
        time.sleep(0.01)
    run.send_signal(signal.SIGTERM)
    error = run.communicate(timeout=job.SECONDS)[1]
    if run.returncode != STATUS_STOPPED:
        return [f'{name}: exit {run.returncode}: {error}']
    step = max(steps_of(folder))
    other = prepare(f'{name}-memory', {'training.steps': step, 'checkpoint.interval': 100000})
    status, error = train(other)
    last = f'out/checkpoint/step-{step:08}.h5'
    if status != 0 or steps_of(other) != steps_of(folder):
        return [f'{name}: in memory: exit {status}, {error} {steps_of(other)}, not {steps_of(folder)}']
    return [f'{name}: {line}' for line in differences(folder / last, other / last)]


def differences(a, b):
    """Differences between two checkpoints, except training.steps."""
    done = subprocess.run(job.command(0, ['ckpt', 'diff', a, b]), capture_output=True, text=True, env=job.environment(0),
                          stdin=subprocess.DEVNULL, timeout=job.SECONDS)
    return [line for line in done.stdout.splitlines()
            if not line.startswith(('configuration differs', 'training.steps: '))]


def calls_of(name, more, ranks=0):
    """How often the last rank of an undisturbed run reads and writes the scratch file."""
    folder = prepare(name, more)
    status, error = train(folder, shim('any', 0, 'count', 'counts'), ranks)
    if status != 0:
        raise job.Failed(f'exit {status}: {error}')
    words = max((folder / 'counts').read_text().splitlines()).split()[1:]
    return {call: words.count(call) for call in ('read', 'write')}


def places(home, call):
    """Some numbers of calls of one kind."""
    n = calls[home][call]
    return sorted(random.sample(range(1, n + 1), PLACES))


def main():
    random.seed(len(whole))
    cases = [('stopped by a signal', stopped, 'stopped')]
    cases += [(f'a read of the last save {what}', lost_in_a_save, f'save-{fault}', 0, fault, says)
              for what, fault, says in (('fails', errno.EIO, os.strerror(errno.EIO)), ('flips a bit', 'flip', 'damaged at byte '))]
    cases += [('a write of a load fails', lost_in_a_load, 'load')]
    if job.can_launch():
        cases += [('a read of the last save fails on one of 2 ranks', lost_in_a_save, 'save-2', 2, errno.EIO, os.strerror(errno.EIO))]
    for (what, kinds, fault, lasting, says), home in itertools.product(FAULTS, HOMES):
        cases += [(f'{home}: {call} {number} of {calls[home][call]} {what}', breaks, f'{what}-{home}-{call}-{number}'.replace(' ', '-'),
                   home, call, number, fault, lasting, says) for call in kinds for number in places(home, call)]
    return job.run_cases(cases)


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    memory = prepare('memory', {})
    if train(memory)[0] != 0:
        raise job.Failed("a run in memory")
    whole, calls = steps_of(memory), {home: calls_of(f'counted-{home}', more) for home, (more, _) in HOMES.items()}
    sys.exit(main())
