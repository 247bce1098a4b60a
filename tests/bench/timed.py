"""Short training runs on generated tokens, for the measurements in this folder."""
import json
import os
import subprocess

WARM_UP = 2  # the first steps of a run, which do not count
# Open MPI needs two variables before it starts jobs as root, as in a container.
ROOT = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'} if os.getuid() == 0 else {}
KEYS = {'data.token_type': 'uint16', 'lr_scheduler.warmup_steps': 1, 'checkpoint.enable': 'false',
        'metrics.progress': 'false'}


def add_programs(parser):
    parser.add_argument('--sherd', default='./sherd')
    parser.add_argument('--mpirun', default='mpirun --oversubscribe --bind-to none')


def add_arguments(parser, steps, rounds):
    add_programs(parser)
    parser.add_argument('--steps', type=int, default=steps, help=f'of each run; the first {WARM_UP} do not count')
    parser.add_argument('--rounds', type=int, default=rounds)


def write_tokens(path, count, vocab=256):
    """Any tokens of the vocabulary will do: the work does not depend on them."""
    path.write_bytes(b''.join((i * 7919 % vocab).to_bytes(2, 'little') for i in range(count)))


def sherd(a, ranks, words):
    """Run to the end; `a` comes from add_arguments()."""
    words = ([] if ranks == 1 else a.mpirun.split() + ['-n', str(ranks)]) + [a.sherd, *words]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, env=dict(os.environ, **ROOT))
    if done.returncode != 0:
        raise SystemExit(f'{" ".join(words)}\nexit {done.returncode}: {done.stderr}')


def train(a, folder, ranks, keys):
    """All lines of metrics; `keys` override the ones above."""
    metrics = folder / 'out/metrics.jsonl'
    metrics.unlink(missing_ok=True)
    (folder / 'empty.yaml').write_text('{}\n')
    keys = {'training.steps': a.steps, 'job.dump_folder': folder / 'out', **KEYS, **keys}
    sherd(a, ranks, ['train', str(folder / 'empty.yaml')] + [f'--{key}={value}' for key, value in keys.items()])
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def steps(lines):
    """The lines of steps, in order, including the warm-up; each with the fields of the start line that hold for all of
    them."""
    flops = {key: lines[0][key] for key in lines[0] if key.startswith('flops_per_token')}
    return [{**flops, **line} for line in lines if 'loss' in line]
