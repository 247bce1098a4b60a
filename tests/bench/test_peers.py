#!/usr/bin/env python3
"""tests/bench/peers on a tiny model: both sides train on the same data, every figure is there, bars are judged as
stated. Its speeds mean nothing. The choice of a PyTorch is tested with doubles, which are as fast as a test asks.
Prints TAP."""
import contextlib
import io
import json
import math
import os
import pathlib
import subprocess
import sys
import types
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / 'gold')]  # timed, job
import job

job.need_launcher()
job.need_modules('torch')
peers = job.load_script('tests/bench/peers')
import cpu_class  # the same modules as peers'
import torch_peer
import torch_runs

LEARNED = 0.1  # both start near log(vocab), from different initial values
TINY = 'tiny B=4 T=64 float32'


def run(*words, python=sys.executable):
    launcher = [os.environ['MPIRUN'], *job.launcher.LAUNCHER[os.environ['MPI_KIND']][0]]
    env = dict(job.environment(2), PYTHON=python)
    command = [sys.executable, HERE / 'peers', '--quick', '--sherd', os.environ['SHERD'], '--mpirun',
               ' '.join(launcher)]
    return subprocess.run([*command, *words], capture_output=True, text=True, env=env, timeout=2 * job.SECONDS)


def judge_row(name, runs):
    """A round of 4 steps, 2 of which count."""
    found = runs[0]
    first, expected = found['losses'][0], math.log(peers.TINY['vocab'])
    whole = len(runs) == 1 and len(found['seconds']) == 2 and min(found['seconds']) > 0
    wrong = [] if whole else [f'{name}: {found}']
    wrong += [] if found['peak_bytes'] > 10 << 20 else [f"{name}: peak of {found['peak_bytes']} bytes"]
    near = abs(first - expected) < LEARNED
    return wrong + ([] if near else [f'{name}: first loss {first}, expected about {expected}'])


def all_rows():
    done = run('--json', 'all.json', '--steps', '4', '--trial-steps', '3')
    if done.returncode != 0:
        return [f'exit {done.returncode}: {done.stderr}']
    found = json.loads(pathlib.Path('all.json').read_text())
    wrong = [line for name, runs in found['rows'].items() for line in judge_row(name, runs)]
    count = len(found['rows']) + len(found['left_out'])
    wrong += [] if count == 18 and len(found["rows"]) >= 16 else [f"{count} rows, left out: {found['left_out']}"]
    wrong += [] if all(trial['chosen'] in trial['speeds'] for trial in found['trials'] if trial['torch']) else [
        f"trials: {found['trials']}"]
    for name in found['bars']:
        wrong += [] if f'\n{name} ' in done.stdout else [f'no line for {name} in:\n{done.stdout}']
    return wrong


def without_torch():
    """An interpreter that finds no packages: its rows are left out with the reason, and a verdict cannot be good."""
    bare = pathlib.Path('bare-python').absolute()
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    done = run('--only', TINY, '--judge', python=str(bare))
    wrong = [] if done.returncode == 1 else [f'exit {done.returncode}: {done.stderr}']
    line = 'left out: tiny B=4 T=64 float32, torch: '
    wrong += [] if line in done.stdout and 'has no torch' in done.stdout else [f'no line "{line}" in:\n{done.stdout}']
    return wrong + ([] if '\ntiny B=4 T=64 float32, sherd ' in done.stdout else [f'no row of Sherd in:\n{done.stdout}'])


def made_up(seconds, peak=100, exposed=0.0):
    return {'seconds': seconds, 'peak_bytes': peak, 'exposed': exposed}


