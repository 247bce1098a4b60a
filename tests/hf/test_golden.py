#!/usr/bin/env python3
"""Tiny folders that transformers saved: used to train, imported, exported, and damaged. Prints TAP.

make_golden.py made them, and transformers' expected results. Parameters must come back to the bit, on any number of
ranks, with any strategy; exports are read here from the description of the format alone.
"""
import array
import itertools
import json
import os
import pathlib
import re
import resource
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

HERE = pathlib.Path(__file__).resolve().parent
FAMILIES = 'gpt2', 'llama', 'mistral', 'qwen2', 'phi3', 'smollm3', 'starcoder2', 'qwen3', 'olmo2', 'gemma', 'gpt_neox', \
    'gemma3_text', 'mixtral', 'qwen2_moe', 'qwen3_moe', 'olmoe', 'granite', 'granitemoe'
LOSS_BOUND = 2e-6  # relative, of float32 against float64; seen: 2e-7
RUN = {
    'training.seq_len': 15, 'training.local_batch_size': 2, 'training.global_batch_size': 2, 'training.steps': 4,
    'training.mixed_precision_param': 'float32', 'training.max_norm': 0, 'training.threads': 1, 'data.shuffle': False,
    'training.dataset_path': '../tokens.bin',
    'optimizer.lr': 2e-3, 'optimizer.beta1': 0.9, 'optimizer.beta2': 0.95, 'optimizer.eps': 1e-5,
    'optimizer.weight_decay': 0.1, 'lr_scheduler.decay_type': 'constant',
}
SEED = {'checkpoint.create_seed_checkpoint': True, 'training.steps': 1, 'training.local_batch_size': 1,
        'training.global_batch_size': 6, 'checkpoint.last_save_in_hf': True, 'training.mixed_precision_param': 'bfloat16'}
MESHES = {
    '2 ranks, full_shard': (2, {'parallelism.sharding_strategy': 'full_shard'}),
    '3 ranks, full_shard': (3, {'parallelism.sharding_strategy': 'full_shard', 'training.mixed_precision_param': 'float32'}),
    '4 ranks, full_shard': (4, {'parallelism.sharding_strategy': 'full_shard', 'training.global_batch_size': 4}),
    '3 ranks, no_shard': (3, {'parallelism.sharding_strategy': 'no_shard'}),
    '2 ranks, shard_grad_op': (2, {'parallelism.sharding_strategy': 'shard_grad_op'}),
    '2 ranks, shard_optim': (2, {'parallelism.sharding_strategy': 'shard_optim'}),
    '4 ranks, hybrid_shard_zero2': (4, {'parallelism.sharding_strategy': 'hybrid_shard_zero2', 'mesh.shard': 2,
                                        'mesh.replicate': 2, 'training.global_batch_size': 4}),
    '2 ranks, replicas': (2, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 1, 'mesh.replicate': 2,
                              'comm.shared_memory': 'off'}),
}


def expected(name):
    return json.loads((HERE / name / 'expected.json').read_text())


def dtype_of(name):
    return json.loads((HERE / name / 'config.json').read_text())['dtype']


def tokens(name, of=None):
    with open('tokens.bin', 'wb') as f:
        array.array('H', (of or expected(name))['tokens']).tofile(f)


def tensors(path):
    """{name: (type, shape, bytes)} of one file."""
    data = pathlib.Path(path).read_bytes()
    length, = struct.unpack('<Q', data[:8])
    header = json.loads(data[8:8 + length])
    header.pop('__metadata__', None)
    return {name: (t['dtype'], t['shape'], data[8 + length + t['data_offsets'][0]:8 + length + t['data_offsets'][1]])
            for name, t in header.items()}


def folder_tensors(folder):
    return {name: t for path in sorted(pathlib.Path(folder).glob('*.safetensors')) for name, t in tensors(path).items()}


