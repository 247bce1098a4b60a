#!/usr/bin/env python3
"""Adapters that PEFT saved: trained further, saved in PEFT's form, merged into their model, and refused. Prints TAP.

make_adapters.py made them, and PEFT's expected results.
"""
import json
import math
import pathlib
import re
import shutil
import struct
import subprocess
import sys

import test_golden
from test_golden import HERE, RUN, differ, folder_tensors, job, pack, refused, tensors

LOSS_BOUND, NORM_BOUND, MERGE_BOUND = 2e-6, 2e-6, 2e-7
PREFIX = 'base_model.model.'
LORA = {
    'llama': {'lora.rank': 3, 'lora.alpha': 6},
    'qwen2_moe': {'lora.rank': 3, 'lora.alpha': 6, 'lora.target_modules': 'q_proj,o_proj,gate_proj,up_proj,down_proj',
                  'lora.target_parameters': 'experts.gate_up_proj,experts.down_proj'},
    'gpt2': {'lora.rank': 2, 'lora.alpha': 5, 'lora.target_modules': 'c_attn,mlp.c_proj', 'lora.use_rslora': True},
}
MESHES = {'1 rank': (0, {}), '2 ranks, bfloat16': (2, {'training.mixed_precision_param': 'bfloat16'}),
          '3 ranks, no_shard': (3, {'parallelism.sharding_strategy': 'no_shard'})}


def config(name, **changes):
    return {**RUN, 'model.hf_assets_path': str(HERE / name), 'lora.adapter_path': str(HERE / f'adapter-{name}'), **LORA[name],
            **changes}


def expected(name):
    return json.loads((HERE / f'adapter-{name}/expected.json').read_text())


def floats(data):
    return struct.unpack(f'<{len(data) // 4}f', data)


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def case_train(name):
    """PEFT's losses, and its adapters after these steps; the model's parameters do not change."""
    test_golden.tokens(name)
    folder = f'train-{name}'
    steps = job.train(folder, config(name))
    wrong = job.differ('loss', job.losses(steps), expected(name)['losses'], LOSS_BOUND)
    job.sherd('ckpt', 'export', f'{folder}/out', '--adapter', fresh(f'out-{name}'))
    found = tensors(f'out-{name}/adapter_model.safetensors')
    norms = {key: math.sqrt(sum(x * x for x in floats(t[2]))) for key, t in found.items()}
    if norms.keys() != expected(name)['norms'].keys():
        return wrong + [f'tensors {sorted(norms)}']
    for key, norm in expected(name)['norms'].items():
        wrong += job.differ(key, [norms[key]], [norm], NORM_BOUND)
    return wrong


def case_there_and_back(name, mesh):
    """What is written equals what was read, to the bit, on any mesh; the settings too."""
    ranks, change = MESHES[mesh]
    test_golden.tokens(name)
    folder = f'back-{name}-{ranks}'
    steps = {'checkpoint.create_seed_checkpoint': True, 'training.steps': 1, 'training.local_batch_size': 1,
             'training.global_batch_size': 6}
    job.train(folder, config(name, **steps, **change), ranks)
    job.sherd('ckpt', 'export', f'{folder}/out/checkpoint/step-00000000.h5', '--adapter', fresh(f'{folder}-out'))
    ours, theirs = (json.loads(pathlib.Path(where, 'adapter_config.json').read_text())
                    for where in (f'{folder}-out', HERE / f'adapter-{name}'))
    ours['target_parameters'] = ours['target_parameters'] and sorted(ours['target_parameters'])
    wrong = [f'{key}: {value}' for key, value in ours.items()
             if key not in ('base_model_name_or_path', 'target_modules') and theirs[key] != value]
    if ours['base_model_name_or_path'] != str((HERE / name).resolve()):
        wrong += [f'base {ours["base_model_name_or_path"]}']
    a, b = tensors(f'{folder}-out/adapter_model.safetensors'), tensors(HERE / f'adapter-{name}/adapter_model.safetensors')
    return wrong + [f'{key} differs' for key in a.keys() | b.keys() if a.get(key) != b.get(key)]


def widened(name, t):
    dtype, shape, data = t
    if dtype == 'F32':
        return floats(data)
    return [struct.unpack('<f', b'\0\0' + data[i:i + 2])[0] for i in range(0, len(data), 2)]