def verdicts():
    """Two rounds of known figures."""
    found = {'a': [made_up([1.0, 1.0], 50, 0.01), made_up([2.0, 2.0], 60, 0.05)],
             'b': [made_up([3.0, 3.0]), made_up([3.0, 3.0])]}
    table = [('speed', 2.0, 2.0, 1.5, 3.0, True), ('speed', 2.1, 2.0, 1.5, 3.0, False),
             ('memory', 0.6, 0.6, 0.5, 0.6, True), ('memory', 0.59, 0.6, 0.5, 0.6, False),
             ('exposed', 0.031, 0.03, 0.01, 0.05, True), ('exposed', 0.029, 0.03, 0.01, 0.05, False),
             ('even', 1.01, 1.0, 0.5, 2.0, True), ('even', 0.03, 1.0, 0.5, 2.0, False)]
    wrong = []
    for kind, limit, *expected in table:
        v = peers.judge(peers.Bar(kind, kind, 'a', 'b', limit), found, {})
        got = [v['value'], v['least'], v['most'], v['met']]
        if any(abs(x - y) > 1e-12 for x, y in zip(got, expected)):
            wrong.append(f'{kind} against {limit}: {got}, expected {expected}')
    return wrong


def budgets():
    """The budget is six tenths of PyTorch's last peak, less 56 MiB; if it cannot be met, a line says so, and all is
    recomputed."""
    rows = {row.name: row for row in peers.pairs([('tiny', 4, 64)], 1.6)[0]}
    row, torch = rows['tiny B=4 T=64 float32, sherd'], 'tiny B=4 T=64 float32, torch'
    found = {'slow': [made_up([2.0], 1 << 29)], 'fast': [made_up([1.0], 1 << 30), made_up([1.0], 120 << 20)]}
    got = peers.budget_of(row, found, {torch: ['slow', 'fast']})
    wrong = [] if got == 16 << 20 and peers.budget_of(row, {}, {}) is None else [f'a budget of {got} bytes']
    a, folder = types.SimpleNamespace(sherd=os.environ['SHERD'], mpirun='', steps=3), pathlib.Path('budgets').absolute()
    folder.mkdir()
    peers.timed.write_tokens(folder / 'tokens.bin', 4 * row.batch * row.seq + 1, peers.TINY['vocab'])
    runs = [peers.run_sherd(a, row, folder, folder / 'tokens.bin', budget) for budget in (None, 1 << 40, 1)]
    words = [run['recompute'] for run in runs]
    wrong += [] if words == ['none', 'none', 'full'] else [f'recomputed: {words}']
    return wrong + [f'losses of {word}' for run, word in zip(runs, words) if run['losses'] != runs[0]['losses']]


def blas():
    table = [(['/usr/lib/blas/libblas.so.3.11.0'], True), (['/usr/lib/openblas-pthread/libblas.so.3'], False),
             ([], False), (['/usr/lib/blas/libblas.so.3.11.0', 'oneDNN inside'], True), (['MKL inside'], False)]
    return [f'{files}: {not expected}' for files, expected in table if torch_peer.is_reference(files) != expected]


DOUBLE = """#!{python}
# An interpreter whose PyTorch does as double.json says.
import json, pathlib, sys
here = pathlib.Path(__file__).resolve().parent
said = json.loads((here / 'double.json').read_text())
if sys.argv[2] == '--can':
    print(json.dumps({{mode: {{variant: said['lacks'].get(variant, '') for variant in {variants}}} for mode in sys.argv[3:]}}))
    sys.exit()
job = json.loads(sys.argv[3])
with (here / 'jobs').open('a') as out:
    out.write(json.dumps(job) + '\\n')
variant = job['graph'] + ' ' + job['optimizer']
if variant in said['fails']:
    sys.exit(said['fails'][variant])
print(json.dumps({{'seconds': [9.0] * 2 + [said['seconds'][variant]] * (job['steps'] - 2), 'losses': [],
                  'peak_bytes': said['peak'], 'torch': said['torch'], 'blas': [], 'reference_blas': False}}))
"""
SPEEDS = dict(zip(torch_peer.VARIANTS, (4.0, 2.0, 8.0, 6.0)))  # seconds per step


def double(name, torch='2.15', seconds=SPEEDS, peak=1 << 30, lacks=None, fails=None):
    """An executable that answers like `python torch_peer.py`; it records its jobs in a file next to it."""
    folder = pathlib.Path(name).absolute()
    folder.mkdir()
    said = {'torch': torch, 'seconds': seconds, 'peak': peak, 'lacks': lacks or {}, 'fails': fails or {}}
    (folder / 'double.json').write_text(json.dumps(said))
    (folder / 'python').write_text(DOUBLE.format(python=sys.executable, variants=torch_peer.VARIANTS))
    (folder / 'python').chmod(0o755)
    return str(folder / 'python')