def copy_golden(name, folder):
    """Copies of the files: the tree may be read-only."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for path in (HERE / name).iterdir():
        shutil.copyfile(path, pathlib.Path(folder) / path.name)


def differ(a, b):
    a, b = folder_tensors(a), folder_tensors(b)
    return [f'tensors {sorted(a)} and {sorted(b)}'] * (a.keys() != b.keys()) + [f'{n} differs' for n in a if a[n] != b.get(n)]


def case_losses(name):
    tokens(name)
    steps = job.train(f'train-{name}', {**RUN, 'model.hf_assets_path': str(HERE / name)})
    return job.differ('loss', job.losses(steps), expected(name)['losses'], LOSS_BOUND)


def case_window(name):
    """Sequences longer than the window; the export has the window."""
    longer = expected(name)['longer']
    tokens(name, longer)
    steps = job.train(f'window-{name}', {**RUN, 'model.hf_assets_path': str(HERE / name), 'checkpoint.last_save_in_hf': True,
                                         'training.seq_len': longer['seq_len']})
    wrong = job.differ('loss', job.losses(steps), longer['losses'], LOSS_BOUND)
    window = json.loads(pathlib.Path(f'window-{name}/out/checkpoint/hf-00000004/config.json').read_text())['sliding_window']
    return wrong + ([] if window == 32 else [f'the export has a window of {window}'])


def case_no_window():
    """A run whose export could not express the model's window does not start."""
    tokens('llama')
    config = {**RUN, 'model.hf_assets_path': str(HERE / 'llama'), 'checkpoint.last_save_in_hf': True}
    wrong = refused('no-window', {**config, 'model.attention_window': 4}, "transformers' llama has no window")
    steps = job.train('no-export', {**config, 'model.attention_window': 4, 'checkpoint.last_save_in_hf': False})
    return wrong + ([] if job.losses(steps)[0] != expected('llama')['losses'][0] else ['the window changes nothing'])


def import_export(name):
    """By `sherd ckpt`: unchanged parameters, in the type of the source."""
    for folder in 'imported', 'exported':
        shutil.rmtree(f'{folder}-{name}', ignore_errors=True)
    job.sherd('ckpt', 'import', HERE / name, '-o', f'imported-{name}')
    job.sherd('ckpt', 'verify', f'imported-{name}')
    job.sherd('ckpt', 'export', f'imported-{name}', '-o', f'exported-{name}', '--dtype', dtype_of(name), '--max-shard-size', '6KB',
              '--hf', HERE / name)


def case_import_export(name):
    import_export(name)
    wrong = differ(HERE / name, f'exported-{name}')
    files = sorted(p.name for p in pathlib.Path(f'exported-{name}').iterdir())
    if 'model.safetensors.index.json' not in files or 'generation_config.json' not in files:
        wrong += [f'files {files}']
    job.sherd('ckpt', 'import', f'exported-{name}', '-o', f'again-{name}')
    job.sherd('ckpt', 'diff', f'again-{name}', f'imported-{name}')
    return wrong


def case_mesh(name, mesh, source=None):
    """A mesh loads what `sherd ckpt import` loads, and writes at the end what `ckpt export` writes."""
    ranks, change = MESHES[mesh]
    tokens(name)
    out = f'{name}-{mesh}'.replace(', ', '-').replace(' ', '-')
    source = os.path.abspath(source or HERE / name)
    config = {**RUN, **SEED, **change, 'model.hf_assets_path': source, 'checkpoint.export_dtype': 'float32'}
    job.train(out, config, ranks)
    checkpoints = pathlib.Path(out) / 'out/checkpoint'
    job.sherd('ckpt', 'export', checkpoints / 'step-00000000.h5', '-o', f'{out}/first', '--dtype', dtype_of(name))
    job.sherd('ckpt', 'export', checkpoints / 'step-00000001.h5', '-o', f'{out}/last')
    return differ(HERE / name, f'{out}/first') + differ(checkpoints / 'hf-00000001', f'{out}/last')


def case_files():
    """A source of five files or more, on ranks whose borders are not the files' borders."""
    shutil.rmtree('files', ignore_errors=True)
    job.sherd('ckpt', 'import', HERE / 'llama', '-o', 'files/imported')
    job.sherd('ckpt', 'export', 'files/imported', '-o', 'files/hf', '--dtype', dtype_of('llama'), '--max-shard-size', '2KB')
    n = len(list(pathlib.Path('files/hf').glob('model-*.safetensors')))
    return ([] if n >= 5 else [f'{n} files']) + case_mesh('llama', '3 ranks, full_shard', 'files/hf')


