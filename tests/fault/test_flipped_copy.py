#!/usr/bin/env python3
"""Memory that loses a bit while a checkpoint is written in the background. Prints TAP.

The copy of the state that is being written changes after it was made: that save fails like a storage failure, with one
warning and one line of the metrics, and training continues. The next checkpoints are those of a run with sound memory,
to the byte. The copy of the last step is made once more, and is lost if that copy changes too.
"""
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import tiny

PROGRAM = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).resolve() / 'tests/fault/sherd_flips'
STEPS, EVERY = 6, 2
STATUS_DATA = 3


def train(name, ranks, param, states, flips=None):
    """Returns (exit status, {file: bytes} of the checkpoints, failed saves, standard error)."""
    config = {'job.dump_folder': 'out', 'training.dataset_path': tokens, 'checkpoint.interval': EVERY,
              'checkpoint.async_mode': 'async', **tiny.MODELS['llama'], 'training.steps': STEPS,
              'training.mixed_precision_param': param, 'optimizer.state_dtype': states}
    folder, env = job.prepare(name, config), job.environment(ranks)
    if flips:
        env |= {'FLIPS_STEP': str(flips[0]), 'FLIPS_RANK': str(flips[1]), 'FLIPS_STATE': str(flips[2])}
    words = job.command(ranks, ['train', 'c.yaml'])
    words[words.index(os.environ['SHERD'])] = str(PROGRAM)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder, env=env,
                          timeout=job.SECONDS)
    files = {path.name: path.read_bytes() for path in (folder / 'out/checkpoint').glob('step-*')}
    lines = map(json.loads, (folder / 'out/metrics.jsonl').read_text().splitlines())
    failed = [(line['step'], line['reason']) for line in lines if line.get('event') == 'checkpoint_failed']
    return done.returncode, files, failed, done.stderr


def case(ranks, param, states, step, rank, state):
    name = f'{ranks}-{param}-{state}'
    whole = train(f'whole-{name}', ranks, param, states)
    status, files, failed, said = train(f'flipped-{name}', ranks, param, states, (step, rank, state))
    last = step == STEPS
    wrong = [] if whole[0] == 0 and not whole[2] else [f'sound memory: exit {whole[0]}, {whole[2]}\n{whole[3]}']
    wrong += [] if status == (STATUS_DATA if last else 0) else [f'exit {status}']
    expected = {file: data for file, data in whole[1].items() if file != f'step-{step:08}.h5'}
    wrong += [] if sorted(files) == sorted(expected) else [f'in the folder: {sorted(files)}']
    wrong += [f'{file} differs' for file in files if files[file] != expected.get(file)]
    if [at for at, _ in failed] != [step] * (1 + last) or not all('changed between the copy' in why for _, why in failed):
        wrong.append(f'in the metrics: {failed}')
    if said.count('warning: ') != 1 or said.count('changed between the copy') != 1 + last:
        wrong.append('not one line per failure')
    return wrong + ([said] if wrong else [])


if __name__ == '__main__':
    job.need_launcher()
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases([('2 ranks, float32', case, 2, 'float32', 'float32', EVERY * 2, 1, 0),
                            ('3 ranks, masters in halves, the last step', case, 3, 'bfloat16', 'float32', STEPS, 0, 0),
                            ('2 ranks, states in bfloat16', case, 2, 'float32', 'bfloat16', EVERY * 2, 1, 2)]))
