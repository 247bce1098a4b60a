#!/usr/bin/env python3
"""training.measure_products on emulated GPUs, where one of cuBLASLt's answers is fast and the others are slow: which
one is chosen, that all ranks use it and keep it after a restart, and what happens to a file that does not fit this
run. Prints TAP.

Only in a build that was configured --with-cuda=emulated.
"""
import contextlib
import functools
import json
import os
import pathlib
import re
import subprocess
import sys

from trains import CUDA, EVEN, MESHES, SPREAD, config, job, tiny

MORE = {'training.measure_products': True, 'checkpoint.interval': 1}


@contextlib.contextmanager
def environment(**values):
    os.environ.update({f'SHERD_EMULATED_{name}': str(value) for name, value in values.items()})
    try:
        yield
    finally:
        for name in values:
            del os.environ[f'SHERD_EMULATED_{name}']


def train(folder, mesh, steps, model='llama', **more):
    """Continue in the folder; return the output."""
    ranks, axes = {**MESHES, **SPREAD}[mesh]
    settings = {'job.dump_folder': 'out', **config(model, **CUDA, **axes, **MORE, **more), 'training.steps': steps,
                'lr_scheduler.total_steps': 8}
    (pathlib.Path(folder) / 'c.yaml').write_text(job.yaml(settings))
    done = subprocess.run(job.command(ranks, ['train', 'c.yaml']), cwd=folder, capture_output=True, text=True,
                          env=job.environment(ranks), timeout=job.SECONDS, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise job.Failed(f'exit {done.returncode}: {done.stderr}')
    return done.stderr


def products(folder):
    """The file's text, and which answers it has."""
    text = (pathlib.Path(folder) / 'out/products.txt').read_text()
    return text, [line.split()[0] for line in text.splitlines()[2:-1]]


def says(what, said):
    return [] if re.search(what, said, re.M) else [f'nobody says "{what}":', said]


def mostly(which, chosen):
    """A clock on a busy machine may be wrong now and then."""
    found = chosen.count(which)
    return [] if 2 * found > len(chosen) else [f'answer {which} is the fastest, but chosen are {chosen}']


def takes_the_fastest():
    job.prepare('fast', {})
    with environment(LT_FASTEST=2):
        said = train('fast', '1x1', 1)
    text, chosen = products('fast')
    wrong = says(r'^products of \d+ shapes measured in .* faster for \d+ of them$', said) + mostly('2', chosen)
    with environment(LT_FASTEST=1):
        said = train('fast', '1x1', 2)
    return wrong + ([] if products('fast')[0] == text and 'measured' not in said else ['measured anew after a restart', said])


def on_all_ranks():
    """In a start that measures nothing, all ranks run the same number of products with kernels other than the first."""
    job.prepare('ranks', {})
    with environment(LT_FASTEST=1):
        train('ranks', '2x2', 1)
    with environment(COUNTERS=pathlib.Path('counters').absolute()):
        train('ranks', '2x2', 2)
    other = [json.loads(line)['other_products'] for line in pathlib.Path('counters').read_text().splitlines()]
    other = [n for n in other if n]
    return [] if len(other) == 4 and len(set(other)) == 1 else [f'by other kernels: {other} products']


def other_files():
    """Damaged, of another library, for other shapes, and not a file: measured again, with the reason; the next start
    reads it."""
    job.prepare('other', {})
    train('other', '1x1', 1)
    path, wrong = pathlib.Path('other/out/products.txt'), []
    good = path.read_text()
    for damage in (good[:-30], good.replace('\n0 ', '\n1 ', 1), good.replace('\n1 ', '\n7 ', 1) + 'x', '', '\0' * 100):
        path.write_text(damage)
        wrong += says('products.txt is measured again: it is damaged$', train('other', '1x1', 1))
    with environment(LT_VERSION=120000):
        wrong += says('measured again: it is for another GPU or another library$', train('other', '1x1', 1))
    wrong += says('measured again: it is for another GPU or another library$', train('other', '1x1', 1))
    said = train('other', '1x1', 1, **{'training.local_batch_size': 2})
    wrong += says('measured again: it lacks a product of this run$', said)
    said = train('other', '1x1', 1, **{'training.local_batch_size': 2})
    return wrong + (['measured anew although nothing changed', said] if 'measured' in said else [])


def refused():
    """A product that cuBLASLt has no kernel for has one answer, which is kept like the others."""
    job.prepare('refused', {})
    with environment(LT_REFUSE='all none', LT_FASTEST=1):
        train('refused', '1x2', 1)
        text, chosen = products('refused')
        said = train('refused', '1x2', 2)
    return ([] if chosen and set(chosen) == {'0'} else [f'chosen are {chosen}']) + (
        [] if products('refused')[0] == text and 'measured' not in said else ['measured anew after a restart', said])


# Widths that tensor cores take; a version of cuBLASLt that has grouped products.
EXPERTS = {**EVEN, 'training.mixed_precision_param': 'bfloat16'}
GROUPED = 130601


def by_experts(folder):
    """The answers for products of experts; 0 is Sherd's kernel."""
    return [line.split()[0] for line in products(folder)[0].splitlines() if ' expert_linear' in line]


def losses(folder):
    lines = (json.loads(line) for line in (pathlib.Path(folder) / 'out/metrics.jsonl').read_text().splitlines())
    return [line['loss'] for line in lines if 'loss' in line]


OLD = r'this cuBLASLt has no grouped products, or wrong ones; a kernel of Sherd computes it'
WAYS = {'own': ({'LT_VERSION': GROUPED, 'LT_REFUSE': 'grouped none'}, r'cuBLASLt has no kernel for it; a kernel of Sherd', '0'),
        'old': ({'LT_VERSION': 130600}, OLD, '0'),
        'broken': ({'LT_VERSION': 130800}, OLD, '0'),
        'grouped': ({'LT_VERSION': GROUPED, 'LT_FASTEST': 1}, r'^products of \d+ shapes measured', '2')}


def experts(mesh, names):
    """Grouped products of the library where they are the fastest; Sherd's kernel where the library has none, or wrong
    ones. Both train alike, and the first failure ends the run."""
    wrong = []
    for name in names:
        values, what, which = WAYS[name]
        job.prepare(name, {})
        with environment(**values):
            said = train(name, mesh, 1, model='experts', **EXPERTS)
        wrong += says(what if name == 'grouped' else f'expert_linear.*: {what}', said) + mostly(which, by_experts(name))
    with environment(LT_VERSION=GROUPED, LT_FAIL=2):
        try:
            train('grouped', mesh, 2, model='experts', **EXPERTS)
            wrong.append('trained on, although a grouped product failed')
        except job.Failed as failed:
            wrong += says(r'enqueuing \w+ layers\.\d+\S* expert_linear\w*: cuBLASLt refuses to run expert_linear\w* \[.*\] of '
                          r'\d+ rows', str(failed))
    return wrong + job.differ('losses', losses('grouped')[:1], losses(names[0])[:1], 1e-2)


def no_file():
    """Without a place to keep the answers a restart would give different bits."""
    job.prepare('blocked', {})
    pathlib.Path('blocked/out/products.txt').mkdir(parents=True)
    try:
        train('blocked', '1x2', 1)
    except job.Failed as failed:
        return says('products.txt', str(failed))
    return ['trained, although the choice could not be kept']


def main():
    job.need_emulated_gpus()
    tiny.write_tokens()
    return job.run_cases([
        ('the fastest is taken, and again after a restart', takes_the_fastest),
        ('the same on all ranks', on_all_ranks),
        ('files that are not of this run', other_files),
        ('products without a kernel of the library', refused),
        ('experts, by Sherd or grouped by the library', functools.partial(experts, '1x1', ['old', 'broken', 'grouped'])),
        ('the same in waves', functools.partial(experts, 'two', ['own', 'grouped'])),
        ('no place for the file', no_file)])


if __name__ == '__main__':
    sys.exit(main())