def case_plan():
    """A folder with config.json alone."""
    shutil.rmtree('alone', ignore_errors=True)
    os.mkdir('alone')
    shutil.copy(HERE / 'llama/config.json', 'alone')
    text = job.sherd('plan', '--model.hf=alone', '--ranks', '8')
    return [] if 'llama, 2 layers' in text and '5.71 K parameters' in text else [text]


def case_architecture_only():
    """Without weights a run is refused, and with initial_load_in_hf=false it starts from initial values."""
    tokens('llama')
    config = {**RUN, 'model.hf_assets_path': '../alone', 'training.steps': 1}
    wrong = refused('no-weights', config, 'has neither model.safetensors nor')
    job.train('initial', {**config, 'checkpoint.initial_load_in_hf': False})
    return wrong


def refused(folder, config, says):
    job.prepare(folder, {'job.dump_folder': 'out', **config})
    done = subprocess.run(job.command(0, ['train', 'c.yaml']), cwd=folder, capture_output=True, text=True,
                          env=job.environment(0))
    lines = [line for line in done.stderr.splitlines() if line.startswith('sherd: error')]
    if done.returncode in (2, 3) and len(lines) == 1 and says in lines[0]:
        return []
    return [f'{says}: exit {done.returncode}, {done.stderr}']


def pack(tensors_of, path):
    header, data = {}, b''
    for name, (dtype, shape, content) in tensors_of.items():
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack('<Q', len(text)) + text + data)


def drop(t):
    del t['transformer.h.1.ln_2.bias']


def add(t):
    t['transformer.h.1.ln_2.bia'] = t['transformer.h.1.ln_2.bias']


def not_finite(t):
    dtype, shape, data = t['transformer.wpe.weight']
    t['transformer.wpe.weight'] = (dtype, shape, data[:20] + struct.pack('<f', float('nan')) + data[24:])


def other_head(t):
    dtype, shape, data = t['transformer.wte.weight']
    t['lm_head.weight'] = (dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))


def same_head(t):
    t['lm_head.weight'] = t['transformer.wte.weight']


def bare(t):
    for name in list(t):
        t[name.removeprefix('transformer.')] = t.pop(name)


def buffers(t):
    t['transformer.h.0.attn.bias'] = ('BOOL', [1, 1, 4, 4], bytes(16))


EXPERT = 'model.layers.{}.mlp.experts.{}.{}_proj.weight'.format


def no_matrix(t):
    del t[EXPERT(1, 2, 'up')]


def no_expert(t):
    for block, which in itertools.product(range(2), ('gate', 'up', 'down')):
        del t[EXPERT(block, 3, which)]


def one_more(t):
    t[EXPERT(0, 4, 'down')] = t[EXPERT(0, 3, 'down')]


def other_shape(t):
    dtype, shape, data = t[EXPERT(1, 1, 'down')]
    t[EXPERT(1, 1, 'down')] = (dtype, shape[::-1], data)


def stack(t, experts=4):
    """As transformers 5 keeps them in memory."""
    for block, (name, parts) in itertools.product(range(2), {'gate_up': ('gate', 'up'), 'down': ('down',)}.items()):
        all_of = [t[EXPERT(block, e, part)] for e in range(experts) for part in parts]
        dtype, (rows, columns), _ = all_of[0]
        t[f'model.layers.{block}.mlp.experts.{name}_proj'] = (dtype, [experts, rows * len(parts), columns],
                                                             b''.join(data for _, _, data in all_of))


def stacked(t, experts=4):
    stack(t, experts)
    for name in [name for name in t if re.search(r'experts\.[0-9]', name)]:
        del t[name]


def stacked_bare(t):
    stacked(t)
    for name in list(t):
        t[name.removeprefix('model.')] = t.pop(name)


def stacked_too_few(t):
    stacked(t, 3)


def twice(t):
    stack(t)


