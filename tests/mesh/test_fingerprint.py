#!/usr/bin/env python3
"""debug.fingerprint and `sherd diff`: records of a step are equal byte for byte over meshes, strategies, recomputation and
homes of tensors if the step is; where it is not, the first tensor that differs is named. So are metrics.norms, and they
are what the records say. Prints TAP."""
import json
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

MESH = {'training.reproducible': 'mesh'}
BASE = {**tiny.MODELS['llama'], **MESH, 'training.steps': 4, 'training.global_batch_size': 8, 'training.local_batch_size': 2,
        'lr_scheduler.total_steps': 10, 'debug.fingerprint': 'f.jsonl', 'debug.fingerprint_steps': '1,3-4',
        'checkpoint.enable': False, 'comm.shared_memory': 'off',
        'metrics.norms': 'parameters', 'metrics.log_freq': 3}
RANKS = 2 if job.can_launch() else 0
NARROW = {'training.mixed_precision_param': 'bfloat16'}
NVME = {'offload.optimizer': 'nvme', 'offload.nvme_path': '.', 'model.dim': 64, 'model.n_heads': 4, 'model.head_dim': 16}
MUON = {'optimizer.name': 'muon', 'model.dim': 32, 'model.n_heads': 4, 'model.head_dim': 8, 'model.ffn_dim': 64}
FORWARD = 'forward layers.0.'
# Meshes, and what changes with them: nothing. The same changes on one rank, as far as they change the model, are what
# each is compared with.
SAME = {
    'full_shard over 2': (2, {}, {}),
    'full_shard over 8, two threads': (8, {'training.local_batch_size': 1}, {'training.threads': 2}),
    'no_shard over 4, recomputed': (4, {}, {'parallelism.sharding_strategy': 'no_shard', 'activation_checkpoint.mode': 'full'}),
    'hybrid_shard 2 x 2': (4, {}, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2}),
    'shard_optim in shared memory': (2, {}, {'parallelism.sharding_strategy': 'shard_optim', 'comm.shared_memory': 'auto'}),
    'bfloat16': (2, NARROW, {'parallelism.sharding_strategy': 'shard_grad_op'}),
    'float16': (2, {'training.mixed_precision_param': 'float16'}, {}),
    'adapters': (2, {'lora.rank': 2}, {'activation_checkpoint.mode': 'full'}),
    'experts': (2, {**tiny.EXPERTS, **{key: BASE[key] for key in BASE if key.startswith(('training.', 'lr_'))}}, {}),
    'states in a file': (2, NVME, NVME),
    'muon, carried out later': (2, {**MUON, 'metrics.norms': 'off'}, {}),
    'muon, states in a file': (2, {**MUON, **NVME}, NVME),
}
WIDE = {'model.n_heads': 4, 'model.n_kv_heads': 4, 'model.ffn_dim': 32, 'training.seq_len': 32, 'model.max_seq_len': 32}
EXPERTS = {**tiny.EXPERTS, **{key: BASE[key] for key in BASE if key.startswith(('training.', 'lr_'))}, **WIDE, 'model.n_experts': 8}
# 192 rows, and 96 of each part: where products are oneDNN's, the bits of those beyond a multiple of 48 depend on how many there are.
ONE, LEAVES, LOOSE = {'training.local_batch_size': 6, 'training.global_batch_size': 6}, {'training.row_leaves': 2}, {'training.reproducible': 'none'}
TENSOR, CONTEXT = ({f'parallelism.{axis}_parallel_degree': 2} for axis in ('tensor', 'context'))
GATHER = {**CONTEXT, 'parallelism.context_parallel_method': 'gather'}
ROUNDED, PARTED_ROWS, BALANCED = ': compared up to rounding', 'tensor degrees differ (1, 2)', 'up to the first gradient of a router'
GPT2 = {**tiny.MODELS['gpt2'], **{key: BASE[key] for key in BASE if key.startswith(('training.', 'lr_'))}, **WIDE, 'model.n_kv_heads': None, 'model.dim': 16}
# Updates stand between the last sum of a block and the norm with which it is fused.
SAME['muon, carried out later, norms'] = (2, {**GPT2, **MUON, 'model.n_layers': 4, 'model.dim': 64, 'model.head_dim': 16, 'model.tie_word_embeddings': False,
                                              'training.global_batch_size': 4}, {'parallelism.sharding_strategy': 'shard_optim'})
