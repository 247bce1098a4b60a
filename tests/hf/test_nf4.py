#!/usr/bin/env python3
"""Weights that bitsandbytes packed in four bits, as the base of adapters: the same to the bit as packing them here, on
any mesh; and wrong folders. Prints TAP.

make_nf4.py made the folders. A checkpoint shows the loaded weights as one number over all frozen elements.
"""
import json
import math
import pathlib
import random
import re
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

HERE = pathlib.Path(__file__).resolve().parent
RUN = {'training.seq_len': 15, 'training.local_batch_size': 1, 'training.global_batch_size': 6, 'training.steps': 1,
       'training.threads': 1, 'training.dataset_path': '../tokens.bin', 'lora.rank': 2, 'lora.quantize_base': 'nf4'}
WEIGHT = 'model.layers.0.mlp.down_proj.weight'
STATE = WEIGHT + '.quant_state.bitsandbytes__nf4'
NAN = struct.pack('<f', math.nan)


def read(path):
    """{name: [type, shape, bytes]}."""
    data = pathlib.Path(path).read_bytes()
    length, = struct.unpack('<Q', data[:8])
    header = json.loads(data[8:8 + length])
    header.pop('__metadata__', None)
    return {name: [t['dtype'], t['shape'], data[8 + length + t['data_offsets'][0]:8 + length + t['data_offsets'][1]]]
            for name, t in header.items()}


def write(path, tensors):
    header, data = {}, b''
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack('<Q', len(text)) + text + data)


def copy(name, change):
    """A separate folder with other tensors."""
    shutil.rmtree('changed', ignore_errors=True)
    shutil.copytree(HERE / 'nf4' / name, 'changed')
    tensors = read('changed/model.safetensors')
    change(tensors)
    write('changed/model.safetensors', tensors)
    return pathlib.Path('changed').resolve()


def floats(content):
    return list(struct.unpack(f'<{len(content) // 4}f', content))


def rounded(x):
    return struct.unpack('<f', struct.pack('<f', x))[0]


def base_of(folder, ranks=0, **changes):
    """The number over the frozen elements, and the loss."""
    steps = job.train('run', {**RUN, 'model.hf_assets_path': str(folder), **changes}, ranks)
    text = job.sherd('ckpt', 'info', next(pathlib.Path('run/out/checkpoint').glob('*.h5')))
    return re.search(r'sum: ([0-9a-f]{16})', text)[1], job.losses(steps)


def differ(a, b):
    return [] if a == b else [f'{a} and {b}']


def case_meshes(name, ranks, changes):
    return differ(base_of(HERE / 'nf4' / name, ranks, **changes)[0], base_of(HERE / 'nf4' / name)[0])


def case_as_packed_here():
    return differ(base_of(HERE / 'nf4/plain'), base_of(HERE / 'nf4/source'))