def jobs_of(python):
    """Graph, optimizer and steps of each job, in order."""
    lines = map(json.loads, (pathlib.Path(python).parent / 'jobs').read_text().splitlines())
    return [(line['graph'], line['optimizer'], line['steps']) for line in lines]


def strongest_peer():
    """Bars are judged against the faster of two interpreters, with its fastest variant; --trial-steps and --steps."""
    new = double('new', lacks={'compile fused': 'no such thing'}, peak=3 << 30, fails={
        'compile foreach': 'Traceback:\n  File\nInvalidCxxCompiler\ntorch.InductorError: no C++ compiler\n\nSet TORCH'})
    old = double('old', torch='1.13', seconds=dict(SPEEDS, **{'eager foreach': 1.0}))
    done = run('--python', new, '--python', old, '--only', TINY, '--trial-steps', '4', '--steps', '3', '--json',
               'two.json')
    if done.returncode != 0:
        return [f'exit {done.returncode}: {done.stderr}']
    found = json.loads(pathlib.Path('two.json').read_text())
    rows = [f'{TINY}, torch 2.15, eager fused', f'{TINY}, torch 1.13, eager foreach']
    wrong = [] if list(found['rows'])[:2] == rows else [f"rows: {list(found['rows'])}"]
    expected = [('eager', 'foreach', 4), ('eager', 'fused', 4), ('compile', 'foreach', 4), ('eager', 'fused', 3)]
    wrong += [] if jobs_of(new) == expected else [f'jobs: {jobs_of(new)}']
    wrong += [] if jobs_of(old)[-1] == ('eager', 'foreach', 3) and len(jobs_of(old)) == 5 else [f'jobs: {jobs_of(old)}']
    against = {bar['against'] for bar in found['bars'].values()}
    wrong += [] if against == {rows[1]} else [f'bars against {against}']
    lines = [f'left out: {TINY}, torch 2.15, compile foreach: exit 1: torch.InductorError: no C++ compiler\n',
             f'left out: {TINY}, torch 2.15, compile fused: no such thing\n', f' {4 * 64 / 2.0}*',
             f'against {rows[1]}\n', f'\n{rows[0]} ', 'PyTorch 2.15 of ', 'PyTorch 1.13 of ']
    return wrong + [f'no "{line}" in:\n{done.stdout}' for line in lines if line not in done.stdout]


def choose(*pythons):
    """Trials of the double's rows; quietly."""
    row = peers.pairs([('tiny', 4, 64)], None)[0][0]
    folder = pathlib.Path('chosen').absolute()
    folder.mkdir(exist_ok=True)
    with contextlib.redirect_stderr(io.StringIO()):
        return torch_runs.choose([row], pythons, lambda python, variant, row: torch_runs.run(
            python, variant, row, peers.TINY, 5, folder, folder / 'none'))


def fastest_variant():
    """Each of the four variants, if it is the fastest; none, if all fail or there is no interpreter; two interpreters
    with one PyTorch."""
    wrong = []
    for i, fastest in enumerate(torch_peer.VARIANTS):
        choice = choose(double(f'fast{i}', seconds=dict(SPEEDS, **{fastest: 0.5})))
        got = [row.peer[1] for row in choice.rows]
        wrong += [] if got == [fastest] and choice.trials[0].speeds[fastest] == 512 else [f'{fastest}: {choice}']
    broken = double('broken', fails=dict.fromkeys(torch_peer.VARIANTS, 'OSError: broken'))
    choice = choose(broken)
    reasons = {f'{TINY}, torch': [f'{broken}: exit 1: OSError: broken']}
    wrong += [] if not choice.rows and choice.left_out == reasons else [f'all fail: {choice}']
    choice = choose(str(pathlib.Path('nowhere').absolute()))
    wrong += [] if 'No such file' in str(choice.left_out) else [f'no interpreter: {choice}']
    names = [row.name for row in choose(double('a'), broken, double('b')).rows]
    wrong += [] if len(set(names)) == 2 and names[1].startswith(f'{names[0]} of ') else [f'names: {names}']
    return wrong