# Degrees: ranks, the model, what else one rank has, what many have, what is said, and how much of the records is compared.
DEGREES = {
    'sequences over 2, to the last bit': (2, {**WIDE, **ONE, **LEAVES}, {}, CONTEXT, 'equal to the last bit', 0.9),
    'sequences over 2': (2, {**GPT2, **LOOSE}, {}, CONTEXT, 'numbers of ranks differ', 0.9),
    'keys and values gathered': (2, {**WIDE, **LOOSE}, {}, GATHER, ROUNDED, 0.9),
    'leaves of rows': (2, {**GPT2, **ONE}, {}, {**CONTEXT, **LEAVES}, 'training.row_leaves differ (1, 2)', 0.9),
    'matrices over 2': (2, WIDE, {}, TENSOR, PARTED_ROWS, 0.6),
    'matrices over 2, in tiles': (2, {**GPT2, **LOOSE}, {}, {**TENSOR, 'parallelism.tensor_parallel_tiles': 2}, PARTED_ROWS, 0.6),
    'matrices over 2, sequences over 2, bfloat16': (4, {**WIDE, **LOOSE, **NARROW}, {}, {**TENSOR, **CONTEXT}, PARTED_ROWS, 0.6),
    'experts over 2': (2, EXPERTS, {}, {'parallelism.expert_parallel_degree': 2}, 'equal to the last bit', 1),
    'experts over 2 of 2': (2, {**EXPERTS, **LOOSE}, 2, {'parallelism.expert_parallel_degree': 2}, 'expert degrees differ (1, 2)', 1),
    'experts over 2 of 2, codes of other neighbours': (2, {**EXPERTS, **LOOSE, 'parallelism.gather_dtype': 'int8'}, 2, {'parallelism.expert_parallel_degree': 2},
                                                       'expert degrees differ (1, 2)', 1),
    'experts, sequences over 2': (2, {**EXPERTS, **LOOSE}, {}, CONTEXT, BALANCED, 0.6),
    'experts, matrices and keys over 2': (4, {**EXPERTS, **LOOSE}, {}, {**TENSOR, **GATHER}, BALANCED, 0.5),
}
# What changes the order of sums on as many ranks with the same degrees, and what is said of it.
ORDERS = {
    'keys and values gathered or not': (2, {**WIDE, **LOOSE, **CONTEXT}, GATHER, 'pieces of a sequence on a rank differ (1, 2; parallelism.context_parallel_method), which changes last bits'),
    'a tree or none': (2, {}, LOOSE, 'training.reproducible differ (1, 0; 1: mesh), which changes last bits'),
}
# What makes a run differ, the step from which on, and the first tensor that does.
PARTED = {
    'initial values': ({'debug.seed': 5}, 1, 'parameter model.embed_tokens.weight', None),
    'data': ({'data.shuffle': False}, 1, 'tokens', None),
    'weight decay': ({'optimizer.weight_decay': 0.3}, 3, 'parameter model.embed_tokens.weight', None),
    'the second moment': ({'optimizer.beta2': 0.9}, 3, 'parameter model.embed_tokens.weight', None),
    'norms': ({'model.norm_eps': 1e-3}, 1, FORWARD + 'norm of model.layers.0.input_layernorm.weight', 'norm'),
    'rotary positions': ({'model.rope_theta': 5000}, 1, FORWARD + 'rotated', 'rope'),
    'a window': ({'model.attention_window': 4}, 1, FORWARD + 'attention', 'attention'),
    'sums over rows': ({'debug.row_block': 5}, 1, 'gradient model.', None),
}


def run(folder, config, ranks=0):
    config = {'training.dataset_path': tokens, **BASE, **config}
    job.train(folder, {key: value for key, value in config.items() if value is not None}, ranks)
    return pathlib.Path(folder, 'f.jsonl')


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def made_once(path):
    """Without what was computed again, and without what each operation reads, which may be that."""
    return [{key: value for key, value in record.items() if key != 'in'} for record in records(path)
            if not record['name'].startswith('recompute ')]


