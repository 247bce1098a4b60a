"""Short training runs on made tokens, for the measurements of this folder."""
import json
import os
import pathlib
import subprocess

WARM_UP = 2  # the first steps of a run, which do not count
MPIRUN = 'mpirun --oversubscribe --bind-to none'
# Open MPI wants to be asked twice before it starts jobs of root, as in a container.
ROOT = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'} if os.getuid() == 0 else {}
KEYS = {'data.token_type': 'uint16', 'lr_scheduler.warmup_steps': 1, 'checkpoint.enable': 'false',
        'metrics.progress': 'false'}


def add_arguments(parser, steps, rounds):
    parser.add_argument('--sherd', default='./sherd')
    parser.add_argument('--mpirun', default=MPIRUN)
    parser.add_argument('--steps', type=int, default=steps, help=f'of each run; the first {WARM_UP} do not count')
    parser.add_argument('--rounds', type=int, default=rounds)


def write_tokens(path, count, vocab=50000):
    """Any tokens do: the work does not depend on them."""
    path.write_bytes(b''.join((i * 7919 % vocab).to_bytes(2, 'little') for i in range(count)))


def train(a, folder, ranks, keys):
    """Lines of metrics, one a step, the warm-up included. `keys` over those of above; `a` as of add_arguments()."""
    out = pathlib.Path(folder) / 'out'
    keys = {'training.steps': a.steps, 'job.dump_folder': out, **KEYS, **keys}
    (folder / 'empty.yaml').write_text('{}\n')
    words = [] if ranks == 1 else a.mpirun.split() + ['-n', str(ranks)]
    words += [a.sherd, 'train', str(folder / 'empty.yaml')] + [f'--{key}={value}' for key, value in keys.items()]
    (out / 'metrics.jsonl').unlink(missing_ok=True)
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env=dict(os.environ, **ROOT))
    if done.returncode != 0:
        raise SystemExit(f'{" ".join(words)}\nexit {done.returncode}: {done.stderr}')
    lines = [json.loads(line) for line in (out / 'metrics.jsonl').read_text().splitlines()]
    return [line for line in lines if 'loss' in line]