def classes():
    """Flags of a processor, its bar for bfloat16, and the other bars that are judged there."""
    flags = {'fpu avx2 avx512f avx512_bf16 amx_tile amx_bf16': ('AMX', 2.5),
             'avx2 avx512f amx_tile': ('AVX-512 without bf16', None),
             'avx512f avx512_bf16 avx2': ('AVX-512 with bf16', 1.6), 'avx avx2': ('AVX2', None), 'fpu': ('other', None)}
    wrong = []
    for text, (name, bar) in flags.items():
        cpu = cpu_class.class_of(cpu_class.read_flags(f'processor\t: 0\nflags\t\t: {text}\nbugs\t: amx_bf16\n'))
        limits = {b.name: b.limit for b in peers.plan(types.SimpleNamespace(quick=False, only=''), cpu)[1]}
        expected = {'speed llama B=1 T=1024 float32': 1.4, 'memory gpt2 B=4 T=256 float32': 0.6}
        for shape in ('gpt2 B=4 T=256', 'gpt2 B=1 T=1024', 'llama B=4 T=256', 'llama B=1 T=1024'):
            expected[f'speed {shape} bfloat16'] = bar
            expected[f'memory {shape} bfloat16'] = None if bar is None else 0.6
        expected['speed of 2 ranks, no_shard and ddp'] = expected['2 ranks full_shard'] = None
        if bar is not None:
            expected.update({'speed of 2 ranks, no_shard and ddp': 2.0, '2 ranks full_shard': 0.97})
        got = {key: limits.get(key) for key in expected}
        wrong += [] if (cpu.name, got) == (name, expected) else [f'{text}: {cpu.name}, {got}']
    wide = cpu_class.torch_capability(set('avx512f avx512bw avx512dq avx512vl'.split()))
    return wrong + ([] if wide and not cpu_class.torch_capability({'avx2', 'avx512f'}) else ['kernels of PyTorch'])


def missed(cpu, seconds):
    """The verdict and the output if Sherd takes `seconds` for PyTorch's 1.0 in bfloat16; nothing else is run."""
    a = types.SimpleNamespace(json=None, trial_steps=5)
    rows, bars = peers.pairs([('tiny', 4, 64)], cpu.bfloat16)
    rows, bars = rows[2:], [bar for bar in bars if 'bfloat16' in bar.name]
    bars = peers.without_bars(rows, bars) if cpu.bfloat16 is None else bars
    torch, sherd = rows[0]._replace(name='t', peer=('python', 'eager fused')), rows[1]
    found = {'t': [dict(made_up([1.0]), torch='2.15', blas=[], reference_blas=False)],
             sherd.name: [dict(made_up([seconds], 50), recompute='none')]}
    choice = torch_runs.Choice([torch, sherd], {rows[0].name: ['t']}, [], {})
    with contextlib.redirect_stdout(io.StringIO()) as out:
        good = peers.report(a, cpu, choice, found, bars)
    return good, out.getvalue()


def class_bars():
    """1.7 times PyTorch: enough without AMX, too little with it. If there is no bar, the figure stands with the
    reason."""
    wrong = []
    for cpu, seconds, expected, words in ((cpu_class.CLASSES[0], 1 / 1.7, False, '>= 2.5   not met, against t\n'),
                                          (cpu_class.CLASSES[1], 1 / 1.7, True, '>= 1.6   met, against t\n'),
                                          (cpu_class.CLASSES[1], 1 / 1.5, False, '>= 1.6   not met, against t\n'),
                                          (cpu_class.CLASSES[2], 2.0, True, '0.500 (0.500 to 0.500)  no bar'),
                                          (cpu_class.CLASSES[3], 2.0, True, cpu_class.WITHOUT_BAR)):
        good, out = missed(cpu, seconds)
        wrong += [] if good == expected and words in out else [f'{cpu.name}: {good}, expected {words}:\n{out}']
    return wrong


