#!/usr/bin/env python3
"""Targets that do not count: every mesh divides by the same number of counted targets, however unevenly the ranks have
them, and with training.reproducible: mesh finds the same bits; steps without any are skipped. Prints TAP.

tests/gold/test_torch.py compares a loss over some targets with PyTorch.
"""
import json
import pathlib
import random
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

BATCH, LENGTH, EMPTY = 16, tiny.SEQ_LEN, 4  # EMPTY: the step, counted from 1, in which no target counts
CONFIG = {**tiny.MODELS['llama'], 'training.global_batch_size': BATCH, 'data.shuffle': False, 'data.target_mask': 'must', 'training.z_loss': 0.02,
          'training.reproducible': 'mesh', 'validation.enable': True, 'validation.freq': tiny.STEPS,
          'validation.sequences': 21, 'checkpoint.interval': tiny.STEPS, 'metrics.log_freq': 1}
MESHES = {
    'full_shard over 2': (2, {'parallelism.sharding_strategy': 'full_shard'}),
    'hybrid_shard 2 x 2': (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'mesh.replicate': 2}),
    'no_shard over 4': (4, {'parallelism.sharding_strategy': 'no_shard'}),
    'shard_optim over 8': (8, {'parallelism.sharding_strategy': 'shard_optim'}),
}
NUMBERS = ('loss', 'grad_norm', 'targets', 'tokens', 'skipped', 'head_z_loss')
ROUTERS = ('aux_loss', 'z_loss')
EXPERTS = {**{key: value for key, value in tiny.EXPERTS.items() if key not in CONFIG}, 'model.family': 'qwen2_moe',
           'moe.z_loss_coeff': 0.02, 'training.steps': 3}


def write_mask(path):
    """One token in three counts, in lumps; in the second step only one token, in the fourth none. Returns the number of
    counted tokens in each step."""
    draw = random.Random(3)
    steps = tiny.STEPS * BATCH * LENGTH
    mask = bytearray(draw.random() < (0.6 if i // 40 % 2 else 0.1) for i in range(steps + 1))
    for step, alone in ((2, [100]), (EMPTY, [])):
        begin = (step - 1) * BATCH * LENGTH + 1
        for i in range(begin, begin + BATCH * LENGTH):
            mask[i] = i - begin in alone
    path.write_bytes(bytes(mask))
    return [sum(mask[i + 1:i + 1 + BATCH * LENGTH]) for i in range(0, steps, BATCH * LENGTH)], mask


def train(name, ranks, changes):
    folder = pathlib.Path(name)
    steps = job.train(folder, {**CONFIG, 'training.dataset_path': tokens, 'validation.dataset_path': tokens, **changes}, ranks)
    return folder, steps


def validation(folder):
    lines = map(json.loads, (folder / 'out/metrics.jsonl').read_text().splitlines())
    return [(line['validation_loss'], line['tokens']) for line in lines if 'validation_loss' in line]


def numbers(steps, keys=NUMBERS):
    return [[step.get(key) for key in keys] for step in steps]


def case_counts():
    """Targets count as the mask says, in each step and in the validation set; the token count has all computed
    tokens."""
    wrong = [f'step {i + 1}: {step["targets"]} targets, {step["tokens"]} tokens; expected {right}, {BATCH * LENGTH}'
             for i, (step, right) in enumerate(zip(one[1], counts))
             if step['targets'] != right or step['tokens'] != BATCH * LENGTH]
    (_, tokens_of_validation), = validation(one[0])
    right = sum(mask[1:1 + 21 * LENGTH])
    return wrong + ([] if tokens_of_validation == right else [f'validation over {tokens_of_validation}, expected {right}'])


def case_empty():
    """No loss, no update, no verdict of the guard; the next step is like any other."""
    step, after = one[1][EMPTY - 1], one[1][EMPTY]
    if step['loss'] is not None or step['grad_norm'] is not None or step.get('skipped') != 'no target counts':
        return [f'the empty step says {step}']
    return [] if after['loss'] and not after.get('skipped') else [f'the step after it says {after}']


def case_mesh(mesh):
    ranks, changes = MESHES[mesh]
    folder, steps = train('run', ranks, changes)
    found, right = (numbers(steps), validation(folder)), (numbers(one[1]), validation(one[0]))
    state, right_state = (checkpoint.read(f / f'out/checkpoint/step-{tiny.STEPS:08}.h5') for f in (folder, one[0]))
    shutil.rmtree(folder)
    wrong = [] if found == right else [f'{found}, expected {right}']
    return wrong + [f'{name} differs' for name in right_state if (state[name] != right_state[name]).any()]


def case_experts():
    """Routers see all tokens: what their losses add to the objective depends neither on the mask nor on the mesh."""
    runs = {'one': (1, {}), 'spread': (2, {'parallelism.expert_parallel_degree': 2}), 'apart': (4, {}),
            'plain': (1, {'data.target_mask': 'off'})}
    found = {name: train(f'experts-{name}', ranks, {**EXPERTS, **more})[1] for name, (ranks, more) in runs.items()}
    first = {name: numbers(steps[:1], ROUTERS) for name, steps in found.items()}
    wrong = [f'{name}: {numbers(found[name], NUMBERS + ROUTERS)}, on one rank {numbers(found["one"], NUMBERS + ROUTERS)}'
             for name in ('spread', 'apart') if numbers(found[name], NUMBERS + ROUTERS) != numbers(found['one'], NUMBERS + ROUTERS)]
    return wrong + [f'{name}: losses of routers {values}' for name, values in first.items()
                    if values != first['plain'] or not all(values[0])]


def case_no_mask():
    """auto without a mask trains as before: all targets count, and no line mentions them."""
    _, steps = train('plain', 1, {'data.target_mask': 'off', 'training.steps': 2})
    return [f'{step}' for step in steps if 'targets' in step or step['tokens'] != BATCH * LENGTH]


def case_eval_of_nothing():
    """A validation set in which no target counts has no loss."""
    path = pathlib.Path('late.bin').absolute()
    shutil.copy(tokens, path)
    length = path.stat().st_size // 2
    pathlib.Path(f'{path}.mask').write_bytes(bytes(length - 1) + b'\1')
    try:
        job.sherd('eval', '--checkpoint', one[0] / f'out/checkpoint/step-{tiny.STEPS:08}.h5', '--data', path,
                  '--sequences', 20)
    except job.Failed as failed:
        wanted = 'sherd: error: none of the 20 sequences has a target that counts'
        return [] if wanted in str(failed) and ': exit 3\n' in str(failed) else [str(failed)]
    return ['it has one']


if __name__ == '__main__':
    job.need_launcher()
    job.need_modules('h5py', 'numpy')
    import checkpoint
    tokens = tiny.write_tokens(count=tiny.STEPS * BATCH * LENGTH + 1)
    counts, mask = write_mask(pathlib.Path(tokens + '.mask'))
    one = train('one', 1, {})
    sys.exit(job.run_cases([('targets are counted', case_counts), ('a step without targets', case_empty),
                            *((mesh, case_mesh, mesh) for mesh in MESHES), ('experts', case_experts), ('no mask', case_no_mask),
                            ('eval of nothing', case_eval_of_nothing)]))
