#!/usr/bin/env python3
"""Degrees of all axes together: each product is planned for all its ranks, or refused in lines that say which degree or
setting would do. Prints TAP.

Degrees are 1, 2 and 4, on up to 64 ranks, and 3, which divides little. Where a refusal gives a number, that is tried: what
comes then is another answer. SHERD_LONG=1 plans all products, otherwise a sample; SHERD_TEST_FEW=1 a third of that.
"""
import collections
import itertools
import math
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

AXES = ('tensor', 'context', 'pipeline', 'expert')
DENSE = {**tiny.MODELS['llama'], 'model.dim': 64, 'model.n_layers': 8, 'model.n_heads': 8, 'model.n_kv_heads': 8, 'model.ffn_dim': 64,
         'model.vocab_size': 101, 'training.seq_len': 32, 'model.max_seq_len': 32, 'training.local_batch_size': 1}
MODELS = {
    'dense': DENSE,
    'tied': {**DENSE, 'model.tie_word_embeddings': True},
    'few key-value heads': {**DENSE, 'model.n_kv_heads': 2},
    'experts': {**DENSE, 'model.family': 'mixtral', 'model.n_experts': 8, 'model.n_experts_per_token': 2, 'model.expert_ffn_dim': 8,
                'model.n_kv_heads': 4, 'model.ffn_dim': None},
}
STRATEGIES = ('no_shard', 'shard_optim', 'shard_grad_op', 'full_shard', 'hybrid_shard', 'hybrid_shard_zero2')
BITS = ('none', 'mesh')
CURE = re.compile(r'\b(?:give|choose|leave|nearest|shard over|(?=\d+ does$))(?!.*\b(?:give|choose|leave)\b)(.*)')
SAMPLE = 1 if os.environ.get('SHERD_LONG') else 311 if job.FEW else 101


def products():
    """tensor, context, pipeline, expert, and beside them shards and replicas."""
    found = [sizes for sizes in itertools.product((1, 2, 4), repeat=6) if math.prod(sizes) <= 64]
    odd = [tuple(3 if i == at else 2 - i % 2 for i in range(6)) for at in range(6)]
    return (list(itertools.product(found, STRATEGIES, BITS))[::SAMPLE]
            + list(itertools.product(odd, ('shard_optim', 'full_shard', 'hybrid_shard'), BITS))[::min(SAMPLE, 5 if job.FEW else 1)])


def of(model):
    """A product with experts over ranks says nothing new of a model without any."""
    return [product for product in products() if product[0][3] == 1 or 'model.n_experts' in MODELS[model] or product[0][3] == 3]


def words_of(sizes, strategy, bits):
    shard = sizes[1] * sizes[3] * sizes[4]
    keys = {f'parallelism.{axis}_parallel_degree': n for axis, n in zip(AXES, sizes) if n > 1}
    keys |= {'parallelism.sharding_strategy': strategy, 'training.reproducible': bits}
    if 'hybrid' in strategy:
        keys |= {'mesh.shard': shard, 'mesh.replicate': sizes[5]}
    rows = sizes[3] * sizes[4] * sizes[5]  # of which each has its own sequences
    micros = 1 if bits == 'mesh' and sizes[1] > 1 else sizes[2]
    return {**keys, 'mesh.ranks': math.prod(sizes), 'training.global_batch_size': rows * micros}


def alike(said):
    return [re.sub(r'\d+', 'N', line) for line in said]


def plan(file, keys):
    done = subprocess.run([os.environ['SHERD'], 'plan', file, '--check', *(f'--{key}={value}' for key, value in keys.items())],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode, done.stdout, [line.removeprefix('sherd: error: ') for line in done.stderr.splitlines()]


def follow(said):
    """What a refusal gives instead, as keys and values; none: it gives words."""
    cure = CURE.search(said)[1]
    given = re.findall(r'([a-z_]+\.[a-z_]+)[= ](\w+)', cure)[:2 if 'mesh.shard=' in cure else 1]
    key = re.match(r'(?:--|mesh: )?([a-z_]+\.[a-z_]+)', said)
    number = re.search(r'^(?: one of| at most)? ?(?:[\d, ]*, )?(\d+)\b', cure)
    if given and not cure.startswith((' it', ' out', ' one of them')):
        return dict(given)
    return {key[1]: number[1]} if key and number else {}


def judge(file, keys, kinds):
    code, out, said = plan(file, keys)
    if code == 0:
        kinds['planned'] += 1
        return [] if 'ranks agree: ' in ' '.join(out.split()) else [f'{keys}: nothing is checked: {out}']
    kinds.update(alike(said))
    if code != 2 or not said or not all(map(CURE.search, said)):
        return [f'{keys}: exit {code}: {said}']
    other = dict(pair for line in said for pair in follow(line).items())
    code, _, again = plan(file, {**keys, **other}) if other else (0, '', [])
    same = set(alike(said)) & set(alike(again)) if len(other) == len(said) else ()
    return [f'{said}\n  which ends, with {other}, in: {again}'] if same or code not in (0, 2) else []


def case(model):
    file = pathlib.Path(f'{model.replace(" ", "-")}.yaml')
    file.write_text(job.yaml({key: value for key, value in MODELS[model].items() if value is not None}))
    kinds, wrong = collections.Counter(), []
    for product in of(model):
        wrong += judge(file, words_of(*product), kinds)
    for said, n in kinds.most_common():
        print(f'# {n:5} {said}', flush=True)
    return wrong + ['nothing is planned'] * (not kinds['planned'])


if __name__ == '__main__':
    sys.exit(job.run_cases([(name, case, name) for name in MODELS]))