def run_recorded(folder, variant):
    """A step of a job: what was compiled, and which AdamW was requested. This PyTorch may have neither."""
    import torch
    graph, optimizer = variant.split()
    tokens, compiled, asked, adamw = folder / 'tokens.bin', [], [], torch.optim.AdamW
    peers.timed.write_tokens(tokens, 2 * 16 + 1, peers.TINY['vocab'])
    wanted = types.SimpleNamespace(**peers.TINY, batch=1, seq=16, steps=1, precision='float32', threads=1, mode='plain',
                                   rank=0, ranks=1, store='', tokens=str(tokens), graph=graph, optimizer=optimizer)

    def note_compile(part, dynamic):
        compiled.append(part.__name__)
        return part

    def note_adamw(parameters, fused=False, foreach=False, **settings):
        asked.append({'fused': fused, 'foreach': foreach})
        return adamw(parameters, **settings)

    with mock.patch.object(torch, 'compile', note_compile, create=True), mock.patch.object(
            torch.optim, 'AdamW', note_adamw), mock.patch.object(
                torch_peer, 'why_not', lambda *asked: ''), contextlib.redirect_stdout(io.StringIO()):
        torch_peer.run(wanted)
    return compiled, asked


def parts_of_variants():
    """A job compiles each block and the loss, or nothing, and updates with the AdamW that it names."""
    folder, wrong = pathlib.Path('parts').absolute(), []
    folder.mkdir()
    for variant in torch_peer.VARIANTS:
        compiled, asked = run_recorded(folder, variant)
        parts = ['forward', 'forward', 'loss_of'] if 'compile' in variant else []
        kind = [{'fused': 'fused' in variant, 'foreach': 'foreach' in variant}]
        wrong += [] if (compiled, asked) == (parts, kind) else [f'{variant}: {compiled}, {asked}']
    return wrong


STUB = """
from types import SimpleNamespace as of
__version__ = '0.9'
zeros, nn = bytes, of(Parameter=list)
def AdamW(parameters, {keys}):
    {fused}
optim = of(AdamW=AdamW)
{compile}
"""


def lacking():
    """A feature that a PyTorch lacks is named, and refused in a job."""
    cannot = 'def compile(part):\n    raise RuntimeError("Python is too new\\n")'
    table = [('fused=False', 'raise RuntimeError', '', 'no fused AdamW', 'no torch.compile'),
             ('foreach=False', 'pass', cannot, 'no fused AdamW', 'cannot compile: Python is too new'),
             ('fused=False', 'pass', 'def compile(part): pass', None, None)]
    wrong = []
    for i, (keys, fused, compiled, no_fused, no_compile) in enumerate(table):
        folder = pathlib.Path(f'stub{i}').absolute()
        folder.mkdir()
        (folder / 'torch.py').write_text(STUB.format(keys=keys, fused=fused, compile=compiled))
        script = [sys.executable, '-B', HERE / 'torch_peer.py']
        env = dict(os.environ, PYTHONPATH=str(folder))
        done = subprocess.run([*script, '--can', 'plain'], capture_output=True, text=True, env=env)
        for variant, why in json.loads(done.stdout or '{"plain": {"no output": ""}}')['plain'].items():
            expected = no_compile if 'compile' in variant else no_fused if 'fused' in variant else None
            expected = expected or (no_fused if 'fused' in variant else None)
            good = expected in why if expected else why == ''
            wrong += [] if good else [f'stub {i}, {variant}: "{why}", expected {expected}; {done.stderr}']
        asked = json.dumps({'mode': 'plain', 'graph': 'eager', 'optimizer': 'fused'})
        done = subprocess.run([*script, '--job', asked], capture_output=True, text=True, env=env)
        if no_fused and done.stderr != f'torch_peer.py: PyTorch 0.9 has {no_fused} for CPUs; 2.4 has\n':
            wrong.append(f'stub {i}, a job: {done.stderr}')
    return wrong


if __name__ == '__main__':
    sys.exit(job.run_cases([('every row of a round', all_rows), ('an interpreter without torch', without_torch),
                            ('bars', verdicts), ('budgets', budgets), ('the BLAS behind PyTorch', blas),
                            ('the strongest peer', strongest_peer), ('the fastest variant', fastest_variant),
                            ('classes of machines', classes), ('bars of a class', class_bars),
                            ('parts of a variant', parts_of_variants), ('what a PyTorch lacks', lacking)]))
