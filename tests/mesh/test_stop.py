#!/usr/bin/env python3
"""A run that is asked to stop by a signal, or stops before the end of its job. Prints TAP.

All ranks stop after the same step, save and exit with 75; started again, the run continues as if nothing had happened:
losses and the last checkpoint are those of the run that was never stopped, to the bit. progress.json records what
happened.
"""
import functools
import itertools
import json
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

RANKS = 3
REQUEUE, USAGE = 75, 2
MORE = 8  # steps after the restart
BEFORE = 6  # at least this many steps before the signal
folders = itertools.count()


def config(**more):
    """Unlimited steps, and rates that do not depend on the number of steps."""
    return {**tiny.MODELS['llama'], 'training.dataset_path': tokens, 'training.steps': 1000000,
            'lr_scheduler.total_steps': 500, 'training.local_batch_size': tiny.GLOBAL_BATCH // RANKS,
            'checkpoint.interval': 1000000, **more}


def progress(folder):
    return json.loads((folder / 'out/progress.json').read_text())


def checkpoint(folder, step):
    return folder / f'out/checkpoint/step-{step:08}.h5'


def differ(folder, name, expected):
    return job.differ(name, [progress(folder)[name]], [expected], 0)


def change(folder, name, value):
    path = folder / 'c.yaml'
    section, key = name.split('.')
    lines = path.read_text().splitlines()
    at = lines.index(f'{section}:')
    found = next(i for i in range(at, len(lines)) if lines[i].startswith(f'  {key}: '))
    lines[found] = f'  {key}: {value}'
    path.write_text('\n'.join(lines) + '\n')


def stop(folder, action, more, ranks=RANKS, **env):
    """Train until `action` makes it stop; returns the exit status."""
    child = live.start(folder, config(**more), ranks, **env)
    try:
        action(folder, child)
        return child.wait(job.SECONDS)
    finally:
        job.launcher.stop(child)


def go_on(folder, step, more):
    """Started again, the run equals the one that was never stopped."""
    change(folder, 'training.steps', step + MORE)
    job.sherd('train', 'c.yaml', ranks=RANKS, folder=folder)
    whole = job.prepare(f'whole-{next(folders)}', {'job.dump_folder': 'out', **config(**more),
                                                   'training.steps': step + MORE})
    job.sherd('train', 'c.yaml', ranks=RANKS, folder=whole)
    wrong = job.differ('losses', job.losses(job.metrics(folder)), job.losses(job.metrics(whole)), 0)
    if checkpoint(folder, step + MORE).read_bytes() != checkpoint(whole, step + MORE).read_bytes():
        wrong.append('the last checkpoints differ')
    if not progress(folder)['finished'] or progress(folder)['first_step'] != step:
        wrong.append(f'progress.json: {progress(folder)}')
    return wrong


def judge(folder, status, reason, fewest_steps):
    """Judge what a stopped run leaves behind."""
    told = progress(folder)
    wrong = [] if status == REQUEUE else [f'exit status {status}']
    expected = {'step': len(job.metrics(folder)), 'saved_step': len(job.metrics(folder)), 'exit_status': REQUEUE,
                'finished': False, 'first_step': 0, 'starts_without_checkpoint': 0}
    wrong += [f'progress.json: {key} is {told[key]}, expected {value}' for key, value in expected.items()
              if told[key] != value]
    wrong += [] if reason in told['reason'] else [f'reason: {told["reason"]}']
    wrong += [] if told['step'] >= fewest_steps else [f'only {told["step"]} steps']
    wrong += [] if live.said(folder).count('stopped after step') == 1 else ['not one line says so']
    wrong += [f'left behind: {path.name}' for path in checkpoint(folder, 0).parent.glob('.*.tmp*')]
    return wrong + ([live.said(folder)] if wrong else [])


def signal_once(number, ranks, folder, child):
    live.wait_for_steps(folder, child, BEFORE)
    live.send(folder, number, ranks)


def signal_always(folder, child):
    """Send the signal again and again, through the save and to the end."""
    live.wait_for_steps(folder, child, BEFORE)
    while child.poll() is None:
        live.send(folder, signal.SIGUSR1, range(RANKS))
        live.send(folder, signal.SIGTERM, [1])


def signal_early(folder, child):
    """Signal as soon as a rank listens, which is before anything is read."""
    live.wait_until((folder / 'out').exists, folder, child, 'did not start')
    live.send(folder, signal.SIGUSR1, [1])


def case(action, reason, more):
    folder = pathlib.Path(f'stopped-{next(folders)}')
    wrong = judge(folder, stop(folder, action, more), reason, BEFORE)
    return wrong or go_on(folder, progress(folder)['step'], more)


def case_early():
    folder = pathlib.Path('early')
    status = stop(folder, signal_early, {})
    return [] if status == REQUEUE else [f'exit status {status}: {live.said(folder)}']