def stacked(adapters, module, expert, matrix):
    """The two matrices of an expert, which PEFT keeps with those of all others."""
    names = [f'{PREFIX}{module}{".base_layer" if matrix != "down" else ""}.lora_{which}.weight' for which in 'AB']
    a, b = (adapters[name] for name in names)
    experts, inputs, outputs, rank = 4, a[1][1], b[1][0], a[1][0] // 4
    rows = range(outputs) if matrix == 'down' else range(outputs // 2) if matrix == 'gate' else range(outputs // 2, outputs)
    all_a, all_b = floats(a[2]), floats(b[2])
    return (rank, inputs, all_a[expert * rank * inputs:(expert + 1) * rank * inputs],
            [all_b[(o * rank + r) * experts + expert] for o in rows for r in range(rank)], names)


def pair(adapters, module):
    """rank, inputs, A, B and their names; None: the matrix is not adapted."""
    expert = re.fullmatch(r'(.*\.experts)\.(\d+)\.(gate|up|down)_proj', module)
    if expert:
        return stacked(adapters, expert[1], int(expert[2]), expert[3])
    names = [f'{PREFIX}{module}.lora_{which}.weight' for which in 'AB']
    if names[0] not in adapters:
        return None
    a, b = (adapters[name] for name in names)
    return *a[1], floats(a[2]), floats(b[2]), names


def product(name, adapters, module, used):
    """scale * B A, in the layout in which the model stores the matrix. Adds the names of both to `used`."""
    found = pair(adapters, module)
    if found is None:
        return None
    rank, inputs, a, b, names = found
    used.update(names)
    lora = LORA[name]
    scale = lora['lora.alpha'] / (math.sqrt(rank) if lora.get('lora.use_rslora') else rank)
    whole = [[scale * sum(b[o * rank + r] * a[r * inputs + i] for r in range(rank)) for i in range(inputs)]
             for o in range(len(b) // rank)]
    if name == 'gpt2':
        whole = list(zip(*whole))
    return [x for row in whole for x in row]


def case_merge(name):
    """The model's tensors plus the adapters' contribution, in a folder from which a run has the same loss."""
    test_golden.tokens(name)
    job.train(f'merge-{name}', config(name, **{'training.steps': 1}))
    job.sherd('ckpt', 'export', f'merge-{name}/out', '--adapter', fresh(f'merge-{name}-adapter'))
    job.sherd('ckpt', 'export', f'merge-{name}/out', '--merge', '-o', fresh(f'merge-{name}-whole'))
    adapters = tensors(f'merge-{name}-adapter/adapter_model.safetensors')
    base, merged = folder_tensors(HERE / name), folder_tensors(f'merge-{name}-whole')
    wrong = [f'tensors {sorted(merged)}'] * (base.keys() != merged.keys())
    used = set()
    for key, t in base.items():
        plain, found = widened(name, t), floats(merged[key][2])
        added = product(name, adapters, key.removesuffix('.weight'), used)
        wanted = plain if added is None else [x + y for x, y in zip(plain, added)]
        off = max(abs(x - y) for x, y in zip(found, wanted))
        wrong += [f'{key}: {off:.2g} off'] * (off > (0 if added is None else MERGE_BOUND))
    wrong += [f'{len(used)} adapters are used'] * (used != adapters.keys())
    run = {**RUN, 'training.steps': 1}
    one = job.train(f'merge-{name}-one', {**run, 'model.hf_assets_path': f'../merge-{name}-whole'})
    two = job.train(f'merge-{name}-two', {**config(name), **run, 'lora.adapter_path': f'../merge-{name}-adapter'})
    return wrong + job.differ('loss', job.losses(one), job.losses(two), LOSS_BOUND)


def case_frozen():
    """A run with adapters leaves the model's folder and its own base as they are; a base that changes is noticed."""
    test_golden.tokens('llama')
    test_golden.copy_golden('llama', 'frozen-base')
    job.train('frozen', {**config('llama'), 'model.hf_assets_path': '../frozen-base'})
    wrong = differ(HERE / 'llama', 'frozen-base')
    path = pathlib.Path('frozen-base/model-00001-of-00002.safetensors')
    path.write_bytes(path.read_bytes()[:-1] + b'\x3c')
    for words, says in ((['train', 'c.yaml', '--training.steps=5'], 'frozen-base now are different'),
                        (['ckpt', 'export', 'out', '--merge', '-o', fresh('frozen/whole')], 'was trained on numbers other than those')):
        done = subprocess.run(job.command(0, words), cwd='frozen', capture_output=True, text=True, env=job.environment(0))
        if done.returncode != 3 or says not in done.stderr:
            wrong.append(f'{words}: exit {done.returncode}, {done.stderr}')
    return wrong + ['a folder of a merge that failed'] * pathlib.Path('frozen/whole').exists()


SETTINGS = {
    'use_dora': (True, 'use_dora is set'), 'modules_to_save': (['lm_head'], 'modules_to_save is set'),
    'rank_pattern': ({'q_proj': 8}, 'rank_pattern is set'), 'alpha_pattern': ({'q_proj': 8}, 'alpha_pattern is set'),
    'bias': ('all', 'bias is all; only none'), 'layers_to_transform': ([0], 'layers_to_transform is set'),
    'target_parameters': (['mlp.experts.down_proj'], 'has mlp.experts.down_proj, which is not a stack of experts of this model'),
    'r': (4, 'r is 4, but lora.rank is 3; give lora.rank=4'), 'lora_alpha': (3, 'give lora.alpha=3'),
    'use_rslora': (True, 'give lora.use_rslora=true'), 'peft_type': ('IA3', 'peft_type is IA3; only LORA'),
    'init_lora_weights': ('pissa', 'has changed the model too'), 'something_new': (1, 'something_new is set'),
    'lora_dropout': (0.05, None),
}


def case_setting(key):
    folder = f'setting-{key}'
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / 'adapter-llama', f'{folder}/adapter')
    path = pathlib.Path(folder, 'adapter/adapter_config.json')
    value, says = SETTINGS[key]
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    test_golden.tokens('llama')
    run = config('llama', **{'lora.adapter_path': f'../{folder}/adapter', 'training.steps': 1})
    if says:
        return refused(f'{folder}-run', run, says)
    job.train(f'{folder}-run', run)
    return []


def case_stacks():
    """Stacks of experts that the run does not adapt, or not all of them."""
    test_golden.tokens('qwen2_moe')
    wrong = []
    for given in '', 'down_proj':
        run = config('qwen2_moe', **{'lora.target_parameters': given, 'training.steps': 1})
        wrong += refused('stacks', run, f"but lora.target_parameters is '{given}'; give 'mlp.experts.down_proj,mlp.experts.gate_up_proj'")
    return wrong


def drop(t):
    del t[f'{PREFIX}model.layers.1.mlp.up_proj.lora_B.weight']


def add(t):
    t[f'{PREFIX}lm_head.lora_A.weight'] = t[f'{PREFIX}model.layers.1.mlp.up_proj.lora_A.weight']


def turn(t):
    key = f'{PREFIX}model.layers.0.self_attn.q_proj.lora_A.weight'
    t[key] = (t[key][0], t[key][1][::-1], t[key][2])


def bare(t):
    for key in list(t):
        t[key.removeprefix(PREFIX)] = t.pop(key)


TENSORS = {drop: 'missing, the first of them model.layers.1.mlp.up_proj.lora_B.weight [32,3]',
           add: 'lm_head.lora_A.weight [3,16] is not a tensor of this model',
           turn: 'has shape [16,3], but an adapter of this model wants [3,16]', bare: None}


def case_tensors(change):
    folder = f'tensors-{change.__name__}'
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / 'adapter-llama', f'{folder}/adapter')
    t = tensors(HERE / 'adapter-llama/adapter_model.safetensors')
    change(t)
    pack(t, f'{folder}/adapter/adapter_model.safetensors')
    test_golden.tokens('llama')
    run = config('llama', **{'lora.adapter_path': f'../{folder}/adapter', 'training.steps': 1})
    if TENSORS[change]:
        return refused(f'{folder}-run', run, TENSORS[change])
    return job.differ('loss', job.losses(job.train(f'{folder}-run', run)), expected('llama')['losses'][:1], LOSS_BOUND)


def case_go_on():
    """A run starts from the adapters of a checkpoint in another folder, on the same model; not from two at once."""
    test_golden.tokens('llama')
    one = job.train('on-one', {**config('llama'), 'training.steps': 3, 'checkpoint.interval': 2})
    path = '../on-one/out/checkpoint/step-00000002.h5'
    two = {**config('llama'), 'training.steps': 3, 'checkpoint.initial_load_path': path}
    wrong = refused('on-both', two, 'are both adapters for the model of model.hf_assets_path')
    del two['lora.adapter_path']
    wrong += job.differ('loss', job.losses(job.train('on-two', two)), job.losses(one)[2:], 0)
    begin = job.train('on-three', {**two, 'checkpoint.initial_load_model_only': True, 'training.steps': 1})
    return wrong + [f'step {begin[0]["step"]}'] * (begin[0]['step'] != 1)


def case_absent():
    test_golden.tokens('llama')
    run = config('llama', **{'lora.adapter_path': str(HERE / 'llama'), 'training.steps': 1})
    return refused('absent', run, 'adapter_config.json')


if __name__ == '__main__':
    names = list(LORA)
    meshes = [mesh for mesh, (ranks, _) in MESHES.items() if ranks == 0 or job.can_launch()]
    sys.exit(job.run_cases(
        [(f'{name}: losses and adapters of PEFT', case_train, name) for name in names]
        + [(f'{name}: there and back, {mesh}', case_there_and_back, name, mesh) for name in names for mesh in meshes]
        + [(f'{name}: merged', case_merge, name) for name in names]
        + [('the model stays as it is', case_frozen)]
        + [(f'an adapter with {key}', case_setting, key) for key in SETTINGS]
        + [(f'tensors: {change.__name__}', case_tensors, change) for change in TENSORS]
        + [('other stacks of experts', case_stacks), ('no adapters', case_absent), ('adapters of a checkpoint', case_go_on)]))
