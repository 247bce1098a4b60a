#!/usr/bin/env python3
"""tests/bench/sweep on a tiny model has a row for each choice, and refuses arguments that it cannot read;
tests/bench/growth recovers the laws of points that follow them; tests/bench/attention has a row for each shape. Prints
TAP."""
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / 'gold'), str(HERE.parent / 'mesh')]  # timed, job, tiny
import job
import tiny

job.need_launcher()
growth = job.load_script('tests/bench/growth')
TINY = [f'{key}={value}' for key, value in tiny.MODELS['gpt2'].items() if key != 'training.steps']


def run(*words):
    launcher = [os.environ['MPIRUN'], *job.launcher.LAUNCHER[os.environ['MPI_KIND']][0]]
    words = [sys.executable, HERE / 'sweep', '--sherd', os.environ['SHERD'], '--mpirun', ' '.join(launcher), *words]
    return subprocess.run(words, capture_output=True, text=True, env=job.environment(2), timeout=2 * job.SECONDS)


def rows():
    done = run('--rounds', '2', '--steps', '4', '--json', 'rows.json', *TINY, 'model.name=custom',
               'training.local_batch_size=1,2', 'ranks=1,2')
    if done.returncode != 0:
        return [f'exit {done.returncode}: {done.stderr}']
    found = json.loads(pathlib.Path('rows.json').read_text())
    names = {f'ranks={ranks} training.local_batch_size={size}' for ranks in (1, 2) for size in (1, 2)}
    wrong = [] if set(found) == names else [f'rows {sorted(found)}']
    for name, row in found.items():
        good = 0 < row['least'] <= row['tokens_per_second'] <= row['most'] and 0 <= row['exposed'] < 1
        good = good and row['peak_mib'] > 5 and f'\n{name} ' in done.stdout
        wrong += [] if good else [f'{name}: {row}\n{done.stdout}']
    return wrong


def refusals():
    wrong = []
    for words, status, text in [(('ranks',), 2, 'ranks: not KEY=VALUE'), (('--steps', '2'), 2, 'more than 2'),
                                (('--rounds', '1', 'no.such_key=1,2'), 1, 'no.such_key')]:
        done = run(*words)
        good = done.returncode == status and text in done.stderr
        wrong += [] if good else [f'{words}: exit {done.returncode}: {done.stderr}']
    return wrong


def laws():
    table = [([1, 2, 4, 8], lambda x: 3 + 2 * x, [0, 1]), ([1, 2, 4, 8], lambda x: 1 + 2 * x + 3 * x * x, [0, 1, 2])]
    wrong = []
    for values, true, powers in table:
        found = growth.law(values, [true(x) for x in values], powers)
        wrong += [f'{powers} at {x}: {found(x)}' for x in (1, 3, 16) if abs(found(x) / true(x) - 1) > 1e-9]
    bent = growth.law([1, 2, 4, 8], [1, 4, 16, 64], [0, 1])
    return wrong + ([] if max(abs(x * x / bent(x) - 1) for x in (1, 2, 4, 8)) > 0.1 else ['a line through a square'])


def shapes():
    """Heads that share keys, a window, documents, and lengths that are not whole blocks."""
    named = '2,1,96,64', '1,1,130,32,40', '1,1,100,64,0,30'
    words = [sys.executable, HERE / 'attention', '--python', 'none', '--rounds', '1', '--cpu', str(min(os.sched_getaffinity(0))),
             '--bench', pathlib.Path(os.environ['SHERD_BUILDDIR'], 'tests/bench/bench_attention').resolve()]
    done = subprocess.run([*words, *named], capture_output=True, text=True, timeout=job.SECONDS)
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    good = tuple(row[0] for row in rows) == named and all(float(x) >= 0 for row in rows for x in row[1:3])
    return [] if done.returncode == 0 and good else [f'exit {done.returncode}: {done.stdout}{done.stderr}']


if __name__ == '__main__':
    sys.exit(job.run_cases([('a row for each choice', rows), ('refusals', refusals), ('laws', laws), ('shapes of attention', shapes)]))