def case_alone():
    """Ctrl-C on a single process."""
    folder = pathlib.Path('alone')

    def interrupt(folder, child):
        live.wait_for_steps(folder, child, BEFORE)
        child.send_signal(signal.SIGINT)

    status = stop(folder, interrupt, {}, ranks=0)
    wrong = judge(folder, status, 'SIGINT to 1 of 1 ranks', BEFORE)
    notice = re.search(r'^Ctrl-C: finishing step \d+, then saving; another Ctrl-C gives up$', live.said(folder), re.M)
    return wrong + ([] if notice else ['no notice', live.said(folder)])


def case_nothing_to_save():
    folder = pathlib.Path('unsaved')
    status = stop(folder, functools.partial(signal_once, signal.SIGTERM, [0]), {'checkpoint.enable': False})
    wrong = [] if status == USAGE else [f'exit status {status}']
    return wrong + ([] if 'nothing is saved, since checkpoint.enable=false' in live.said(folder) else [live.said(folder)])


def case_limit():
    """The job ends within seconds; the previous start has measured that a save is quick."""
    folder = pathlib.Path('limit')
    job.prepare(folder, {'job.dump_folder': 'out', **config(**{'job.stop_before_limit_seconds': job.stretch(3)})})
    (folder / 'out').mkdir()
    (folder / 'out/progress.json').write_text('{"starts_without_checkpoint": 1, "save_seconds": 0.1}')
    end = int(time.time() + job.stretch(11))
    child = live.start(folder, None, RANKS, SHERD_END_TIME=str(end))
    try:
        status = child.wait(job.SECONDS)
    finally:
        job.launcher.stop(child)
    wrong = judge(folder, status, 'the job ends in ', 1)
    return wrong + ([] if time.time() < end else ['it was too late'])


def case_no_progress():
    """A start that does nothing is counted, so that the script can give up."""
    folder = job.prepare('idle', {'job.dump_folder': 'out', **config()})
    wrong = []
    for start in (1, 2):
        child = live.start(folder, None, RANKS, SLURM_JOB_END_TIME=str(int(time.time())))
        status = child.wait(job.SECONDS)
        wrong += [] if status == REQUEUE else [f'exit status {status}']
        wrong += differ(folder, 'starts_without_checkpoint', start)
    return wrong + (['a checkpoint of nothing'] if checkpoint(folder, 0).exists() else [])


def case_finished():
    folder = job.prepare('finished', {'job.dump_folder': 'out', **config(**{'training.steps': 3})})
    for _ in range(2):
        job.sherd('train', 'c.yaml', ranks=RANKS, folder=folder)
    told = progress(folder)
    return [] if told['finished'] and told['exit_status'] == 0 and told['first_step'] == 3 else [str(told)]


LONG = {'validation.enable': True, 'validation.freq': 4, 'validation.sequences': 0, 'checkpoint.interval': 4}


def in_validation(folder, child):
    """Stop a validation that would take minutes: the step before it is saved."""
    live.wait_until(checkpoint(folder, 4).exists, folder, child, 'nothing is saved before the validation')
    live.send(folder, signal.SIGTERM, [1])


def validations(folder):
    lines = (json.loads(line) for line in (folder / 'out/metrics.jsonl').read_text().splitlines())
    return [line['step'] for line in lines if 'validation_loss' in line]


def case_validation():
    """A validation is cut off between two batches, and the next start runs it again, once."""
    folder, long = pathlib.Path('validation'), pathlib.Path('long.bin').absolute()
    long.write_bytes(pathlib.Path(tokens).read_bytes() * 8000)
    status = stop(folder, in_validation, {**LONG, 'validation.dataset_path': str(long)})
    wrong = judge(folder, status, 'SIGTERM to 1 of 3 ranks', 4)
    wrong += [] if 'step 4  validation cut off after' in live.said(folder) else ['it does not say what is cut off']
    wrong += differ(folder, 'validated_step', 0)
    change(folder, 'validation.dataset_path', json.dumps(tokens))
    change(folder, 'training.steps', 6)
    for _ in range(2):  # the second start has nothing left to do
        job.sherd('train', 'c.yaml', ranks=RANKS, folder=folder)
        wrong += job.differ('validations', validations(folder), [4, 6], 0)
    return wrong


def case_no_time():
    """A validation that is known to take longer than what is left of the job is left out, but not the last one."""
    folder = job.prepare('no-time', {'job.dump_folder': 'out', **config(**LONG), 'training.steps': 6,
                                     'validation.dataset_path': tokens})
    (folder / 'out').mkdir()
    (folder / 'out/progress.json').write_text('{"starts_without_checkpoint": 1, "save_seconds": 0.1, "validation_seconds": 9000}')
    child = live.start(folder, None, RANKS, SHERD_END_TIME=str(int(time.time() + 6000)))
    try:
        wrong = [f'exit status {status}' for status in [child.wait(job.SECONDS)] if status]
    finally:
        job.launcher.stop(child)
    wrong += [] if 'step 4  no validation: it takes about 9000 s' in live.said(folder) else ['it does not say so']
    wrong += job.differ('validations', validations(folder), [6], 0)
    return wrong + ([live.said(folder)] if wrong else [])


