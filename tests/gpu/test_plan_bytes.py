#!/usr/bin/env python3
"""The bytes that the operations of a step move on a GPU, from `sherd plan --show` of the benchmark's models: no pass
moves more than is known of it. A pass that is no longer fused shows as a number. Prints TAP."""
import collections
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / 'gold')]
import job

BYTES = {'bf16': 2, 'f32': 4, 'f64': 8, 'i32': 4, 'i16': 2}
OPERATION = re.compile(r'^ *\d+ +compute +\w+ +(\w+) +(.*)$', re.M)
TENSOR = re.compile(r'\[([0-9,]+)\](\w+?)(?: |$)')
PASSES = {'activations': 'gelu gelu_bwd gelu_bwd_bias swiglu swiglu_bwd',
          'biases': 'bias_bwd',
          'norms': 'norm norm_bwd add add_norm norm_bwd_bias rope',
          'adamw': 'adamw sumsq'}
# GB per step. The first profile, before neighbours were fused, had 22.7 for biases and 45.6 for norms of gpt2-1558m,
# 26.1 for norms of llama3.2-1b and 26.5 for norms of both others; everything else was the same.
MOST = {'gpt2-1558m': {'activations': 50.4, 'biases': 10.2, 'norms': 40.7, 'adamw': 49.9},
        'llama3.2-1b': {'activations': 34.5, 'biases': 0, 'norms': 24.1, 'adamw': 39.6},
        'llama8b-4096': {'activations': 30.2, 'biases': 0, 'norms': 24.4, 'adamw': 89.6},
        'llama8b-8192': {'activations': 30.2, 'biases': 0, 'norms': 24.5, 'adamw': 89.6}}


def moved(text):
    """GB per kind of operation: every operand once, but AdamW's state, which is read and written, twice."""
    found = collections.Counter()
    for kind, operands in OPERATION.findall(text):
        out, _, given = operands.partition('<-')
        sizes = [[BYTES[dtype] * eval(dims.replace(',', '*')) for dims, dtype in TENSOR.findall(side)] for side in (out, given)]
        found[kind] += (sum(sizes[0]) * (2 if kind == 'adamw' else 1) + sum(sizes[1])) / 1e9
    return found


def plan(model):
    """For one GPU that recomputes as the benchmark does, i.e. not at all."""
    bench = job.load_script('tests/gpu/bench')
    m = bench.MODELS[model]
    keys = {bench.KEYS[key]: value for key, value in m.items() if key in bench.KEYS}
    keys.update({'model.tie_word_embeddings': str(m['tied']).lower(), 'model.max_seq_len': m['seq'], 'training.device': 'cuda',
                 'training.mixed_precision_param': 'bfloat16', 'checkpoint.enable': 'false'})
    pathlib.Path('c.yaml').write_text('{}\n')
    return job.sherd('plan', 'c.yaml', '--show', *(f'--{key}={value}' for key, value in keys.items()))


def as_foreseen(model):
    found, wrong = moved(plan(model)), []
    for name, kinds in PASSES.items():
        gb = sum(found[kind] for kind in kinds.split())
        print(f'# {model} {name}: {gb:.1f} GB a step, at most {MOST[model][name]:.1f}')
        if gb > MOST[model][name]:
            wrong.append(f'{name} move {gb:.1f} GB a step, more than {MOST[model][name]:.1f}: {dict(found)}')
    return wrong


if __name__ == '__main__':
    sys.exit(job.run_cases([(model, as_foreseen, model) for model in MOST]))