def unpack_scales(tensors):
    for name in [n for n in tensors if n.endswith('.nested_absmax')]:
        weight = name[:-len('.nested_absmax')]
        scales, table = floats(tensors.pop(name)[2]), floats(tensors.pop(weight + '.nested_quant_map')[2])
        state = json.loads(tensors[weight + '.quant_state.bitsandbytes__nf4'][2])
        codes = tensors[weight + '.absmax'][2]
        content = [rounded(rounded(table[c] * scales[i // 256]) + rounded(state['nested_offset'])) for i, c in enumerate(codes)]
        tensors[weight + '.absmax'] = ['F32', [len(content)], struct.pack(f'<{len(content)}f', *content)]


def case_nested():
    return differ(base_of(HERE / 'nf4/nested'), base_of(copy('nested', unpack_scales)))


def below_zero(tensors):
    """Packed scales, as they come out for small blocks next to large ones."""
    for name in [n for n in tensors if n.endswith('.quant_state.bitsandbytes__nf4')]:
        text = json.dumps({**json.loads(tensors[name][2]), 'nested_offset': -0.02}).encode()
        tensors[name] = ['U8', [len(text)], text]


def case_scales_below_zero():
    folder = copy('nested', below_zero)
    found = base_of(folder)
    wrong = near(merged('--merge-base', 'nf4'), [0] * 3072, 1)
    tensors = read(folder / 'model.safetensors')
    unpack_scales(tensors)
    if min(floats(tensors[WEIGHT + '.absmax'][2])) >= 0:
        wrong.append('no scale is below 0')
    write(folder / 'model.safetensors', tensors)
    return wrong + differ(found, base_of(folder))


def store_as_float32(tensors):
    for t in tensors.values():
        if t[0] == 'BF16' and t[1][-1] == 1:
            t[0], t[1] = 'F32', [1, t[1][0] // 2]


def case_storage():
    return differ(base_of(HERE / 'nf4/nested'), base_of(copy('nested', store_as_float32)))


def state(**changes):
    def change(tensors):
        text = json.dumps({**json.loads(tensors[STATE][2]), **changes}).encode()
        tensors[STATE] = ['U8', [len(text)], text]
    return change


def content(name, to, dtype=None):
    def change(tensors):
        tensors[name][2] = to(tensors[name][2])
        tensors[name][0] = dtype or tensors[name][0]
        tensors[name][1] = [len(tensors[name][2]) // {'F32': 4, 'U8': 1, 'I8': 1}[tensors[name][0]]]
    return change


def without(name):
    return lambda tensors: tensors.pop(name)


def renamed(name, to):
    def change(tensors):
        tensors[to] = tensors.pop(name)
    return change


BAD = [
    ('plain', without(WEIGHT + '.absmax'), WEIGHT + '.absmax is missing'),
    ('plain', without(WEIGHT + '.quant_map'), WEIGHT + '.quant_map is missing'),
    ('plain', without(WEIGHT), f'is there, but {WEIGHT} is not'),
    ('plain', without(STATE), f'{WEIGHT} has shape'),
    ('plain', renamed(STATE, STATE.replace('nf4', 'fp4')), 'in four bits of the type fp4'),
    ('plain', content(WEIGHT, lambda b: b[:-1]), '1535 bytes of codes, and the weight 3072 elements'),
    ('plain', content(WEIGHT + '.absmax', lambda b: b[:-4]), 'but must be F32 with 48 elements'),
    ('plain', content(WEIGHT + '.absmax', lambda b: b, 'I8'), 'but must be F32 with 48 elements'),
    ('plain', content(WEIGHT + '.absmax', lambda b: b[:8] + NAN + b[12:]), f'element 2 of {WEIGHT}.absmax is not a finite'),
    ('plain', content(WEIGHT + '.quant_map', lambda b: b[4:] + b[:4]), 'does not have the numbers of nf4'),
    ('plain', content(STATE, lambda b: b'{' * 9), 'line 1, column'),
    ('plain', content(STATE, lambda b: b'[]'), 'quant_type is not nf4'),
    ('plain', content(STATE, lambda b: b + b' ' * 5000), 'is not a text of at most 4096 bytes'),
    ('plain', state(quant_type='fp4'), 'quant_type is not nf4'),
    ('plain', state(blocksize=128), 'blocksize is not 64'),
    ('plain', state(shape=[96, 32]), 'shape is not that of the model'),
    ('plain', state(shape=[32, 96, 1]), 'shape is not that of the model'),
    ('nested', state(nested_blocksize=64), 'nested_blocksize is not 256'),
    ('nested', state(nested_offset='0'), 'nested_offset is not a finite number'),
    ('nested', state(nested_offset=1e39), 'nested_offset is not a finite number'),
    ('nested', without(WEIGHT + '.nested_absmax'), '.nested_absmax is missing'),
    ('nested', content(WEIGHT + '.nested_absmax', lambda b: NAN), 'element 0 of ' + WEIGHT + '.nested_absmax is not a finite'),
    ('nested', content(WEIGHT + '.nested_quant_map', lambda b: b[4:]), 'F32 with 256 elements'),
]


def refused(folder, want, *words):
    job.prepare('run', {**RUN, 'model.hf_assets_path': str(folder)})
    try:
        job.sherd('train', 'c.yaml', *words, folder='run')
    except job.Failed as error:
        lines = [line for line in str(error).splitlines() if 'error:' in line]
        return [] if len(lines) == 1 and want in lines[0] else [str(error)]
    return [f'it was taken: {want}']


def case_bad():
    wrong = []
    for name, change, want in BAD:
        wrong += refused(copy(name, change), want)
    return wrong


def case_not_a_base():
    wrong = refused(HERE / 'nf4/plain', 'can only be a frozen weight here: say lora.quantize_base=nf4',
                    '--lora.quantize_base=none')
    for key, value in (('quant_method', 'gptq'), ('load_in_4bit', False), ('bnb_4bit_quant_type', 'fp4')):
        folder = copy('plain', lambda tensors: None)
        config = json.loads((folder / 'config.json').read_text())
        config['quantization_config'][key] = value
        (folder / 'config.json').write_text(json.dumps(config))
        wrong += refused(folder, 'of packed weights only bitsandbytes nf4')
    return wrong


def merged(*words, weight=WEIGHT):
    """A weight, for adapters that a step has moved."""
    shutil.rmtree('merged', ignore_errors=True)
    file = next(pathlib.Path('run/out/checkpoint').glob('*.h5'))
    job.sherd('ckpt', 'export', file, '--merge', '-o', 'merged', *words)
    return floats(read('merged/model.safetensors')[weight][2])


def widened(content):
    return [struct.unpack('<f', b'\0\0' + content[i:i + 2])[0] for i in range(0, len(content), 2)]


def unpacked(tensors, weight=WEIGHT):
    """Unpack by the definition, in Python's floats."""
    numbers, scales = floats(tensors[weight + '.quant_map'][2]), floats(tensors[weight + '.absmax'][2])
    codes = [code for byte in tensors[weight][2] for code in (byte >> 4, byte & 15)]
    return [rounded(numbers[code] * scales[i // 64]) for i, code in enumerate(codes)]


def near(found, wanted, bound=1e-6):
    off = max(abs(a - b) for a, b in zip(found, wanted, strict=True))
    return [] if off <= bound else [f'{off} off']


def case_merge():
    """The same product is added; it is added to the numbers as they are in the source, or as they were packed."""
    source, packed = read(HERE / 'nf4/source/model.safetensors'), read(HERE / 'nf4/plain/model.safetensors')
    base_of(HERE / 'nf4/source')
    onto_written, onto_packed = merged(), merged('--merge-base', 'nf4')
    added = [a - b for a, b in zip(onto_written, widened(source[WEIGHT][2]))]
    wrong = [] if any(abs(a) > 1e-7 for a in added) else ['nothing was added']
    wrong += near([a - b for a, b in zip(onto_packed, unpacked(packed))], added)
    for folder in ('plain', 'nested'):
        base_of(HERE / 'nf4' / folder)
        wrong += near(merged('--merge-base', 'nf4'), onto_packed, 1 if folder == 'nested' else 0)
        wrong += not_merged('has its weights in four bits only; say --merge-base nf4')
    wrong += not_merged('was trained on numbers other than those in', '--merge-base', 'nf4', '--base', HERE / 'nf4/plain')
    base_of(HERE / 'nf4/source', **{'lora.quantize_base': 'none'})
    return wrong + not_merged('on a base that was not packed; leave out --merge-base nf4', '--merge-base', 'nf4') + not_merged(
        '--merge-base is none or nf4', '--merge-base', 'int8')


NUMBERS = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
           -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
           0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
EXPERT = 'model.layers.{}.block_sparse_moe.experts.{}.{}.weight'
STACK = 'model.layers.{}.mlp.experts.{}'


def add_packed(tensors, name, shape, codes, scales):
    state = json.dumps({'quant_type': 'nf4', 'blocksize': 64, 'dtype': 'bfloat16', 'shape': shape}).encode()
    tensors[name] = ['U8', [len(codes), 1], codes]
    tensors[f'{name}.absmax'] = ['F32', [len(scales)], struct.pack(f'<{len(scales)}f', *scales)]
    tensors[f'{name}.quant_map'] = ['F32', [16], struct.pack('<16f', *NUMBERS)]
    tensors[f'{name}.quant_state.bitsandbytes__nf4'] = ['U8', [len(state)], state]


def experts_folder(form, only=None):
    """Mixtral with its experts packed: each matrix by itself, as they are in folders; or the stacks, as they are in memory.
    Only: of one expert."""
    tensors = {}
    for file in sorted((HERE / 'mixtral').glob('*.safetensors')):
        tensors.update(read(file))
    draw = random.Random(3)
    for layer in range(2):
        for stack, names in ('gate_up_proj', ('w1', 'w3')), ('down_proj', ('w2',)):
            all_codes, all_scales = b'', []
            for expert in range(4):
                for name in names:
                    plain = tensors[EXPERT.format(layer, expert, name)]
                    codes, scales = draw.randbytes(24 * 16 // 2), [draw.random() for _ in range(24 * 16 // 64)]
                    all_codes, all_scales = all_codes + codes, all_scales + scales
                    if form == 'stacks':
                        del tensors[EXPERT.format(layer, expert, name)]
                    elif only in (None, expert):
                        add_packed(tensors, EXPERT.format(layer, expert, name), plain[1], codes, scales)
            if form == 'stacks':
                add_packed(tensors, STACK.format(layer, stack), [4, 48, 16] if len(names) == 2 else [4, 16, 24], all_codes, all_scales)
    shutil.rmtree(form, ignore_errors=True)
    pathlib.Path(form).mkdir()
    write(f'{form}/model.safetensors', tensors)
    how = {'quant_method': 'bitsandbytes', 'load_in_4bit': True, 'bnb_4bit_quant_type': 'nf4'}
    config = {**json.loads((HERE / 'mixtral/config.json').read_text()), 'quantization_config': how}
    pathlib.Path(form, 'config.json').write_text(json.dumps(config))
    return pathlib.Path(form).resolve()


STACKS = {'lora.target_parameters': 'gate_up_proj,down_proj'}


def case_experts():
    """Both forms are one model, on one rank and on two; so is one with a single expert packed, on any mesh."""
    one = base_of(experts_folder('experts'), **STACKS)
    wrong = differ(one, base_of(experts_folder('stacks'), **STACKS))
    if job.can_launch():
        wrong += differ(one[0], base_of(experts_folder('experts'), 2, **STACKS)[0])
        wrong += differ(one[0], base_of(experts_folder('stacks'), 3, **STACKS)[0])
    # The numbers themselves, with what a step of the adapters adds.
    for form in 'experts', 'stacks':
        base_of(experts_folder(form), **STACKS)
        merged_experts = merged('--merge-base', 'nf4', weight=EXPERT.format(1, 3, 'w3'))
        packed = read('experts/model.safetensors')
        wrong += near(merged_experts, unpacked(packed, EXPERT.format(1, 3, 'w3')), 0.01)
    base_of(experts_folder('experts', only=2), **STACKS)
    return wrong + near(merged('--merge-base', 'nf4', weight=EXPERT.format(0, 2, 'w2')),
                        unpacked(read('experts/model.safetensors'), EXPERT.format(0, 2, 'w2')), 0.01)


def case_router():
    """Older versions of transformers packed it too."""
    folder = experts_folder('experts')
    tensors = read(folder / 'model.safetensors')
    add_packed(tensors, 'model.layers.0.block_sparse_moe.gate.weight', [4, 16], b'a' * 32, [1.0])
    write(folder / 'model.safetensors', tensors)
    return refused(folder, 'gate.weight is in four bits an element, and only linear products other than the router\'s')


LONG = 32800  # of the feed-forward: its matrices have more elements than a block of a checkpoint


def lengthen(tensors):
    """The packed matrices with LONG instead of 96, by repeating them."""
    for name in [name.removesuffix('.absmax') for name in tensors if name.endswith('.absmax') and '.mlp.' in name]:
        times = LONG * 32 // 64
        for part, size in (name, 32), (name + '.absmax', 4):
            data = tensors[part][2]
            tensors[part][2] = (data * (times * size // len(data) + 1))[:times * size]
            tensors[part][1] = [times * size, 1] if part == name else [times]
        state = name + '.quant_state.bitsandbytes__nf4'
        text = json.loads(tensors[state][2])
        text['shape'] = [LONG if n == 96 else n for n in text['shape']]
        tensors[state][2] = json.dumps(text).encode()
        tensors[state][1] = [len(tensors[state][2])]


def case_long():
    """Packed matrices of more than one block of a checkpoint; and scales that a damaged folder has."""
    folder = copy('plain', lengthen)
    path = folder / 'config.json'
    path.write_text(json.dumps({**json.loads(path.read_text()), 'intermediate_size': LONG}))
    base_of(folder)
    wrong = near(merged('--merge-base', 'nf4')[-64:], unpacked(read(folder / 'model.safetensors'))[-64:], 0.01)
    base_of(HERE / 'nf4/plain')
    folder = copy('plain', content(WEIGHT + '.absmax', lambda b: b[:8] + NAN + b[12:]))
    return wrong + not_merged(f'{WEIGHT}.absmax has a number that is not finite', '--merge-base', 'nf4', '--base', folder)


def not_merged(want, *words):
    try:
        merged(*words)
    except job.Failed as error:
        return [] if want in str(error) and not pathlib.Path('merged').exists() else [str(error)]
    return [f'it was merged: {want}']


if __name__ == '__main__':
    pathlib.Path('tokens.bin').write_bytes(struct.pack('<100H', *(i * 7 % 32 for i in range(100))))
    cases = [('packed there as here', case_as_packed_here), ('scales that are packed', case_nested),
             ('codes in another type', case_storage), ('what is not right', case_bad), ('what is no base', case_not_a_base),
             ('scales below zero', case_scales_below_zero), ('merged', case_merge), ('experts', case_experts), ('a router', case_router),
             ('more than one block', case_long)]
    apart = {'comm.shared_memory': 'off'}
    if job.can_launch():
        cases += [(f'{name} over {ranks} ranks', case_meshes, name, ranks, changes)
                  for name in ('plain', 'nested') for ranks, changes in (
                      (2, {}), (3, apart), (2, {**apart, 'parallelism.sharding_strategy': 'no_shard'}))]
    sys.exit(job.run_cases(cases))
