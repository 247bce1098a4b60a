#!/usr/bin/env python3
"""Near checkpoints and fingerprints of emulated GPUs: a rank dies, and the run goes on from memory to the bits of the one that was
never broken; parts have the bytes that the plan says, and the step that was recorded is that of the CPU. Prints TAP.

Only in a build that was configured --with-cuda=emulated.
"""
import pathlib
import random
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'fault'))
import test_near
from trains import CPU, CUDA, job, tiny

STEPS, RANKS, PRINTS = 12, 2, 'f.jsonl'
RUNS = {
    'states on the GPU': {},
    'states in host memory, in bfloat16': {'offload.optimizer': 'cpu', 'optimizer.state_dtype': 'bfloat16'},
}


def config(device, **changes):
    return {**tiny.MODELS['llama'], 'job.dump_folder': 'out', 'training.dataset_path': tiny.write_tokens(), 'training.steps': STEPS,
            'lr_scheduler.total_steps': STEPS, 'training.global_batch_size': 4, 'training.local_batch_size': 2, 'metrics.log_freq': 1,
            'debug.fingerprint': PRINTS, 'debug.fingerprint_steps': STEPS, **device, **changes}


def break_once(folder):
    """Kill a rank after its first steps. Returns the newest step of the log."""
    run = test_near.begin(folder, RANKS)
    test_near.wait_for_step(folder, run, 1)
    killed = test_near.kill_one(folder, run, random.Random(2))
    status, said = test_near.finish(run)
    return test_near.newest(folder), [f'exit {status}, not killed: {said}'] * (not killed or status == 0)


def planned(folder, rank):
    said = job.sherd('plan', 'c.yaml', '--ranks', RANKS, '--rank', rank, folder=folder)
    return int(re.search(r'near checkpoints, 2 slots\s+(\d+)', said)[1]) // 2


def recorded(a, b):
    done = subprocess.run(job.command(0, ['diff', str(a / PRINTS), str(b / PRINTS)]), capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def survive(name, changes):
    number = list(RUNS).index(name)
    on_host = {key: value for key, value in changes.items() if not key.startswith('offload.')}
    whole, cpu = job.prepare(f'whole-{number}', config(CUDA, **changes)), job.prepare(f'cpu-{number}', config(CPU, **on_host))
    job.sherd('train', 'c.yaml', ranks=RANKS, folder=whole)
    job.sherd('train', 'c.yaml', folder=cpu)
    folder = job.prepare(f'near-{number}', config(CUDA, **test_near.NEAR, **changes))
    with test_near.Keeper(folder) as keeper:
        last, wrong = break_once(folder)
        sizes = {int.from_bytes(path.read_bytes()[32:36], 'little'): path.stat().st_size for path in keeper.parts()}
        expected = {rank: planned(folder, rank) for rank in range(RANKS)}
        wrong += [f'parts of {sizes} bytes, planned {expected}'] * (sizes != expected)
        status, said = test_near.finish(test_near.begin(folder, RANKS))
    begun = test_near.FROM_MEMORY.search(said)
    wrong += [f'exit {status}: {said}'] * (status != 0 or not begun or not last - 1 <= int(begun[1]) <= last + 1)
    wrong += test_near.differences(folder, whole) + test_near.leftovers()
    for other, text in (whole, 'equal to the last bit'), (cpu, 'devices differ (cuda, cpu): compared up to rounding'):
        status, said = recorded(folder, other)
        wrong += [f'{other}, exit {status}: {said}'] * (status != 0 or text not in said or 'only in' in said)
    return wrong


if __name__ == '__main__':
    job.need_emulated_gpus()
    sys.exit(job.run_cases([(name, survive, name, changes) for name, changes in RUNS.items()]))