def diff(*words):
    done = subprocess.run(job.command(0, ['diff', *words]), capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def norms(folder):
    """By step: metrics.norms without the seconds."""
    return {line['step']: {kind: line['norms'][kind] for kind in ('gradient', 'parameter', 'update', 'largest')}
            for line in job.metrics(folder) if 'norms' in line}


def differs(a, b, tolerance=1e-6):
    return abs(a - b) > tolerance * max(abs(a), abs(b))


def case_norms(own):
    """Gradients and parameters have the norms of their records, an update about the one that signed sums estimate; and a
    block has that of its parameters."""
    known = {(record['step'], record['name']): record for record in records(run('one', own))}
    found = norms('one')
    wrong = [f'norms in steps {sorted(found)}'] * (sorted(found) != [1, 3, 4])
    names = [name.split(' ')[1] for step, name in known if step == 4 and name.startswith('gradient ')]
    for step, of in found.items():
        largest = of.pop('largest')
        made = {}
        for (at, name), record in known.items():
            block = re.match(r'forward (layers\.\d+)\.(?!.*(rstd|lse))', name)
            if block and at == step:
                made[block[1]] = max(made.get(block[1], 0), record['largest'])
        wrong += [f'step {step}: largest {largest}, and of records {made}'] * (
            sorted(largest) != sorted(made) or any(differs(largest[block], made[block]) for block in made))
    wrong += [f'{kind}: {sorted(of)}' for step in found.values() for kind, of in step.items() if sorted(of) != sorted(names)]
    for name in names:
        before, after = (known[step, f'parameter {name}'] for step in (3, 4))
        signs = [b - a for a, b in zip(before['signs'], after['signs'])]
        estimate = (sum(x * x for x in signs) / len(signs)) ** 0.5
        wrong += [f'{name}: gradient of step {step}' for step in found
                  if differs(found[step]['gradient'][name], known[step, f'gradient {name}']['norm'])]
        wrong += [f'{name}: parameter'] * differs(found[3]['parameter'][name], after['norm'])
        wrong += [f'{name}: update of {found[3]["update"][name]}, about {estimate}'] * (
            not 0.1 < estimate / found[3]['update'][name] < 5)
    run('blocks', {**own, 'metrics.norms': 'blocks', 'debug.fingerprint': ''})
    blocks = norms('blocks')[3]
    blocks.pop('largest')
    wrong += [f'blocks {list(blocks["update"])}'] * (len(blocks['update']) >= len(names) or 'model.layers.1' not in blocks['update'])
    for kind, block in ((kind, block) for kind in blocks for block in blocks[kind]):
        parts = sum(x * x for name, x in found[3][kind].items() if name == block or name.startswith(block + '.')) ** 0.5
        wrong += [f'{kind} of {block}: {blocks[kind][block]}, and {parts} of its parameters'] * differs(blocks[kind][block], parts)
    return wrong


def case_same(ranks, model, changes):
    one = run('one', {key: value for key, value in model.items() if not key.startswith('offload.')})
    many = run('many', {**model, **changes}, ranks)
    ours, theirs = made_once(many), made_once(one)
    wrong = [f'{len(ours)} records, and {len(theirs)} on one rank'] * (len(ours) != len(theirs))
    wrong += [f'{a} is on one rank {b}' for a, b in zip(ours, theirs) if a != b][:1]
    wrong += [f'steps {sorted({record["step"] for record in ours})}'] * ({record['step'] for record in ours} != {1, 3, 4})
    wrong += [f'step {step}: norms {norms("many")[step]}, on one rank {of}' for step, of in norms('one').items()
              if norms('many')[step] != of]
    status, said, error = diff(one, many)
    wrong += [f'exit {status}: {said}{error}'] * (status != 0 or 'equal to the last bit' not in said)
    again = any(record['name'].startswith('recompute ') for record in records(many))
    status, said, error = diff(many)
    wrong += [f'alone, exit {status}: {said}{error}'] * (status != (0 if again else 2))
    return wrong


def case_degrees(ranks, model, alone, changes, text, share):
    """Records that two degrees share are equal, to the last bit or up to rounding; what ranks have in parts has other names, and
    all of it is recorded. A run that is wrong is named."""
    one = run('one', model, alone or 0)
    many, wrong = run('many', {**model, **changes}, ranks), []
    status, said, error = diff(one, many)
    wrong += [f'exit {status}: {said}{error}'] * (status != 0 or text not in said)
    found = int(re.search(r'^(\d+) records', said, re.M)[1]) if not status else 0
    wrong += [f'{found} of {len(records(one))} records compared: {said}'] * (found < share * len(records(one)))
    wrong += [f'tokens differ: {said}'] * (len([line for line in records(one) + records(many) if line['name'] == 'tokens']) != 6)
    apart = {(line['step'], line['name']): line['norm'] for line in records(many) if line['name'].endswith(' (in 2 parts)')}
    for line in records(one):
        norm = apart.get((line['step'], line['name'] + ' (in 2 parts)'))
        if norm and line['step'] == 1 and line['name'].startswith('forward layers.0.') and line['kind'] == 'attention':
            wrong += [f'{line["name"]}: {norm} in parts'] * differs(norm, line['norm'], 1e-2 if 'training.mixed_precision_param' in model else 1e-5)
    wrong += [f'parts {sorted(apart)[:3]}'] * (bool(apart) != (TENSOR.items() <= changes.items()))
    status, said, _ = diff(one, run('wrong', {**model, **changes, 'model.norm_eps': 1e-2}, ranks))
    return wrong + [f'wrong, exit {status}: {said}'] * (status != 3 or not re.search(r'step 1: first difference.*: forward layers\.0\.(norm|rstd)', said))


def case_order(ranks, model, changes, text):
    """Other last bits are explained; a run that is wrong by more is still named."""
    one, other = run('one', model, ranks), run('other', {**model, **changes}, ranks)
    status, said, error = diff(one, other)
    wrong = [f'exit {status}: {said}{error}'] * (status != 0 or text not in said or 'equal up to rounding' not in said)
    status, said, _ = diff(one, run('wrong', {**model, **changes, 'model.norm_eps': 1e-3}, ranks))
    return wrong + [f'wrong, exit {status}: {said}'] * (status != 3 or 'beyond rounding: forward layers.0.' not in said)


def case_file():
    """What step 4 begins with is, by its records, what the file of step 3 holds, whose digests numpy finds, too."""
    import numpy

    import checkpoint
    known = {record['name']: record for record in records(run('file', {'checkpoint.enable': True, 'checkpoint.interval': 3}, RANKS))
             if record['step'] == 4}
    path = pathlib.Path('file/out/checkpoint/step-00000003.h5')
    wrong, found = checkpoint.verify(path), 0
    for state, word in (('model', 'parameter'), ('optimizer/exp_avg', 'exp_avg'), ('optimizer/exp_avg_sq', 'exp_avg_sq')):
        for name, values in checkpoint.read(path, state).items():
            flat = numpy.ascontiguousarray(values, dtype='<f4').reshape(-1)
            seed = checkpoint.hash64(f'{word} {name}'.encode())
            with numpy.errstate(over='ignore'):
                place = numpy.arange(len(flat), dtype=numpy.uint64) * checkpoint.GOLDEN + numpy.uint64(seed)
                total = checkpoint.mix(flat.view(numpy.uint32).astype(numpy.uint64) ^ place).sum(dtype=numpy.uint64)
            found += 1
            wrong += [f'{word} {name}: {known[f"{word} {name}"]["sum"]}, of the file {int(total):016x}'] * (
                known[f'{word} {name}']['sum'] != f'{int(total):016x}')
    return wrong + [f'{found} arrays'] * (found < 30)


def case_tiles():
    """Tiles change the last bits of sums of rows: that is said, and a run that is wrong by more is still named."""
    shared = {**MESH, 'training.reproducible': 'none', 'parallelism.tensor_parallel_degree': 2, 'model.n_heads': 2, 'model.n_kv_heads': 2,
              'model.ffn_dim': 32}
    tiles = {**shared, 'parallelism.tensor_parallel_tiles': 2}
    whole, other, wrong = run('whole', shared, 2), run('tiles', tiles, 2), []
    same, edited = run('again', tiles, 2), pathlib.Path('edited.jsonl')

    def expect(wanted, text, a, b):
        status, said, error = diff(a, b)
        return [f'exit {status}: {said}{error}'] * (status != wanted or text not in said + error)

    one = run('one', {key: value for key, value in shared.items() if 'parallel' not in key})
    tokens_of = [[record for record in records(path) if record['name'] == 'tokens'] for path in (one, whole)]
    wrong += [f'tokens {tokens_of}'] * (tokens_of[0] != tokens_of[1] or len(tokens_of[0]) != 3)
    wrong += expect(0, 'parallelism.tensor_parallel_tiles differ (1, 2), which changes last bits, first those of step 1, ', whole, other)
    wrong += expect(0, 'equal to the last bit', other, same)
    wrong += expect(3, 'beyond rounding: forward layers.0.', whole, run('wrong', {**tiles, 'model.norm_eps': 1e-3}, 2))
    head, *lines = whole.read_text().splitlines()
    for change, status, text in (({'tile_rows': 64}, 0, 'equal to the last bit'), ({'tile_rows': -1}, 3, 'not the head'), ({'tiles': 'x'}, 3, 'not the head'),
                                 ({'context': 0}, 3, 'not the head'), ({'row_leaves': 2}, 0, 'training.row_leaves differ (1, 2)')):
        edited.write_text('\n'.join([json.dumps({**json.loads(head), **change}), *lines, '']))
        wrong += expect(status, text, whole, edited)
    at, record = next((i, json.loads(line)) for i, line in enumerate(lines) if '"gradient ' in line)
    lines[at] = json.dumps({**record, 'sum': '0123456789abcdef'})
    edited.write_text('\n'.join([json.dumps({**json.loads(head), 'tile_rows': 64}), *lines, '']))
    wrong += expect(0, 'training.tile_rows differ (0, 64; 0: whole blocks), which changes last bits, first those of step 1, gradient ', whole, edited)
    edited.write_text('\n'.join([head, *lines, '']))
    wrong += expect(3, 'first difference: gradient ', whole, edited)
    head, *lines = other.read_text().splitlines()  # as of an earlier version, which does not say its tiles
    at, record = next((i, json.loads(line)) for i, line in enumerate(lines) if '"gradient ' in line)
    lines[at] = json.dumps({**record, 'sum': '0123456789abcdef'})
    older = pathlib.Path('older.jsonl')
    older.write_text('\n'.join([json.dumps({key: value for key, value in json.loads(head).items() if key != 'tiles'}), *lines, '']))
    return wrong + expect(3, 'first difference: gradient ', other, older) + expect(3, 'first difference: gradient ', older, other)


def case_leaves():
    """What micro-steps add up to is the sum of a record, the same on any mesh; a token that is another one is found in its
    sequences, with the ranks that read it."""
    apart, wrong = {'debug.fingerprint_leaves': True, 'data.shuffle': False}, []
    one, many = run('one', apart), run('many', {**apart, 'training.threads': 2}, 4)
    for a, b in zip(records(one), records(many)):
        ours, theirs = ([leaf[0] for leaf in record.get('leaves', [])] for record in (a, b))
        if ours != theirs or (ours and f'{sum(int(leaf, 16) for leaf in ours) % 2 ** 64:016x}' != a['sum']) or \
                len(ours) != 4 * a['name'].startswith(('tokens', 'forward ', 'backward ')):
            wrong.append(f'{a["name"]} {a["sum"]}: {ours}, on 4 ranks {theirs}')
        if theirs and [leaf[1] for leaf in b['leaves']] != [0, 1, 2, 3]:
            wrong.append(f'{b["name"]} is made by {b["leaves"]}')
    data = bytearray(pathlib.Path(tokens).read_bytes())
    data[2 * ((2 * 8 + 5) * BASE['training.seq_len'] + 3)] ^= 1  # of sequence 5 of step 3
    pathlib.Path('changed.bin').write_bytes(data)
    other = run('other', {**apart, 'training.dataset_path': str(pathlib.Path('changed.bin').absolute())}, 2)
    for a, b, ranks in (one, other, [0, 1]), (many, other, [2, 1]):
        status, said, _ = diff(a, b, '--json')
        found = json.loads(said)
        wrong += [said] * (status != 3 or (found['step'], found['name']) != (3, 'tokens') or
                           (found['leaf'], found['leaves'], found['ranks']) != (2, 1, ranks))
    status, said, _ = diff(many, other)
    wrong += [said] * (not re.search(r'in 1 of 4 micro-steps, first in that of sequences 4 to 5 of the step, by rank 2 on \S+ and rank 1 on ', said))
    number = next(i for i, record in enumerate(records(one), 1) if 'leaves' in record)
    for what in '"leaves": [[1, ', '"leaves": [["", -1], [', '"leaves": [7, [':
        status, said, error = diff(one, spoil(one, number, lambda line, what=what: line.replace('"leaves": [[', what)))
        wrong += [f'{what}: exit {status}: {said}{error}'] * (status != 3 or 'spoilt.jsonl' not in error or bool(said))
    wrong += refused({'debug.fingerprint_leaves': True, 'debug.fingerprint': ''}, 'debug.fingerprint_leaves')
    return wrong + refused({'debug.fingerprint_leaves': True, 'training.reproducible': 'none', 'training.batch_schedule': '0:8, 2:8194', 'training.global_batch_size': -1,
                            'debug.fingerprint_steps': '2-9'}, 'step 3 has 4097 micro-steps, and at most 4096')


def case_parted(change, step, name, kind):
    one, other = run('one', {}), run('other', change)
    status, said, _ = diff(one, other, '--json')
    found = json.loads(said)
    wrong = [f'exit {status}, {found}'] * (status != 3 or found['equal'] or not found['bits'])
    wrong += [f'step {found.get("step")}, expected {step}'] * (found.get('step') != step)
    wrong += [f'{found.get("name")}, expected {name}'] * (not found.get('name', '').startswith(name))
    wrong += [f'made by {found.get("kind")}, expected {kind}'] * (found.get('kind') != kind)
    status, said, _ = diff(one, other)
    return wrong + [f'{said}does not name it'] * (f'step {step}: first difference: {name}' not in said)


def case_rounding():
    """Runs that may differ by roundings do not part; one that does more is found beside them."""
    one, other = run('one', {}), run('other', NARROW)
    status, said, error = diff(one, other)
    wrong = [f'exit {status}: {said}{error}'] * (status != 0 or 'types differ (f32, bf16)' not in said)
    two = run('two', {'training.reproducible': 'none', 'parallelism.sharding_strategy': 'no_shard'}, 2 * job.can_launch())
    status, said, error = diff(one, two)
    wrong += [f'exit {status}: {said}{error}'] * (status != 0)
    wrong += [f'nothing said of ranks: {said}'] * (job.can_launch() and 'numbers of ranks differ' not in said)
    for change in NARROW, {'training.kernels': 'ref'}:
        status, said, _ = diff(one, run('wrong', {**change, 'model.rope_theta': 3}))
        wrong += [f'{change}: exit {status}: {said}'] * (status != 3 or f'beyond rounding: {FORWARD}rotated' not in said)
    status, said, error = diff(one, run('ref', {'training.kernels': 'ref'}))
    wrong += [f'exit {status}: {said}{error}'] * (status != 0 or 'devices differ (cpu, ref)' not in said)
    os.environ['ONEDNN_MAX_CPU_ISA'] = 'AVX2'  # other products on the same device
    older = run('older', NARROW)
    del os.environ['ONEDNN_MAX_CPU_ISA']
    status, said, error = diff(other, older, '--tolerance', '10')
    wrong += [f'exit {status}: {said}{error}'] * (status != 0)
    status, said, _ = diff(one, other, '--tolerance', '1e9')
    return wrong + [f'with 1e9, exit {status}: {said}'] * (status != 0)


def case_tolerance():
    """The option decides: what agrees by the default does not to the last bit's roundings."""
    one, other = run('one', {}), run('other', {'debug.row_block': 5})
    return [f'{words}: exit {diff(one, other, *words)[0]}' for words, status in (((), 3), (('--tolerance', '10'), 0))
            if diff(one, other, *words)[0] != status]


def spoil(path, number, change):
    lines = path.read_text().splitlines(True)
    lines[number] = change(lines[number])
    spoilt = path.with_name('spoilt.jsonl')
    spoilt.write_text(''.join(lines))
    return spoilt


def case_damaged():
    path = run('one', {})
    number = len(records(path)) // 2
    damages = {
        'cut short': (number, lambda line: line[:-9]), 'no JSON': (number, lambda line: line.replace('{', '', 1)),
        'no sum': (number, lambda line: line.replace('"sum"', '"som"')), 'seven signs': (number, lambda line: line.replace('"signs": [', '"signs": [[],')),
        'a number too large': (number, lambda line: line.replace('"bad": 0', '"bad": 99999999999999999999')),
        'inputs that are numbers': (number, lambda line: line.replace('}\n', ', "in": [1]}\n')),
        'another version': (0, lambda line: line.replace('"fingerprint": 1', '"fingerprint": 2')),
        'no head': (0, lambda line: line.replace('"device"', '"devise"')),
        'a record twice': (number, lambda line: line + line), 'steps that go back': (len(records(path)), lambda line: line.replace('"step": 4', '"step": 1')),
        'a zero byte': (number, lambda line: line[:9] + '\0' + line[10:]),
    }
    wrong = []
    for what, (line, change) in damages.items():
        spoilt = spoil(path, line, change)
        status, said, error = diff(path, spoilt)
        if status != 3 or 'spoilt.jsonl' not in error or said:
            wrong.append(f'{what}: exit {status}: {said}{error}')
    names = ', '.join(['"a-node-with-a-long-name"'] * 65536)
    status, said, error = diff(path, spoil(path, 0, lambda line: line.replace('}', f', "hosts": [{names}]}}')))
    wrong += [f'65536 nodes: exit {status}: {said}{error}'] * (status != 0)
    status, _, error = diff(path, 'nowhere.jsonl')
    return wrong + [f'no file: exit {status}: {error}'] * (status != 3 or 'nowhere.jsonl' not in error)


def refused(config, text):
    job.prepare('refused', {'job.dump_folder': 'out', 'training.dataset_path': tokens, **BASE, **config})
    done = subprocess.run(job.command(0, ['train', 'c.yaml']), capture_output=True, text=True, cwd='refused')
    return [f'{config}: exit {done.returncode}: {done.stderr}'] * (done.returncode not in (2, 3) or text not in done.stderr or 'step    1/' in done.stderr)


def case_refused():
    wrong = refused({'debug.fingerprint_steps': '1,0'}, 'debug.fingerprint_steps')
    wrong += refused({'debug.fingerprint_steps': '3-2'}, 'debug.fingerprint_steps')
    wrong += refused({'debug.fingerprint': 'no/such/folder'}, 'debug.fingerprint')
    wrong += refused({**NVME, 'offload.gradients': 'nvme'}, 'gradients in a file')
    wrong += refused({**NVME, 'offload.gradients': 'nvme', 'debug.fingerprint': ''}, 'metrics.norms: gradients in a file')
    other = run('other', {'training.seq_len': 10})
    status, _, error = diff(run('one', {}), other)
    wrong += [f'other lengths: exit {status}: {error}'] * (status != 2 or '8 sequences of 12 tokens' not in error)
    status, _, error = diff(other, run('late', {'training.seq_len': 10, 'debug.fingerprint_steps': '2'}))
    return wrong + [f'no step in common: exit {status}: {error}'] * (status != 2 or 'no step in common' not in error)


if __name__ == '__main__':
    job.need_modules('h5py', 'numpy')
    tokens = tiny.write_tokens()
    cases = [(name, case_parted, *row) for name, row in PARTED.items()]
    cases += [('up to rounding', case_rounding), ('the tolerance', case_tolerance), ('norms', case_norms, {}), ('norms, NorMuon', case_norms, {**MUON, 'optimizer.name': 'normuon'}), ('damaged files', case_damaged), ('the file', case_file), ('refusals', case_refused)]
    if job.can_launch():
        cases += [(name, case_same, *row) for name, row in SAME.items()]
        cases += [(f'degrees: {name}', case_degrees, *row) for name, row in DEGREES.items()] + [(f'order: {name}', case_order, *row) for name, row in ORDERS.items()] + [('tiles', case_tiles), ('micro-steps', case_leaves)]
    sys.exit(job.run_cases(cases))
