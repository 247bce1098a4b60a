#!/usr/bin/env python3
"""optimizer.ema_decay: the average by its formula, the same bits on every mesh, with every home of the states and after an
interruption; what begins without one; and what reads it. Prints TAP."""
import array
import functools
import itertools
import json
import pathlib
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny
from test_states import new_folder, saved, take_up

DECAY, STEPS = 0.75, 4
NAME = 'model.layers.1.mlp.down_proj.weight'
BF16 = {'training.mixed_precision_param': 'bfloat16'}
INT8 = {'optimizer.state_dtype': 'int8'}
MUON = {'optimizer.name': 'muon'}
VALIDATE = {'validation.enable': True, 'validation.freq': 2, 'validation.sequences': 8, 'validation.ema': True}
NVME = {'offload.optimizer': 'nvme', 'offload.nvme_path': '.'}


def config(changes, model='llama'):
    return {**(tiny.EXPERTS if model == 'experts' else tiny.MODELS[model]), 'training.dataset_path': tokens,
            'training.reproducible': 'mesh', 'training.global_batch_size': 8, 'training.steps': STEPS,
            'optimizer.ema_decay': DECAY, 'checkpoint.interval': STEPS // 2, 'optimizer.lr': 1e-2, **changes}


def values(folder, step, state, name=NAME):
    file = folder / 'x.npy'
    job.sherd('ckpt', 'extract', f'out/checkpoint/step-{step:08d}.h5', name, '--state', state, '-o', file.name, folder=folder)
    data = file.read_bytes()
    return array.array('f', data[10 + struct.unpack('<H', data[8:10])[0]:])


def approaches(folder, step, last, name=NAME):
    """Whether the average of a step follows from that of the step before and the parameters."""
    now, mean = values(folder, step, 'model', name), values(folder, step, 'ema', name)
    off = max(abs(e - (DECAY * e0 + (1 - DECAY) * p)) for e, e0, p in zip(mean, last, now))
    return [] if off <= 1e-6 and list(mean) != list(now) else [f'{name}, step {step}: off by {off:g}']


def case_formula(name, changes, model='llama'):
    """From the first parameters on, which a run at a rate of 0 keeps."""
    folder, still = new_folder(), new_folder()
    job.train(folder, config({**changes, 'checkpoint.interval': 1, 'training.steps': 2}, model))
    job.train(still, config({**changes, 'optimizer.lr': 0, 'checkpoint.interval': 1, 'training.steps': 1}, model))
    first = values(still, 1, 'model', name) if model == 'llama' else [0] * tiny.EXPERTS['model.n_experts']
    wrong = approaches(folder, 1, first, name)
    wrong += approaches(folder, 2, values(folder, 1, 'ema', name), name)
    rests = values(still, 1, 'ema', name) == values(still, 1, 'model', name)
    return wrong + ([] if rests or model != 'llama' else ['parameters that rest have another average'])


@functools.lru_cache(None)
def one_rank(*changes, model='llama'):
    folder = new_folder()
    job.train(folder, config(dict(changes), model))
    return folder


def same(folder, first):
    return [] if saved(folder, STEPS).read_bytes() == saved(first, STEPS).read_bytes() else ['the last checkpoints differ']


def validations(folder):
    lines = map(json.loads, (folder / 'out/metrics.jsonl').read_text().splitlines())
    return [line['validation_loss'] for line in lines if 'validation_loss' in line]


def case_mesh(ranks, strategy, state, changes):
    """Validations of the average too, which change nothing."""
    folder, validated = new_folder(), {**state, **VALIDATE, 'validation.dataset_path': tokens}
    job.train(folder, config({'parallelism.sharding_strategy': strategy, **validated, **changes}), ranks)
    first = one_rank(*validated.items())
    wrong = same(folder, first) + ([] if validations(folder) == validations(first) else ['validations differ'])
    plain = one_rank(*state.items())
    return wrong + [f'{kind} is not as without validation' for kind in ('model', 'ema') if values(folder, STEPS, kind) != values(plain, STEPS, kind)]


def case_validated():
    """What is validated is the average."""
    data = {**VALIDATE, 'validation.dataset_path': tokens}
    folder, other = one_rank(*data.items()), one_rank(*{**data, 'validation.ema': False}.items())
    found, plain = validations(folder), validations(other)
    text, usual = (evaluated(where, *words) for where, words in ((folder, ('--state', 'ema')), (other, ())))
    right = len(found) == 2 and f'loss {found[-1]:.6f} ' in text and f'loss {plain[-1]:.6f} ' in usual and text != usual
    return [] if right else [f'{found} of the average, {plain} of parameters; {text}, {usual} of the checkpoint']


def case_taken_up(ranks):
    folder, _ = take_up_at(one_rank(), config({'parallelism.sharding_strategy': 'full_shard'}), ranks)
    return same(folder, one_rank())


def take_up_at(first, changes, ranks):
    return take_up(first, changes, ranks, STEPS // 2)


def case_begins(ranks):
    """A checkpoint without an average: it begins with the parameters, and one line says so."""
    plain = new_folder()
    job.train(plain, config({'optimizer.ema_decay': 0}))
    folder, said = take_up_at(plain, config({'checkpoint.interval': 1}), ranks)
    line = f'no average was saved, so it begins with the parameters of step {STEPS // 2}'
    wrong = [] if said.count(line) == 1 else [said]
    wrong += approaches(folder, STEPS // 2 + 1, values(plain, STEPS // 2, 'model'))
    wrong += [] if values(plain, STEPS, 'model') == values(folder, STEPS, 'model') else ['the average moves the parameters']
    back, said = take_up_at(one_rank(), config({'optimizer.ema_decay': 0}), 0)
    return wrong + ([] if values(back, STEPS, 'model') == values(plain, STEPS, 'model') and line not in said else ['without it again'])


def evaluated(folder, *words):
    path = f'out/checkpoint/step-{STEPS:08d}.h5'
    return job.sherd('eval', '--checkpoint', path, '--data', tokens, '--sequences', '8', *words, folder=folder).split('  seq')[0]


def case_read():
    """The average as a model: exported, evaluated."""
    folder = one_rank()
    job.sherd('ckpt', 'export', f'out/checkpoint/step-{STEPS:08d}.h5', '--state', 'ema', '-o', 'hf', folder=folder)
    job.sherd('ckpt', 'import', 'hf', '-o', 'back', folder=folder)
    back = folder / 'out/checkpoint/step-00000000.h5'
    (folder / 'back' / back.name).rename(back)
    mean = evaluated(folder, '--state', 'ema')
    wrong = [] if values(folder, 0, 'model') == values(folder, STEPS, 'ema') else ['the folder has other numbers']
    wrong += [] if mean != evaluated(folder) else ['--state ema is ignored']
    there = job.sherd('eval', '--checkpoint', str(back.relative_to(folder)), '--data', tokens, '--sequences', '8',
                      f'--training.seq_len={tiny.SEQ_LEN}', '--training.mixed_precision_param=float32', folder=folder)
    return wrong + ([] if there.startswith(mean) else [f'{mean}, but {there} of the folder'])


def refused(folder, *words):
    done = subprocess.run(job.command(0, list(words)), capture_output=True, text=True, cwd=folder, env=job.environment(0),
                          timeout=job.SECONDS)
    return done.returncode, done.stderr


def case_refused():
    folder = job.prepare(new_folder(), config({'optimizer.ema_decay': 0, 'validation.ema': True}))
    code, said = refused(folder, 'plan', 'c.yaml')
    if code != 2 or 'validation.ema' not in said or 'give optimizer.ema_decay' not in said:
        return [f'{code}: {said}']
    plain = new_folder()
    job.train(plain, config({'optimizer.ema_decay': 0, 'training.steps': 2}))
    path = 'out/checkpoint/step-00000002.h5'
    wrong = []
    for words, wanted in (
            (('eval', '--checkpoint', path, '--data', tokens, '--state', 'ema'), 'has no state ema; it has model, exp_avg'),
            (('ckpt', 'export', path, '-o', 'hf', '--state', 'ema'), 'has no state ema; it has model, exp_avg'),
            (('ckpt', 'export', path, '-o', 'hf', '--state', 'exp_avg'), '--state is model or ema'),
            (('ckpt', 'export', path, '-o', 'hf', '--state', 'ema', '--moments'), 'leave out --state')):
        code, said = refused(plain, *words)
        wrong += [] if code and wanted in said else [f'{words}: {code}, {said}']
    return wrong


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    cases = [('formula', case_formula, NAME, {}), ('formula, bfloat16', case_formula, 'model.norm.weight', BF16),
             ('formula of a router\'s bias', case_formula, 'model.layers.1.mlp.gate.e_score_correction_bias', BF16, 'experts')]
    runs = [(0, 'full_shard', BF16, NVME), (2, 'full_shard', {}, {}), (2, 'no_shard', BF16, {'checkpoint.async_mode': 'async'}),
            (2, 'full_shard', INT8, {}), (4, 'shard_optim', {**BF16, **MUON}, {}),
            (2, 'shard_optim', INT8, {'parallelism.pipeline_parallel_degree': 2}),
            (2, 'full_shard', {'training.mixed_precision_param': 'float16', 'optimizer.name': 'Lion'}, {})]
    cases += [(f'{ranks} ranks, {strategy}, {state}, {more}', case_mesh, ranks, strategy, state, more) for ranks, strategy, state, more in runs
              if ranks == 0 or job.can_launch()]
    ranks = 2 if job.can_launch() else 0
    cases += [('taken up', case_taken_up, ranks), ('begins late', case_begins, ranks), ('read', case_read), ('validated', case_validated), ('refused', case_refused)]
    sys.exit(job.run_cases(cases))