CHANGES = {
    drop: '1 of the model\'s tensors are missing, the first of them transformer.h.1.ln_2.bias [8]',
    add: 'transformer.h.1.ln_2.bia [8] is not a tensor of this model; nearest is transformer.h.1.ln_2.bias',
    not_finite: 'element 5 of transformer.wpe.weight is not a finite number',
    other_head: 'say model.tie_word_embeddings=false',
    same_head: None, bare: None, buffers: None,
    no_matrix: '1 of the model\'s tensors are missing, the first of them model.layers.1.mlp.experts.2.up_proj.weight [8,16]',
    no_expert: '6 of the model\'s tensors are missing, the first of them model.layers.0.mlp.experts.3.gate_proj.weight [8,16]',
    one_more: 'model.layers.0.mlp.experts.4.down_proj.weight [16,8] is not a tensor of this model',
    other_shape: 'model.layers.1.mlp.experts.1.down_proj.weight has shape [8,16], but this model wants [16,8]',
    stacked: None, stacked_bare: None,
    stacked_too_few: 'model.layers.0.mlp.experts.gate_up_proj has shape [3,16,16], but this model wants [4,16,16]',
    twice: 'it has the same experts twice, in model.layers.0.mlp.experts.gate_up_proj and in '
           'model.layers.0.mlp.experts.0.gate_proj.weight and its like',
}
OF_EXPERTS = no_matrix, no_expert, one_more, other_shape, stacked, stacked_bare, stacked_too_few, twice


def case_changed(change):
    """A file that differs from what save_pretrained() writes: harmless differences load, the rest is refused."""
    folder, name = pathlib.Path(change.__name__), 'qwen3_moe' if change in OF_EXPERTS else 'gpt2'
    copy_golden(name, folder / 'hf')
    t = tensors(HERE / name / 'model.safetensors')
    change(t)
    pack(t, folder / 'hf/model.safetensors')
    tokens(name)
    config = {**RUN, 'model.hf_assets_path': f'../{folder}/hf', 'training.steps': 1}
    if CHANGES[change]:
        return refused(f'{folder}-run', config, CHANGES[change])
    steps = job.train(f'{folder}-run', config)
    return job.differ('loss', job.losses(steps), expected(name)['losses'][:1], LOSS_BOUND)


def case_stacked():
    """`sherd ckpt import` of experts that are stacked; the export has them apart, as transformers writes them."""
    copy_golden('mixtral', 'stack')
    t = folder_tensors('stack')
    for name in list(t):
        new = name.replace('block_sparse_moe', 'mlp')
        for ours, theirs in ('w1', 'gate_proj'), ('w3', 'up_proj'), ('w2', 'down_proj'):
            new = new.replace(f'.{ours}.', f'.{theirs}.')
        t[new] = t.pop(name)
    stacked(t)
    for path in pathlib.Path('stack').glob('model*'):
        path.unlink()
    pack(t, 'stack/model.safetensors')
    for folder in 'stack-ckpt', 'stack-out':
        shutil.rmtree(folder, ignore_errors=True)
    job.sherd('ckpt', 'import', 'stack', '-o', 'stack-ckpt')
    job.sherd('ckpt', 'export', 'stack-ckpt', '-o', 'stack-out', '--dtype', 'bfloat16')
    return differ(HERE / 'mixtral', 'stack-out')


def case_blocks():
    """Experts over several blocks of a checkpoint, and over files that end inside such blocks."""
    tokens('qwen3_moe')
    sizes = {'family': 'qwen3_moe', 'n_layers': 1, 'dim': 256, 'n_heads': 2, 'n_experts': 12, 'n_experts_per_token': 1,
             'expert_ffn_dim': 384, 'vocab_size': 32, 'max_seq_len': 16}
    job.train('blocks', {**RUN, **{f'model.{key}': value for key, value in sizes.items()}, 'training.steps': 1,
                         'checkpoint.last_save_in_hf': True, 'checkpoint.export_dtype': 'float32'})
    checkpoints, wrong = pathlib.Path('blocks/out/checkpoint'), []
    for size in '500KB', '2MB', '5GB':
        job.sherd('ckpt', 'export', checkpoints / 'step-00000001.h5', '-o', f'blocks/{size}', '--max-shard-size', size)
        wrong += [f'{size}: {line}' for line in differ(checkpoints / 'hf-00000001', f'blocks/{size}')]
    job.sherd('ckpt', 'import', 'blocks/500KB', '-o', 'blocks/again')
    job.sherd('ckpt', 'export', 'blocks/again', '-o', 'blocks/last')
    return wrong + differ('blocks/5GB', 'blocks/last')


