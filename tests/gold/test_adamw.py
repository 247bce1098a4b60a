#!/usr/bin/env python3
"""Recompute two steps of AdamW from the checkpoints around them, in plain Python. Prints TAP.

exp_avg gives the gradient of a step. exp_avg_sq must come from the same gradient, and the parameters must have moved as
both moments and the learning rate of that step say. So an error in lr, beta1, beta2, eps, weight_decay or decay_all
shows. Algorithm 2 of Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv:1711.05101.
"""
import array
import math
import pathlib
import struct
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / name) for name in ('gold', 'mesh')]
import job
import tiny

LR, BETA1, BETA2, EPS, DECAY, WARMUP = 0.02, 0.7, 0.9, 1e-4, 0.3, 4
CONFIG = {**tiny.MODELS['llama'], 'training.steps': 2, 'lr_scheduler.total_steps': 10,
          'lr_scheduler.warmup_steps': WARMUP, 'optimizer.lr': LR, 'optimizer.beta1': BETA1, 'optimizer.beta2': BETA2,
          'optimizer.eps': EPS, 'optimizer.weight_decay': DECAY, 'checkpoint.interval': 1,
          'checkpoint.create_seed_checkpoint': True}
MATRIX, NORM = 'model.layers.1.mlp.down_proj.weight', 'model.norm.weight'
BOUND = 2e-5  # relative: float32 after a few rounded operations


def values(folder, step, tensor, state):
    file = folder / 'x.npy'
    job.sherd('ckpt', 'extract', f'out/checkpoint/step-{step:08d}.h5', tensor, '--state', state, '-o', file.name,
              folder=folder)
    data = file.read_bytes()
    header = 10 + struct.unpack('<H', data[8:10])[0]
    file.unlink()
    return array.array('f', data[header:])


def near(found, wanted, size):
    return abs(found - wanted) <= BOUND * max(abs(wanted), size)


def judge_element(step, before, after, decay):
    """`before`, `after`: (parameter, exp_avg, exp_avg_sq)."""
    (w, m, v), (w_new, m_new, v_new) = before, after
    grad = (m_new - BETA1 * m) / (1 - BETA1)
    if not near(v_new, BETA2 * v + (1 - BETA2) * grad * grad, 1e-3 * abs(v_new)):
        return f'exp_avg_sq is {v_new}, the gradient is {grad}'
    move = m_new / (1 - BETA1 ** step) / (math.sqrt(v_new / (1 - BETA2 ** step)) + EPS) + decay * w
    wanted = w - LR * step / WARMUP * move
    return None if near(w_new, wanted, 1e-2) else f'the parameter is {w_new}, not {wanted}'


def judge_step(folder, step, tensor, decay):
    states = [list(zip(*(values(folder, at, tensor, state) for state in ('model', 'exp_avg', 'exp_avg_sq'))))
              for at in (step - 1, step)]
    wrong = [judge_element(step, before, after, decay) for before, after in zip(*states)]
    told = [f'step {step}, {tensor}, element {i}: {why}' for i, why in enumerate(wrong) if why]
    return told[:3] if len(wrong) > 10 else [f'{tensor} has {len(wrong)} elements']


def case(decay_all):
    folder = pathlib.Path(f'decay_all.{decay_all}')
    job.train(folder, {**CONFIG, 'training.dataset_path': tokens, 'optimizer.decay_all': decay_all})
    return [line for step in (1, 2) for tensor, decay in ((MATRIX, DECAY), (NORM, DECAY if decay_all else 0))
            for line in judge_step(folder, step, tensor, decay)]


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases([(f'decay_all={decay_all}', case, decay_all) for decay_all in (False, True)]))
