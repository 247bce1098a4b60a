#!/usr/bin/env python3
"""An update that is pending, and carried out in the next step's forward, meets a disk that fails, a kill and a signal to
stop. Prints TAP.

A request of the scratch file, of states or gradients, that fails ends the job in one line; no step is told that was not made, and the checkpoint of
before is whole. Started again the run ends with the losses and the checkpoint, to the bit, of one that has its states in
memory.
"""
import errno
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import tiny

SHIM = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).absolute() / 'tests/fault/shim.so'
STEPS, INTERVAL = 8, 4  # of four updates one is done at once, for a save, and three are carried
PLACES = 12 if os.environ.get('SHERD_LONG') else 3  # of each call and fault
NUMBERS = ('loss', 'grad_norm', 'lr')
STATUS_DATA, STATUS_STOPPED = 3, 75


def config(**more):
    return {'job.dump_folder': 'out', **tiny.MODELS['llama'], 'training.dataset_path': tokens, 'training.steps': STEPS,
            'lr_scheduler.total_steps': STEPS, 'training.mixed_precision_param': 'bfloat16', 'training.device': 'cpu',
            'training.local_batch_size': 3, 'checkpoint.interval': INTERVAL, 'metrics.log_freq': 1000, **more}


FILE = {'offload.optimizer': 'nvme', 'offload.gradients': 'nvme', 'offload.nvme_path': 'scratch'}


def prepare(name, more):
    folder = job.prepare(name, config(**more))
    (folder / 'scratch').mkdir(exist_ok=True)
    return folder


def train(folder, env=()):
    done = subprocess.run(job.command(0, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          cwd=folder, env=job.environment(0) | dict(env), timeout=job.SECONDS)
    return done.returncode, done.stderr


def shim(call, number, fault, counts=''):
    env = {'LD_PRELOAD': SHIM, 'SHIM_FOLDER': 'scratch', 'SHIM_RANK': 0, 'SHIM_CALL': call, 'SHIM_NUMBER': number,
           'SHIM_FAULT': fault, **({'SHIM_COUNTS': counts} if counts else {})}
    return {key: str(value) for key, value in env.items()}


def steps_of(folder):
    metrics = folder / 'out/metrics.jsonl'
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return {row['step']: [row[key] for key in NUMBERS] for row in map(json.loads, lines) if 'grad_norm' in row}


def as_in_memory(name, folder):
    """Rows that are there; a run that goes on writes some of them again."""
    return [f'{name}: step {step} is {row}, not {whole[step]}' for step, row in steps_of(folder).items()
            if row != whole[step]]


def ends_well(name, folder):
    """Started again."""
    status, error = train(folder)
    last = f'out/checkpoint/step-{STEPS:08}.h5'
    wrong = as_in_memory(name, folder) + ([] if status == 0 else [f'{name}: started again: exit {status}: {error}'])
    if list((folder / 'scratch').iterdir()):
        wrong.append(f'{name}: {list((folder / "scratch").iterdir())} was left behind')
    if status == 0 and (folder / last).read_bytes() != (memory / last).read_bytes():
        wrong.append(f'{name}: the last checkpoint differs')
    return wrong


def fails(name, call, number):
    folder = prepare(name, FILE)
    status, error = train(folder, shim(call, number, errno.EIO))
    lines = [line for line in error.splitlines() if 'error:' in line]
    if status != STATUS_DATA or len(lines) != 1 or os.strerror(errno.EIO) not in lines[0]:
        return [f'{name}: exit {status}: {error}']
    return as_in_memory(name, folder) + ends_well(name, folder)


def killed(name, call, number):
    folder = prepare(name, FILE)
    status, error = train(folder, shim(call, number, 'kill'))
    if status != -signal.SIGKILL:
        return [f'{name}: exit {status}: {error}']
    return as_in_memory(name, folder) + ends_well(name, folder)


def stopped(name):
    """Between saves: the update that is pending is done before the one that the signal asks for."""
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
    """Of two checkpoints but for training.steps."""
    done = subprocess.run(job.command(0, ['ckpt', 'diff', a, b]), capture_output=True, text=True, env=job.environment(0),
                          stdin=subprocess.DEVNULL, timeout=job.SECONDS)
    return [line for line in done.stdout.splitlines()
            if not line.startswith(('configuration differs', 'training.steps: '))]


def calls_of():
    """How often an unbroken run reads and writes the scratch file."""
    folder = prepare('counted', FILE)
    status, error = train(folder, shim('any', 0, 'count', 'counts'))
    if status != 0:
        raise job.Failed(f'exit {status}: {error}')
    words = (folder / 'counts').read_text().split()[1:]
    return {call: words.count(call) for call in ('read', 'write')}


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    memory = prepare('memory', {})
    if train(memory)[0] != 0:
        raise job.Failed("a run in memory")
    whole, calls = steps_of(memory), calls_of()
    random.seed(len(whole))
    cases = [('stopped by a signal', stopped, 'stopped')]
    for way, what in ((fails, 'fails'), (killed, 'kills')):
        for call, n in calls.items():
            cases += [(f'{call} {number} of {n} {what}', way, f'{what}-{call}-{number}', call, number)
                      for number in sorted(random.sample(range(1, n + 1), PLACES))]
    sys.exit(job.run_cases(cases))
