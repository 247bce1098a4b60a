#!/usr/bin/env python3
"""A spike in the gradients makes the run go back to its newest checkpoint and skip the data that it has read since.
Prints TAP.

The data is easy except for one batch of noise, in the order of the file. The result must be, to the bit, that of a run
on a file from which the skipped windows were cut.
"""
import array
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

T, BATCH = tiny.SEQ_LEN, tiny.GLOBAL_BATCH
STEPS, BAD, INTERVAL = 50, 42, 8  # BAD: the step that reads the noise
BACK = (BAD - 1) // INTERVAL * INTERVAL
LEFT_OUT = (BACK * BATCH, BAD * BATCH - 1)  # samples
NUMBERS = 6


def write_data():
    """A file with noise in the windows of step BAD, and the same file without the skipped windows."""
    draw = random.Random(3)
    easy = [i * 7 % 20 for i in range((STEPS + BAD) * BATCH * T + 1)]
    noise = slice((BAD - 1) * BATCH * T + 1, BAD * BATCH * T)
    easy[noise] = [draw.randrange(20, 61) for _ in easy[noise]]
    first, end = LEFT_OUT[0] * T, (LEFT_OUT[1] + 1) * T
    easy[end] = easy[first]  # windows share a token with their neighbours
    for name, tokens in (('noisy.bin', easy), ('cut.bin', easy[:first] + easy[end:])):
        pathlib.Path(name).write_bytes(array.array('H', tokens).tobytes())


def config(data, ranks, **more):
    return {**tiny.MODELS['llama'], 'training.dataset_path': str(pathlib.Path(data).absolute()), 'data.shuffle': False,
            'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS, 'checkpoint.interval': INTERVAL,
            'training.local_batch_size': BATCH // max(ranks, 1), 'metrics.log_freq': 1000, 'guard.window': 16, **more}


GUARD = {'guard.z_score': 4, 'guard.action': 'rollback'}


def lines(folder):
    return [job.json.loads(line) for line in (folder / 'out/metrics.jsonl').read_text().splitlines()]


def tensors_differ(a, b):
    done = job.subprocess.run([job.os.environ['SHERD'], 'ckpt', 'diff', a, b], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line.startswith(('model/', 'optimizer/'))]


def case_cut(name, ranks, more):
    folder, cut = pathlib.Path(name), pathlib.Path(f'{name}-cut')
    after = job.train(folder, config('noisy.bin', ranks, **GUARD, **more), ranks)
    expected = job.train(cut, config('cut.bin', ranks, **more), ranks)
    back = [line for line in lines(folder) if 'rollback_from' in line]
    told = {'step': BACK, 'rollback_from': BAD, 'first_sample_left_out': LEFT_OUT[0], 'last_sample_left_out': LEFT_OUT[1]}
    if back != [told]:
        return [f'went back: {back}, expected {told}']
    undone = after[BACK:BAD]
    wrong = [] if 'outlier' in undone[-1]['skipped'] else ['the bad step does not say why']
    for key in ('step', 'loss', 'grad_norm', 'lr', 'tokens_seen'):
        found = [step[key] for step in after[:BACK] + after[BAD:]]
        wrong += job.differ(key, found, [step[key] for step in expected], 0)
    last = f'out/checkpoint/step-{STEPS:08}.h5'
    return wrong + tensors_differ(folder / last, cut / last)


def refusal(name, words, **more):
    """The run exits with 6 in the end, and says why."""
    job.prepare(name, {'job.dump_folder': 'out', **config('noisy.bin', 2, **more)})
    try:
        job.sherd('train', 'c.yaml', ranks=2, folder=name)
    except job.Failed as error:
        right = f'exit {NUMBERS}' in str(error) and words in str(error)
        return [] if right else [str(error)]
    return ['it did not end']


def case_often():
    return refusal('often', 'gone back to the newest checkpoint as often as guard.max_rollbacks allows: 2', **GUARD,
                   **{'guard.max_rollbacks': 2, 'optimizer.lr': 1000, 'optimizer.weight_decay': 100})


def case_stop():
    return refusal('stop', f'step {BAD}: loss ', **{**GUARD, 'guard.action': 'stop'})


ASYNC = {'checkpoint.async_mode': 'async'}
CASES = [('one process', case_cut, 'alone', 0, {}), ('3 ranks', case_cut, 'three', 3, {}),
         ('2 ranks, bfloat16, saved asynchronously', case_cut, 'async', 2,
          {**ASYNC, 'training.mixed_precision_param': 'bfloat16', 'optimizer.state_dtype': 'bfloat16',
           'parallelism.sharding_strategy': 'shard_optim'}),
         ('too often', case_often), ('stop instead', case_stop)]

if __name__ == '__main__':
    job.need_launcher()
    write_data()
    sys.exit(job.run_cases(CASES))
