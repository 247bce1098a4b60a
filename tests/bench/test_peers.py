#!/usr/bin/env python3
"""tests/bench/peers on a tiny model: both sides train on the same, every figure is there, bars are judged as they say.
Its speeds mean nothing. Prints TAP."""
import json
import math
import os
import pathlib
import subprocess
import sys
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / 'gold')]  # timed, job
import job

job.need_launcher()
job.need_modules('torch')
peers = job.load_script('tests/bench/peers')
torch_peer = job.load_script('tests/bench/torch_peer.py')
LEARNED = 0.1  # both start near log(vocab), from other numbers


def run(*words, python=sys.executable):
    launcher = [os.environ['MPIRUN'], *job.launcher.LAUNCHER[os.environ['MPI_KIND']][0]]
    env = dict(job.environment(2), PYTHON=python)
    return subprocess.run([sys.executable, HERE / 'peers', '--quick', '--sherd', os.environ['SHERD'], '--mpirun',
                           ' '.join(launcher), *words], capture_output=True, text=True, env=env, timeout=2 * job.SECONDS)


def judge_row(name, runs):
    """A round of 6 steps, of which 4 count."""
    found = runs[0]
    first, expected = found['losses'][0], math.log(peers.TINY['vocab'])
    whole = len(runs) == 1 and len(found['seconds']) == 4 and min(found['seconds']) > 0
    wrong = [] if whole else [f'{name}: {found}']
    wrong += [] if found['peak_bytes'] > 10 << 20 else [f"{name}: peak of {found['peak_bytes']} bytes"]
    near = abs(first - expected) < LEARNED
    return wrong + ([] if near else [f'{name}: first loss {first}, expected about {expected}'])


def all_rows():
    done = run('--json', 'all.json')
    if done.returncode != 0:
        return [f'exit {done.returncode}: {done.stderr}']
    found = json.loads(pathlib.Path('all.json').read_text())
    wrong = [line for name, runs in found['rows'].items() for line in judge_row(name, runs)]
    count = len(found['rows']) + len(found['left_out'])
    wrong += [] if count == 20 and len(found['rows']) >= 19 else [f"{count} rows, left out: {found['left_out']}"]
    for name in found['bars']:
        wrong += [] if f'\n{name} ' in done.stdout else [f'no line for {name} in:\n{done.stdout}']
    return wrong


def without_torch():
    """An interpreter that finds no packages: its rows are left out with the reason, and a verdict cannot be good."""
    bare = pathlib.Path('bare-python').absolute()
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    done = run('--only', 'tiny B=4 T=64 float32', '--judge', python=str(bare))
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
        v = peers.judge(peers.Bar(kind, kind, 'a', 'b', limit), found)
        got = [v['value'], v['least'], v['most'], v['met']]
        if any(abs(x - y) > 1e-12 for x, y in zip(got, expected)):
            wrong.append(f'{kind} against {limit}: {got}, expected {expected}')
    return wrong


def budgets():
    """Six tenths of what PyTorch had last, less 56 MiB; what cannot be met is said, and all is recomputed."""
    rows = {row.name: row for row in peers.pairs([('tiny', 4, 64)])[0]}
    row, torch = rows['tiny B=4 T=64 float32, sherd'], 'tiny B=4 T=64 float32, torch'
    got = peers.budget_of(row, {torch: [made_up([], 1 << 30), made_up([], 120 << 20)]})
    wrong = [] if got == 16 << 20 and peers.budget_of(row, {}) is None else [f'a budget of {got} bytes']
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


if __name__ == '__main__':
    sys.exit(job.run_cases([('every row of a round', all_rows), ('an interpreter without torch', without_torch),
                            ('bars', verdicts), ('budgets', budgets), ('the BLAS behind PyTorch', blas)]))
