"""PyTorch's side of tests/bench/peers: runs of torch_peer.py, and the choice of the variant that is fastest here.

A peer is an interpreter with its PyTorch. Each takes part in every row with the variant that was the fastest in short
trials of that row on this machine, and bars are judged against the fastest peer. A variant that a PyTorch lacks, or
that fails in its trial (no C++ compiler, for instance), is left out with the reason.
"""
import collections
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

import cpu_class
import timed
import torch_peer

SCRIPT = pathlib.Path(__file__).resolve().parent / 'torch_peer.py'
# Freed memory is kept. Code is compiled inside the process: workers would take additional cores and memory.
TUNED = {'MALLOC_MMAP_MAX_': '0', 'MALLOC_TRIM_THRESHOLD_': '-1', 'MALLOC_TOP_PAD_': '268435456',
         'GLOO_SOCKET_IFNAME': 'lo', 'TORCHINDUCTOR_COMPILE_THREADS': '1'}
ERROR = re.compile(r'[A-Za-z_][\w.]*(Error|Exception|Failed|NotFound)\b.*: ')

# `torch`: its version; None if nothing ran. `speeds`: tokens/s of the variants that ran; `left_out`: the reasons for
# the others. `chosen`: the fastest, or None.
Trial = collections.namedtuple('Trial', 'row python torch speeds left_out chosen')
# Found by choose(): the rows, where the rows of all peers replace each row of PyTorch without a peer; the names of
# these, by its name; trials; rows without any variant, with the reason.
Choice = collections.namedtuple('Choice', 'rows rivals trials left_out')


class Failed(Exception):
    """A run of PyTorch did not end as it should; one line says why."""


def reason_in(text):
    """The line of an output on stderr that says what went wrong: the last that names an error, or the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.match(line)]
    return (errors or lines or ['no reason given'])[-1][:200]


def what_lacks(python, modes):
    """For each mode, reasons by variant; '' if it can be tried."""
    try:
        done = subprocess.run([python, str(SCRIPT), '--can', *modes], capture_output=True, text=True)
    except OSError as error:
        return dict.fromkeys(modes, dict.fromkeys(torch_peer.VARIANTS, error.strerror))
    if done.returncode != 0:
        return dict.fromkeys(modes, dict.fromkeys(torch_peer.VARIANTS, reason_in(done.stderr)))
    return json.loads(done.stdout.splitlines()[-1])


def run(python, variant, row, model, steps, folder, tokens):
    """The last line of rank 0, without the warm-up steps."""
    store = folder / 'store'
    store.unlink(missing_ok=True)
    graph, optimizer = variant.split()
    job = dict(model, batch=row.batch // row.ranks, seq=row.seq, steps=steps, precision=row.precision,
               threads=row.threads, mode=row.how, ranks=row.ranks, store=str(store), tokens=str(tokens), graph=graph,
               optimizer=optimizer)
    env = dict(os.environ, **TUNED, **cpu_class.torch_capability(cpu_class.machine_flags()),
               OMP_NUM_THREADS=str(row.threads), TORCHINDUCTOR_CACHE_DIR=str(folder / 'inductor'))
    ranks = [subprocess.Popen([python, str(SCRIPT), '--job', json.dumps(dict(job, rank=rank))],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
             for rank in range(row.ranks)]
    outputs = [rank.communicate() for rank in ranks]
    for rank, (_, why) in zip(ranks, outputs):
        if rank.returncode != 0:
            raise Failed(f'exit {rank.returncode}: {reason_in(why)}')
    found = json.loads(outputs[0][0].splitlines()[-1])
    return dict(found, seconds=found['seconds'][timed.WARM_UP:])


def try_variants(python, row, lacks, run_once):
    """A trial of each variant that this PyTorch has, in turn; run_once(variant) runs it once."""
    speeds, left_out, version = {}, {}, None
    for variant in torch_peer.VARIANTS:
        if lacks[variant]:
            left_out[variant] = lacks[variant]
            continue
        try:
            found = run_once(variant)
        except Failed as error:
            left_out[variant] = str(error)
            continue
        version = found['torch']
        speeds[variant] = row.batch * row.seq / statistics.median(found['seconds'])
        print(f'trial: {row.name} {version}, {variant}: {speeds[variant]:.1f} tokens/s', file=sys.stderr, flush=True)
    return Trial(row.name, python, version, speeds, left_out, max(speeds, key=speeds.get, default=None))


def name_of(trial, taken):
    """The name of a trial's row; two interpreters may have the same PyTorch."""
    name = f'{trial.row} {trial.torch}, {trial.chosen}'
    return f'{name} of {trial.python}' if name in taken else name


def reasons(trial):
    """The reasons of all variants; equal ones once."""
    each = sorted(set(trial.left_out.values()))
    return f'{trial.python}: {"; ".join(each)}'


def choose(rows, pythons, run_once):
    """Trials of all rows of PyTorch; run_once(python, variant, row) runs one, or raises Failed."""
    modes = sorted({row.how for row in rows if row.who == 'torch'})
    lacks = {python: what_lacks(python, modes) for python in pythons if modes}
    choice = Choice([], {}, [], {})
    for row in rows:
        if row.who != 'torch':
            choice.rows.append(row)
            continue
        choice.rivals[row.name] = []
        for python in pythons:
            trial = try_variants(python, row, lacks[python][row.how], lambda variant: run_once(python, variant, row))
            choice.trials.append(trial)
            if trial.chosen is None:
                choice.left_out.setdefault(row.name, []).append(reasons(trial))
                continue
            name = name_of(trial, choice.rivals[row.name])
            choice.rivals[row.name].append(name)
            choice.rows.append(row._replace(name=name, peer=(python, trial.chosen)))
    return choice


def print_trials(trials, steps):
    """The variants that were tried, with a * at the one that the rounds take; then those left out, with the reason."""
    if not trials:
        return
    names = [f'{trial.row} {trial.torch or trial.python}' for trial in trials]
    width = max(len(name) for name in names)
    print(f'PyTorch in trials of {steps} steps, tokens/s; * the fastest, which the rounds take')
    print(' ' * width + ''.join(f' {variant:>16}' for variant in torch_peer.VARIANTS))
    for name, trial in zip(names, trials):
        figures = [f"{trial.speeds[variant]:.1f}{'*' if variant == trial.chosen else ' '}" if variant in trial.speeds
                   else '- ' for variant in torch_peer.VARIANTS]
        print(f'{name:{width}}' + ''.join(f' {figure:>16}' for figure in figures))
    for name, trial in zip(names, trials):
        for variant, why in trial.left_out.items() if trial.chosen else ():
            print(f'left out: {name}, {variant}: {why}')
