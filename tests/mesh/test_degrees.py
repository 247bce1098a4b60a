#!/usr/bin/env python3
"""Degrees of all axes together: each product is planned for all its ranks, or refused in lines that say which degree or
setting would do. Prints TAP.

Degrees are 1, 2 and 4, on up to 64 ranks, and 3, which divides little. What a refusal gives is tried, until a plan is made. SHERD_LONG=1 plans all products, otherwise a sample; SHERD_TEST_FEW=1 a third of that.
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
ROUNDS = 6  # of cures that lead to other refusals
# Of dense models: degrees whose product does not divide the ranks, or not those that shard. A degree that the ranks take need
# not divide the heads: 6 of 12 ranks, of 8 heads.
MISFITS = [(12, {'tensor': 8}), (6, {'tensor': 4}), (12, {'context': 8}), (24, {'tensor': 2, 'context': 8}), (24, {'tensor': 8, 'context': 2}),
           (12, {'pipeline': 8}), (24, {'tensor': 8, 'pipeline': 2}), (48, {'tensor': 8, 'context': 4, 'pipeline': 4}),
           (20, {'context': 8, 'pipeline': 2}), (12, {'tensor': 5}), (7, {'tensor': 2, 'pipeline': 3})]
SPREAD_MISFITS = [(12, {'expert': 8}), (24, {'expert': 8, 'tensor': 2}), (24, {'expert': 4, 'context': 4}), (12, {'expert': 8, 'context': 2})]
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


def misfit(ranks, degrees, strategy):
    return {**{f'parallelism.{axis}_parallel_degree': n for axis, n in degrees.items()}, 'parallelism.sharding_strategy': strategy,
            'mesh.ranks': ranks, 'training.global_batch_size': ranks}


def misfits(model):
    return [misfit(*row, strategy) for row in MISFITS + SPREAD_MISFITS * ('model.n_experts' in MODELS[model])
            for strategy in (('shard_optim', 'full_shard') if row[1].get('pipeline', 1) == 1 else ('shard_optim',))]


def alike(said):
    return [re.sub(r'\d+', 'N', line) for line in said]


def plan(file, keys):
    done = subprocess.run([os.environ['SHERD'], 'plan', file, '--check', *(f'--{key}={value}' for key, value in keys.items())],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode, done.stdout, [line.removeprefix('sherd: error: ') for line in done.stderr.splitlines()]


def follow(said, keys, leaves):
    """What a refusal gives instead, as keys and values; None: a key is to be left out, if it says so anywhere or, without
    `leaves`, at its end. Nothing: it gives words."""
    key = re.match(r'(?:--|mesh: )?([a-z_]+\.[a-z_]+)', said)
    cure = CURE.search(said)[1]
    out = re.search(r'\bleave (?:it out|out ([a-z_]+\.[a-z_]+))' + ('' if leaves else r'(?!.*\bgive\b)'), said)
    given = re.findall(r'([a-z_]+\.[a-z_]+)(?:=| of | )(\w+)', cure)
    numbers = re.match(r'(?: one of| at most|[^:]*:)? ?([\d, ]*\d)\b(?: or \d+ (ranks))?', cure)
    word = re.match(r' (\w+)', cure)
    if out and (out[1] or key):
        return {out[1] or key[1]: None}
    if given and not cure.startswith((' it', ' one of them')):
        return dict(given if all(f'{name}={value}' in cure for name, value in given) else given[:1])
    if key and word and word[1] in STRATEGIES:
        return {key[1]: word[1]}
    if not numbers or not (key or numbers[2]):
        return {}
    name = 'mesh.ranks' if numbers[2] else 'training.global_batch_size' if cure.startswith(' global_batch_size') else key[1]
    found = list(map(int, numbers[1].split(', ')))
    return {name: max([n for n in found if n < int(keys.get(name, 0))], default=found[0])}


def walk(file, keys, leaves, kinds):
    """Cures are followed until the plan is made, or a cure is in words that this test does not know. Nothing is said twice, and
    a degree that the mesh gives is refused for nothing else."""
    heard = []
    while len(heard) < ROUNDS:
        code, out, said = plan(file, keys)
        if code == 0:
            kinds['planned, as it was advised' if heard else 'planned'] += 1
            return heard, [] if 'ranks agree: ' in ' '.join(out.split()) else [f'{keys}: nothing is checked: {out}']
        kinds.update(alike(said))
        if code != 2 or not said or not all(map(CURE.search, said)):
            return heard, [f'{keys}: exit {code}: {said}']
        cures = [follow(line, keys, leaves) for line in said]
        again = any(line in before for before in heard for line in said)
        given = [found[1] for line in (heard[-1] if heard else []) if (found := re.match(r'mesh: (\S+)=\d+ does not', line))]
        again |= any(f'--{key}: ' in line for key in given for line in said)
        heard.append(said)
        if again:
            break
        if not all(cures):
            return heard, []
        keys = {name: value for name, value in (keys | {k: v for cure in cures for k, v in cure.items()}).items() if value is not None}
    return heard, ['\n  then '.join(map(str, [*heard, keys]))]


def judge(file, keys, kinds):
    heard, wrong = walk(file, keys, True, kinds)
    if any(' leave ' in line and ' give ' in line for said in heard for line in said):
        wrong += walk(file, keys, False, kinds)[1]
    return wrong


def case(model):
    file = pathlib.Path(f'{model.replace(" ", "-")}.yaml')
    file.write_text(job.yaml({key: value for key, value in MODELS[model].items() if value is not None}))
    kinds, wrong = collections.Counter(), []
    for product in of(model):
        wrong += judge(file, words_of(*product), kinds)
    for keys in misfits(model):
        wrong += judge(file, keys, kinds)
    for said, n in kinds.most_common():
        print(f'# {n:5} {said}', flush=True)
    return wrong + ['nothing is planned'] * (not kinds['planned'])


if __name__ == '__main__':
    sys.exit(job.run_cases([(name, case, name) for name in MODELS]))
