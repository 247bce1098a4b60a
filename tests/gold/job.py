"""Whole runs of `sherd` for tests: configurations are dictionaries of "section.key", results are lists of metrics.

A test is started by tests/run, or by hand with SHERD (the program), MPIRUN and MPI_KIND (openmpi, mpich, intel) in the
environment. It works in the current folder.
"""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
SYSTEM_PYTHON = '/usr/bin/python3'
# Threads of numpy and PyTorch spin while they wait, which was half of the time of a test with small matrices.
os.environ['OMP_NUM_THREADS'] = '1'


def load_script(name):
    """A script without .py as a module."""
    loader = importlib.machinery.SourceFileLoader(name.replace('/', '_'), str(TOP / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


sys.dont_write_bytecode = True  # the tree may be read-only, and must stay clean
launcher = load_script('tests/mpi/run')  # it knows how to start each MPI
slowness, stretch = launcher.slowness, launcher.stretch
# After this long a run of sherd counts as hung: all take seconds on a quiet machine, and tens of times that on a busy
# one.
SECONDS = float(os.environ.get('SHERD_RUN_SECONDS') or stretch(600))
# Smaller samples, for a build whose MPI and compiler differ from one that has passed the whole test.
FEW = bool(os.environ.get('SHERD_TEST_FEW'))


class Failed(Exception):
    """A run of sherd did not end as it should."""


def can_launch():
    return bool(os.environ.get('MPIRUN'))


def command(ranks, words):
    program = [os.environ['SHERD'], *map(str, words)]
    if ranks == 0:
        return program
    return [os.environ['MPIRUN'], '-n', str(ranks), *launcher.LAUNCHER[os.environ['MPI_KIND']][0], *program]


def environment(ranks):
    return launcher.environment(launcher.DEFAULTS, ranks)


def launch(*words, ranks=0, folder='.', seconds=SECONDS):
    """Run successfully and return (standard output, standard error); 0 ranks: without a launcher."""
    what = f'{ranks} ranks, sherd {" ".join(map(str, words))}'
    try:
        done = subprocess.run(command(ranks, words), stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder,
                              env=environment(ranks), timeout=seconds)
    except subprocess.TimeoutExpired as late:
        printed = ''.join(part.decode(errors='replace') for part in (late.output, late.stderr) if part)
        raise Failed(f'{what}: killed after {seconds:g} s; it had printed:\n{printed}') from None
    if done.returncode != 0:
        raise Failed(f'{what}: exit {done.returncode}\n{done.stdout}{done.stderr}')
    return done.stdout, done.stderr


def sherd(*words, **how):
    """The same, for standard output alone."""
    return launch(*words, **how)[0]


def yaml(config):
    """A configuration has only two levels."""
    sections = {}
    for name, value in config.items():
        section, key = name.split('.')
        sections.setdefault(section, {})[key] = value
    return ''.join(f'{section}:\n' + ''.join(f'  {key}: {json.dumps(value)}\n' for key, value in keys.items())
                   for section, keys in sections.items())


def prepare(folder, config):
    """An empty folder with c.yaml."""
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / 'c.yaml').write_text(yaml(config))
    return folder


def metrics(folder):
    """The lines of training steps, in the order of the file."""
    text = (pathlib.Path(folder) / 'out/metrics.jsonl').read_text()
    return [line for line in map(json.loads, text.splitlines()) if 'loss' in line]


def train(folder, config, ranks=0):
    """Train in an empty folder, in its folder `out`; returns the metrics of all steps."""
    prepare(folder, {'job.dump_folder': 'out', **config})
    sherd('train', 'c.yaml', ranks=ranks, folder=folder)
    return metrics(folder)


def write_examples(path, examples):
    """An evaluation file of llm.c: pairs of a context and its endings, all lists of tokens. Returns the absolute path."""
    def packed(number, context, endings):
        words = [number, 0, len(endings), len(context), *context, *(x for ending in endings for x in (len(ending), *ending))]
        return struct.pack(f'<{len(words) + 2}H', 65535, 2 * len(words) + 4, *words)

    path = pathlib.Path(path).absolute()
    path.write_bytes(struct.pack('<256i', 20240522, 1, len(examples), *[0] * 253)
                     + b''.join(packed(i, *example) for i, example in enumerate(examples)))
    return path


def scores(checkpoint, examples, *words, ranks=0):
    """Evaluate a file of write_examples(); returns (log-probability, whether it is greedy) of all endings."""
    sherd('eval', '--checkpoint', checkpoint, '--choices', examples, '-o', 'scores.jsonl', *words, ranks=ranks)
    lines = map(json.loads, pathlib.Path('scores.jsonl').read_text().splitlines())
    return [tuple(one[0]) for line in lines for one in line['resps']]


def losses(steps):
    return [step['loss'] for step in steps]


def differ(name, found, expected, bound):
    """A complaint if two lists of numbers differ by more than `bound`, relative; 0: to the bit."""
    if len(found) != len(expected):
        return [f'{name}: {len(found)} numbers, expected {len(expected)}']
    worst, at = max((abs(a - b) / max(abs(b), 1e-300), i) for i, (a, b) in enumerate(zip(found, expected)))
    if worst <= bound:
        return []
    return [f'{name}: number {at + 1} is {found[at]!r}, expected {expected[at]!r}: {worst:.2g} off, bound {bound:g}']


def complaints(function, arguments):
    try:
        return function(*arguments)
    except (Failed, subprocess.TimeoutExpired, OSError) as error:
        return [str(error)]


def run_cases(cases, deadlines=False):
    """Cases are (name, function, arguments...); a function returns complaints. Prints TAP, returns the exit status. With
    SHERD_STOP in the environment the first failure is the last case that runs. `deadlines`: the cases have deadlines,
    all from stretch(), and are tried again with longer ones."""
    print(f'1..{len(cases)}', flush=True)
    failed = 0
    for number, (name, function, *arguments) in enumerate(cases, 1):
        if failed and os.environ.get('SHERD_STOP'):
            print(f'# an earlier case failed (--stop)\nok {number} - {name} # SKIP', flush=True)
            continue
        wrong = launcher.patiently(lambda: complaints(function, arguments)) if deadlines else complaints(function, arguments)
        for line in '\n'.join(wrong).splitlines():
            print('#', line)
        print(f"{'not ok' if wrong else 'ok'} {number} - {name}", flush=True)
        failed += bool(wrong)
    return int(failed > 0)


def skip_all(why):
    print(f'1..0 # SKIP {why}')
    sys.exit(0)


def enter_venv(package='transformers'):
    """Go on in the Python of the virtual environment that tests/hf/venv has made, offline; skip all tests without one. Returns its
    folder."""
    venv = os.environ.get('SHERD_HF_VENV', '')
    if not venv or not os.path.exists(f'{venv}/bin/python'):
        skip_all(f'no virtual environment with {package}: tests/hf/venv FOLDER makes one, SHERD_HF_VENV=FOLDER names it')
    if not sys.prefix.startswith(os.path.realpath(venv)):
        os.execv(f'{venv}/bin/python', [f'{venv}/bin/python', *sys.argv])
    os.environ['HF_HUB_OFFLINE'] = '1'
    return venv


def need_launcher():
    if not can_launch():
        skip_all('no launcher (configure found no mpirun of this MPI; give MPIRUN=)')


def need_emulated_gpus():
    """Skip without them; a node then has eight."""
    if b'SHERD_EMULATED_GPUS' not in pathlib.Path(os.environ['SHERD']).read_bytes():
        skip_all('this build has no emulated GPUs (configure --with-cuda=emulated)')
    need_launcher()
    os.environ['SHERD_EMULATED_GPUS'] = '8'


def need_modules(*names):
    """Skip without them; the system's Python may have them, if another one comes first in PATH."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing and sys.executable != SYSTEM_PYTHON and os.path.exists(SYSTEM_PYTHON):
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])
    if missing:
        packages = ' '.join(f'python3-{name}' for name in missing)
        skip_all(f'{sys.executable} has no {", ".join(missing)} (Debian: {packages})')
