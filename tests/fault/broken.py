"""A training run whose second save is broken and that is started again: code shared by the tests of this.

The job must end soon, with the class of communication if a rank only stands still. The previous checkpoint is
untouched. Started again, the job resumes by itself and ends with the losses and the checkpoints, to the bit, of the run
that was never broken, and nothing unfinished is left.
"""
import functools
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import tiny

BUILD = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.'))
RANKS = 4
VICTIMS = (0, 2, 3)
INTERVAL = 4
SAVES = (4, 8, tiny.STEPS)  # the second one is broken
# Deadlines of a stage and of a collective, if a rank stands still: one of the two ends the job.
STAGE_SECONDS, STEP_SECONDS = 4, 8
STOP_SECONDS = 5  # how long the end takes, after the longer of them
DEADLINE = re.compile(r'^sherd: .*error: .*(?:takes longer than checkpoint.timeout_seconds|\(no answer\)|did not come)', re.M)
STATUS_COMM = 5
# In the foreground through MPI-IO, since a background save never uses it; the bytes are the same.
WAYS = {'in front': {'checkpoint.io': 'mpiio'}, 'in the background': {'checkpoint.async_mode': 'async'}}
folders = itertools.count()


def config(way):
    return {'job.dump_folder': 'out', 'training.dataset_path': tiny.write_tokens(),
            'checkpoint.interval': INTERVAL, **WAYS[way], **tiny.MODELS['llama']}


def checkpoint(folder, step):
    return folder / f'out/checkpoint/step-{step:08}.h5'


def start(folder, env, program=None, limits=(), ranks=RANKS):
    """Train; returns (exit status, seconds since a rank of sherd_dies died or else since the start, standard error)."""
    words = job.command(ranks, ['train', 'c.yaml', *limits])
    if program:
        words[words.index(os.environ['SHERD'])] = str(BUILD / program)
    began, died = time.time(), folder / 'died'
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder,
                          env=job.environment(ranks) | env, timeout=job.SECONDS)
    return done.returncode, time.time() - (died.stat().st_mtime if died.exists() else began), done.stderr


def shim(**settings):
    """The shim watches the second save."""
    env = {f'SHIM_{key}': str(value) for key, value in settings.items()}
    env |= {'LD_PRELOAD': job.launcher.preload(BUILD / 'tests/fault/shim.so'), 'SHIM_FOLDER': 'out/',
            'SHIM_AFTER': f'step-{SAVES[1]:08}.h5'}
    # The sanitizers' library need not come first here.
    return env | {'ASAN_OPTIONS': f"{os.environ.get('ASAN_OPTIONS', 'detect_leaks=0')}:verify_asan_link_order=0"}


def losses(folder):
    """Losses by step; for a repeated step the last one counts."""
    return {step['step']: step['loss'] for step in job.metrics(folder)}


@functools.lru_cache(None)
def unbroken(way):
    """Returns (folder, losses, {rank: calls from the second save on, in order})."""
    folder, counts = job.prepare(f'unbroken-{len(way)}', config(way)), pathlib.Path(f'counts-{len(way)}').resolve()
    status, _, said = start(folder, shim(FAULT='count', COUNTS=counts))
    if status != 0:
        raise job.Failed(f'the unbroken run: exit {status}\n{said}')
    lines = [line.split() for line in counts.read_text().splitlines()]
    return folder, losses(folder), {int(line[0]): line[1:] for line in lines if len(line) > 1}


def same(folder, whole, step):
    return checkpoint(folder, step).read_bytes() == checkpoint(whole, step).read_bytes()


def judge_end(how, status, seconds, said, limit):
    wrong = [] if status != 0 else ['the job was not broken']
    named = DEADLINE.search(said)
    if how != 'stop':  # the launcher sees it; all deadlines are a user's, five minutes and more
        return wrong + ([f'it waited for a deadline: {said}'] if named else [])
    wrong += [f'it took {seconds:.1f} s to end'] if seconds > limit else []
    # The deadline of a stage or, if the others have continued training, that of its collectives.
    wrong += [] if status == STATUS_COMM and named and 'did not come' not in named[0] else [f'exit {status}: {said}']
    return wrong


def resume(folder, way):
    """Start again and compare with the undisturbed run."""
    whole, expected, _ = unbroken(way)
    left = [step for step in SAVES if checkpoint(folder, step).exists()]
    wrong = [f'before: checkpoint {step} has changed' for step in left if not same(folder, whole, step)]
    wrong += [] if left and left[0] == SAVES[0] else ['the previous checkpoint is gone']
    if wrong:
        return wrong
    (folder / 'out/metrics.jsonl').rename(folder / 'metrics-before.jsonl')
    job.sherd('train', 'c.yaml', ranks=RANKS, folder=folder)
    wrong = [f'after: checkpoint {step} is not that of the unbroken run' for step in SAVES
             if not same(folder, whole, step)]
    wrong += [f'left behind: {path.name}' for path in checkpoint(folder, 0).parent.glob('.*') if path.name != '.lock']
    found = {} if left[-1] == tiny.STEPS else losses(folder)
    missing = {step: loss for step, loss in expected.items() if step > left[-1]}
    return wrong + ([] if found == missing else [f'losses {found}, of the unbroken run {missing}'])


def case(way, how, env, program=None):
    unbroken(way)
    folder = job.prepare(f'broken-{next(folders)}', config(way))
    stage, step = job.stretch(STAGE_SECONDS), job.stretch(STEP_SECONDS)
    limits = (f'--checkpoint.timeout_seconds={stage}', f'--comm.train_timeout_seconds={step}') if how == 'stop' else ()
    wrong = judge_end(how, *start(folder, env, program, limits), step + job.stretch(STOP_SECONDS))
    if how == 'time limit':  # a signal that a process sees leaves nothing for the next start to delete
        wrong += [f'left at once: {path.name}' for path in checkpoint(folder, 0).parent.glob('.*.tmp')]
    wrong += resume(folder, way)
    if not wrong:
        shutil.rmtree(folder)
    return wrong
