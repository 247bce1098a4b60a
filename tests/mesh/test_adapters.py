#!/usr/bin/env python3
"""Adapters with every strategy, with and without shared memory, with activations recomputed, saved in the background,
and resumed on another mesh, with experts on several ranks too: with training.reproducible=mesh the checkpoint has the
same bytes as one rank's. Prints TAP.
"""
import filecmp
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

STEPS = 3
HYBRID = {'mesh.shard': 2, 'mesh.replicate': 2}
UPPER = 'parameters (upper halves, bf16)'
ARENA = r'arena: all that is allocated\S*(?: on it)? +(\d+)'
APART = {'comm.shared_memory': 'off'}
# Matrices of experts and of adapters are whole blocks of 64 elements: their squares add up to the same norm in any unit.
MODELS = {**tiny.MODELS, 'experts': {**tiny.EXPERTS, 'model.n_experts': 8, 'model.dim': 32, 'model.n_heads': 4,
                                     'model.head_dim': 8, 'model.expert_ffn_dim': 8, 'model.shared_ffn_dim': 8}}
MODELS['experts in columns'] = {key: value for key, value in {**MODELS['experts'], **tiny.OSS}.items() if value is not None}
# Adapters leave the biases of routers as they are.
STACKS = {'experts': {'lora.rank': 8, 'lora.target_parameters': 'gate_up_proj,experts.down_proj', 'moe.load_balance_coeff': 0,
                      'model.router_bias': True}}
STACKS['experts in columns'] = STACKS['experts']
ALONE = {'lora.target_modules': '', 'lora.target_parameters': 'down_proj'}
EP, CAPACITY = 'parallelism.expert_parallel_degree', 'moe.capacity_factor'
CASES = {
    'no_shard': (4, {}), 'no_shard, nothing shared': (4, APART), 'shard_optim': (2, APART), 'shard_grad_op': (4, APART),
    'full_shard': (4, APART), 'full_shard, a node': (4, {}),
    'full_shard, resharded over 2': (4, {**APART, 'parallelism.reshard_after_forward': 2}),
    'hybrid_shard': (4, {**HYBRID, **APART}), 'hybrid_shard_zero2': (4, HYBRID),
    'full_shard, all recomputed': (2, {'activation_checkpoint.mode': 'full', 'checkpoint.async_mode': 'async'}),
    'full_shard, some recomputed': (2, {'activation_checkpoint.mode': 'selective', **APART}),
}
SPREAD = {
    'full_shard, 2 of 2': (2, {EP: 2}),
    'full_shard, 2 of 4, small waves, all recomputed': (4, {EP: 2, CAPACITY: 1, **APART, 'activation_checkpoint.mode': 'full'}),
    'full_shard, 4 of 4, some recomputed': (4, {EP: 4, 'activation_checkpoint.mode': 'selective'}),
    'shard_grad_op, 2 of 4': (4, {EP: 2, **APART}),
    'hybrid_shard, 2 of 2, twice': (4, {EP: 2, **HYBRID, CAPACITY: 8}),
    'no_shard, 4 of 4': (4, {EP: 4, CAPACITY: 1}),
}