def case_allow_nan():
    """An import refuses a weight that is not finite, or takes it unchanged."""
    copy_golden('gpt2', 'nan')
    t = tensors(HERE / 'gpt2/model.safetensors')
    not_finite(t)
    pack(t, 'nan/model.safetensors')
    for folder in 'nan-ckpt', 'nan-out':
        shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(job.command(0, ['ckpt', 'import', 'nan', '-o', 'nan-ckpt']), capture_output=True, text=True)
    wrong = [] if done.returncode == 3 and CHANGES[not_finite] in done.stderr else [done.stderr]
    job.sherd('ckpt', 'import', 'nan', '-o', 'nan-ckpt', '--allow-nan')
    job.sherd('ckpt', 'export', 'nan-ckpt', '-o', 'nan-out')
    return wrong + differ('nan', 'nan-out')


def too_large(t):
    dtype, shape, data = t['transformer.wpe.weight']
    t['transformer.wpe.weight'] = (dtype, shape, data[:20] + struct.pack('<f', 70000) + data[24:])


def case_too_large():
    """A number beyond float16: no folder, from `ckpt export` or at the end of a run, whose checkpoint exists."""
    for folder in 'large-ckpt', 'large-out':
        shutil.rmtree(folder, ignore_errors=True)
    copy_golden('gpt2', 'large')
    t = tensors(HERE / 'gpt2/model.safetensors')
    too_large(t)
    pack(t, 'large/model.safetensors')
    job.sherd('ckpt', 'import', 'large', '-o', 'large-ckpt')
    tokens('gpt2')
    job.prepare('large-run', {**RUN, 'model.hf_assets_path': '../large', 'training.steps': 1, 'job.dump_folder': 'out',
                              'checkpoint.last_save_in_hf': True, 'checkpoint.export_dtype': 'float16'})
    wrong = []
    for words in ['ckpt', 'export', '../large-ckpt', '-o', '../large-out', '--dtype', 'float16'], ['train', 'c.yaml']:
        done = subprocess.run(job.command(0, words), cwd='large-run', capture_output=True, text=True, env=job.environment(0))
        lines = [line for line in done.stderr.splitlines() if line.startswith('sherd: error')]
        if done.returncode != 6 or len(lines) != 1 or 'element 5 of transformer.wpe.weight is ' not in lines[0]:
            wrong.append(f'{words[0]}: exit {done.returncode}, {done.stderr}')
    left = [name for name in os.listdir('.') if 'large-out' in name] + os.listdir('large-run/out/checkpoint')
    return wrong + ([] if sorted(left) == ['.lock', 'step-00000001.h5'] else [f'left {left}'])


def case_cut():
    """A file that ends early."""
    copy_golden('gpt2', 'cut')
    data = pathlib.Path('cut/model.safetensors').read_bytes()
    pathlib.Path('cut/model.safetensors').write_bytes(data[:-4])
    tokens('gpt2')
    return refused('cut-run', {**RUN, 'model.hf_assets_path': '../cut'}, 'its data lies outside the file')


def case_existing():
    """An existing folder is never written into, and a run that would end there does not start."""
    import_export('gpt2')
    done = subprocess.run(job.command(0, ['ckpt', 'export', 'imported-gpt2', '-o', 'exported-gpt2']), capture_output=True,
                          text=True)
    wrong = [] if done.returncode == 2 and 'exists already' in done.stderr else [done.stderr]
    tokens('gpt2')
    config = {**RUN, 'model.hf_assets_path': str(HERE / 'gpt2'), 'checkpoint.last_save_in_hf': True, 'job.dump_folder': 'out'}
    job.prepare('there', config)
    os.makedirs('there/out/checkpoint/hf-00000004')
    done = subprocess.run(job.command(0, ['train', 'c.yaml']), cwd='there', capture_output=True, text=True)
    return wrong + ([] if done.returncode == 2 and 'hf-00000004 exists already' in done.stderr else [done.stderr])