def case_reader_gone():
    """As in `sherd train 2>&1 | head -1`: the run goes on and saves, and its status does not speak of it."""
    folder = job.prepare('reader-gone', {'job.dump_folder': 'out', **config(**{'training.steps': 6}),
                                         'training.local_batch_size': tiny.GLOBAL_BATCH})
    child = subprocess.Popen(job.command(0, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, cwd=folder, env=job.environment(0))
    child.stdout.close()
    status = child.wait(job.SECONDS)
    wrong = [] if status == 0 else [f'exit status {status}']
    return wrong + ([] if checkpoint(folder, 6).exists() else ['nothing is saved'])


SHIM = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).absolute() / 'tests/fault/shim.so'
# The files of a model of this size are moved in several rounds of four pieces of 8 MiB.
LARGE = {'model.vocab_size': 20480, 'model.dim': 512, 'model.n_heads': 8, 'model.n_kv_heads': 8, 'model.head_dim': 64,
         'model.n_layers': 1, 'training.global_batch_size': 1, 'training.local_batch_size': 1, 'training.steps': 1,
         'checkpoint.last_save_in_hf': True, 'checkpoint.export_dtype': 'float32', 'checkpoint.verify': 'off'}
# What moves, the calls of the shim, and what is new in the configuration.
PIECES = [('write an export', 'write', 'out/', 'hf-', {'checkpoint.verify': 'off'}),
          ('read an export back', 'read', 'out/', 'hf-', {'checkpoint.verify': 'disk'}),
          ('load', 'read', 'out/', 'step-', {'training.steps': 2})]


def asked(folder, what, call, watched, after, number=1):
    """A start that calls from this number on ask to stop, when it moves pieces: it stops between two of them."""
    child = live.start(folder, None, 0, LD_PRELOAD=job.launcher.preload(SHIM), SHIM_FOLDER=watched, SHIM_AFTER=after, SHIM_CALL=call,
                       SHIM_NUMBER=str(number), SHIM_FAULT='ask', SHIM_LASTING='1')
    status = child.wait(job.SECONDS)
    right = status == REQUEUE and 'left alone (SIGUSR1); run the same command to resume' in live.said(folder)
    return [] if right else [f'{what}: exit status {status}: {live.said(folder)}']


def case_pieces():
    """Loads and exports end between two pieces, and the next start does all of it."""
    folder, wrong = job.prepare('pieces', {'job.dump_folder': 'out', **config(**LARGE)}), []
    for what, call, watched, after, new in PIECES:
        for name, value in new.items():
            change(folder, name, value)
        wrong += asked(folder, what, call, watched, after)
    job.sherd('train', 'c.yaml', folder=folder)
    left = sorted(path.name for path in checkpoint(folder, 0).parent.iterdir() if path.name != '.lock')
    wrong += [] if left == ['hf-00000002', 'step-00000001.h5', 'step-00000002.h5'] else left
    again = {key: value for key, value in config(**LARGE).items() if not key.startswith('model.')}
    job.prepare('from-export', {'job.dump_folder': 'out', **again, 'model.hf_assets_path': f'../{folder}/out/checkpoint/hf-00000002'})
    # The first reads are of the headers, before the load.
    return wrong + asked(pathlib.Path('from-export'), 'load a folder', 'read', f'../{folder}/', 'hf-', 20)


ASYNC = {'checkpoint.async_mode': 'async', 'checkpoint.interval': 4}
CASES = [
    ('SIGUSR1 to all', case, functools.partial(signal_once, signal.SIGUSR1, range(RANKS)), 'SIGUSR1 to ', {}),
    ('SIGTERM to one rank', case, functools.partial(signal_once, signal.SIGTERM, [2]), 'SIGTERM to 1 of 3 ranks', {}),
    ('signals to the end', case, signal_always, 'SIGUSR1 to ', {}),
    ('signals to the end, saved asynchronously', case, signal_always, 'SIGUSR1 to ', ASYNC),
    ('a signal before the first step', case_early),
    ('Ctrl-C on one process', case_alone),
    ('SIGTERM in a validation', case_validation),
    ('a validation that does not fit', case_no_time),
    ('a load and an export', case_pieces),
    ('a log without a reader', case_reader_gone),
    ('nothing can be saved', case_nothing_to_save),
    ('the end of the job', case_limit),
    ('starts without progress are counted', case_no_progress),
    ('a finished run does not run again', case_finished),
]

if __name__ == '__main__':
    job.need_launcher()
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(CASES, deadlines=True))