def config(model, precision, **changes):
    return {**MODELS[model], 'training.dataset_path': tokens, 'training.global_batch_size': 8,
            'training.local_batch_size': 1, 'training.reproducible': 'mesh', 'training.mixed_precision_param': precision,
            'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS, **changes}


def upon(model, precision, **changes):
    return config(model, precision, **{'lora.rank': 3, 'lora.alpha': 9, **STACKS.get(model, {}),
                                       'checkpoint.initial_load_path': str(pathlib.Path(f'base-{model}/out').resolve()),
                                       **changes})


def last(folder, step=STEPS):
    return pathlib.Path(folder, f'out/checkpoint/step-{step:08}.h5')


def make(model, precision):
    """One rank's checkpoint, made once for each model and precision."""
    one = pathlib.Path(f'one-{model}-{precision}')
    if not one.exists():
        if not pathlib.Path(f'base-{model}').exists():
            job.train(f'base-{model}', config(model, 'float32', **{'training.steps': 1}))
        job.train(one, upon(model, precision))
    return last(one)


def case_mesh(name, model, precision):
    one, (ranks, changes) = make(model, precision), CASES[name]
    job.train('run', upon(model, precision, **{'parallelism.sharding_strategy': name.split(',')[0], **changes}), ranks)
    return [] if filecmp.cmp(one, last('run'), shallow=False) else ['the checkpoint has other bytes']


def case_spread(name, precision, more, model='experts'):
    """An expert's adapters are where it is."""
    ranks, changes = SPREAD[name]
    one = pathlib.Path(f'one-{model}-{"alone" if more else "both"}-{precision}')
    make(model, precision)
    if not one.exists():
        job.train(one, upon(model, precision, **more))
    step = job.train('spread', upon(model, precision, **{'parallelism.sharding_strategy': name.split(',')[0], **more, **changes}),
                     ranks)[-1]
    planned = int(re.search(ARENA, job.sherd('plan', 'spread/c.yaml', '--ranks', ranks, '--mesh.ranks_per_node', ranks))[1])
    wrong = [f'arena of {step["arena_bytes"]} bytes, planned {planned}'] * (step['arena_bytes'] != planned)
    return wrong + ([] if filecmp.cmp(last(one), last('spread'), shallow=False) else ['the checkpoint has other bytes'])


def case_resume(model, changes, other):
    """Resume from two ranks on one, and on four."""
    one, wrong = make(model, 'bfloat16'), []
    for ranks in 0, 4:
        job.train('half', upon(model, 'bfloat16', **{'training.steps': 1, **APART, **changes}), 2)
        job.sherd('train', 'c.yaml', f'--training.steps={STEPS}', *other[ranks], ranks=ranks, folder='half')
        wrong += [] if filecmp.cmp(one, last('half'), shallow=False) else [f'on {ranks or 1} ranks: other bytes']
    return wrong


def case_folder():
    """Adapters of spread experts go into PEFT's folder and come from one."""
    make('experts', 'float32')
    ends = []
    for name, ranks, changes in ('alone', 0, {}), ('spread', 2, {EP: 2}):
        if not pathlib.Path('peft').exists():
            job.sherd('ckpt', 'export', last('one-experts-float32'), '--adapter', 'peft')
        job.train(name, upon('experts', 'float32', **{'lora.adapter_path': str(pathlib.Path('peft').resolve()), **changes}), ranks)
        ends.append(last(name))
    return [] if filecmp.cmp(*ends, shallow=False) else ['the checkpoints differ']


def case_plan():
    """The plan is exact to the byte, with a row for the model, which has no remainders and no gradients."""
    step = job.train('planned', upon('llama', 'bfloat16', **APART), 2)[-1]
    text = job.sherd('plan', 'planned/c.yaml', '--ranks', '2')
    rows = {name: int(size) for name, size in re.findall(r'^  (\S.*?) +(\d+) +[\d.]+ [KM]?i?B$', text, re.M)}
    wrong = [f'{step["arena_bytes"]} bytes, planned {text}'] * (step['arena_bytes'] != rows['arena: all that is allocated'])
    return wrong + [text] * (rows['parameters, frozen'] <= 2 * rows[UPPER]
                             or rows['parameters (lower halves)'] != rows[UPPER])


def case_limit():
    """The limit is lower than what the run would take, and the plan recomputes as much as the run does."""
    limited = {**APART, 'activation_checkpoint.mode': 'memory_budget'}
    free = job.train('free', upon('llama', 'bfloat16', **{'training.local_batch_size': 4, **APART}), 2)[-1]['arena_bytes']
    limited['memory.limit_bytes'] = free - 1
    step = job.train('limited', upon('llama', 'bfloat16', **{'training.local_batch_size': 4, **limited}), 2)[-1]
    planned = int(re.search(r'arena: all that is allocated +(\d+)', job.sherd('plan', 'limited/c.yaml', '--ranks', '2'))[1])
    return [] if step['arena_bytes'] == planned < free else [f'{step["arena_bytes"]} bytes, planned {planned}, without {free}']


if __name__ == '__main__':
    job.need_launcher()
    for folder in [path for name in ('one-*', 'base-*', 'peft') for path in pathlib.Path('.').glob(name)]:
        shutil.rmtree(folder)
    tiny.write_tokens()
    tokens = str(pathlib.Path('tokens.bin').resolve())
    ways = [('llama', 'float32'), ('gpt2', 'bfloat16'), ('experts', 'float32'), ('experts', 'bfloat16')]
    sys.exit(job.run_cases([(f'{name}: {model}, {precision}', case_mesh, name, model, precision)
                            for i, name in enumerate(CASES) for model, precision in [ways[i % 4]]]
                           + [(f'{name}: experts{" alone" * bool(more)}, {precision}', case_spread, name, precision, more)
                              for i, name in enumerate(SPREAD)
                              for precision, more in [(('float32', 'bfloat16')[i % 2], (ALONE, {}, {})[i % 3])]]
                           + [('experts in columns, 2 of 4', case_spread, 'full_shard, 2 of 4, small waves, all recomputed', 'float32', {}, 'experts in columns'),
                              ('resumed on other meshes', case_resume, 'llama', {}, {0: [], 4: []}),
                              ('experts resumed on other meshes', case_resume, 'experts', {EP: 2},
                               {0: [f'--{EP}=1'], 4: [f'--{EP}=4']}),
                              ('adapters of experts in a folder', case_folder), ('memory as planned', case_plan),
                              ('memory as planned within a limit', case_limit)]))