def case_full():
    """A disk that is full, at any byte: one line, and nothing is left behind."""
    import_export('gpt2')
    shutil.rmtree('full', ignore_errors=True)
    os.mkdir('full')
    wrong = []
    for words, whole in ((['ckpt', 'export', 'imported-gpt2', '-o', 'full/out'], 11072),
                         (['ckpt', 'import', str(HERE / 'gpt2'), '-o', 'full/out'], 40000)):
        for limit in 0, 100, 4096, whole - 1:
            def bound(limit=limit):
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            done = subprocess.run(job.command(0, words), capture_output=True, text=True, preexec_fn=bound,
                                  restore_signals=False)  # SIGXFSZ stays ignored
            left = [name for _, folders, files in os.walk('full') for name in [*folders, *files] if name not in ('out', '.lock')]
            errors = [line for line in done.stderr.splitlines() if line.startswith('sherd: error')]
            if done.returncode != 3 or len(errors) != 1 or left:
                wrong.append(f'{words[1]} with {limit} bytes: exit {done.returncode}, left {left}: {done.stderr}')
            shutil.rmtree('full/out', ignore_errors=True)
    return wrong


def case_trust():
    """Weights that others may write are refused unless trusted: they decide what a run trains on."""
    copy_golden('gpt2', 'open')
    os.chmod('open/model.safetensors', 0o666)
    tokens('gpt2')
    config = {**RUN, 'model.hf_assets_path': '../open', 'training.steps': 1}
    wrong = refused('open-run', config, 'model.safetensors')
    job.train('open-run', {**config, 'checkpoint.trust': 'any'})
    return wrong


def case_resume():
    """A checkpoint of the run takes precedence over the folder; the last step saved in transformers' form equals an
    export."""
    tokens('llama')
    config = {**RUN, 'model.hf_assets_path': str(HERE / 'llama'), 'job.dump_folder': 'out'}
    one = job.train('one', {**config, 'training.steps': 2})
    job.train('two', {**config, 'training.steps': 1, 'lr_scheduler.total_steps': 2})
    job.sherd('train', 'c.yaml', '--training.steps=2', '--checkpoint.last_save_in_hf=true', folder='two')
    two = job.metrics('two')
    job.sherd('ckpt', 'export', 'one/out', '-o', 'one/hf')
    wrong = job.differ('loss', job.losses(two), job.losses(one), 0) + differ('one/hf', 'two/out/checkpoint/hf-00000002')
    # A job that was killed after its last checkpoint, before the export or during it.
    shutil.rmtree('two/out/checkpoint/hf-00000002')
    os.mkdir('two/out/checkpoint/.hf-00000002.0123456789.tmp')
    again = ('train', 'c.yaml', '--training.steps=2', '--checkpoint.last_save_in_hf=true')
    job.sherd(*again, folder='two')
    wrong += differ('one/hf', 'two/out/checkpoint/hf-00000002')
    before = pathlib.Path('two/out/checkpoint/hf-00000002/model.safetensors').stat()
    job.sherd(*again, folder='two')
    after = pathlib.Path('two/out/checkpoint/hf-00000002/model.safetensors').stat()
    return wrong + ([] if (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns) else ['exported twice'])


if __name__ == '__main__':
    meshes = [(f'{name}: {mesh}', case_mesh, name, mesh) for name in FAMILIES for mesh in MESHES
              if name in ('gpt2', 'llama', 'mixtral') or mesh == '4 ranks, full_shard']
    sys.exit(job.run_cases(
        [(f'{name}: losses of transformers', case_losses, name) for name in FAMILIES]
        + [('mistral: sequences longer than its window', case_window, 'mistral'), ('a window that no export has', case_no_window)]
        + [(f'{name}: import and export', case_import_export, name) for name in FAMILIES]
        + [('a plan from config.json', case_plan), ('the architecture alone', case_architecture_only)]
        + [(f'a folder with {change.__name__}', case_changed, change) for change in CHANGES]
        + [('experts that are stacked', case_stacked), ('experts over several blocks', case_blocks)]
        + [('weights that are not finite', case_allow_nan), ('weights that float16 has not', case_too_large)]
        + [('a file that is cut', case_cut), ('a folder that exists', case_existing), ('no room', case_full),
           ('weights that others may write', case_trust), ('a resume', case_resume)]
        + ([*meshes, ('llama: many files on 3 ranks', case_files)] if job.can_launch() else [])))
