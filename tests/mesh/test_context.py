#!/usr/bin/env python3
"""Sequences cut over ranks (parallelism.context_parallel_degree): the numbers of whole sequences. Prints TAP.

Losses, norms and validation are those of one rank to LOSS_BOUND; memory is what the plan says. So are the scores of given
texts and the loss of a token file that `sherd eval` finds. What only moves or
repeats operations on the same mesh changes no bit. A checkpoint is loaded and saved by 4 ranks with a part of each
sequence, then by one, then by 2, with the same bytes. SHERD_TEST_FEW=1 leaves out most rows.
"""
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
job.need_launcher()
job.need_modules('h5py', 'numpy')
import cut
import tiny
from cut import APART, COMMON, DOCUMENTS, FULL, ONE, SELECTIVE, STATES

CP = 'parallelism.context_parallel_degree'
WINDOW = {'model.family': 'mistral', 'model.attention_window': 5}
WIDE = {**tiny.MODELS['llama'], **COMMON, 'model.dim': 64, 'model.head_dim': 16, 'model.ffn_dim': 64}
KINDS = {
    'llama, one kv head': {**tiny.MODELS['llama'], **COMMON},
    'llama, two kv heads, documents': {**tiny.MODELS['llama'], **COMMON, **DOCUMENTS, 'model.n_kv_heads': 2},
    'gpt2': {**tiny.MODELS['gpt2'], **COMMON, 'model.dim': 16},
    'window': {**tiny.MODELS['llama'], **COMMON, **WINDOW, 'model.n_kv_heads': 4},
    'adapters': {**WIDE, 'lora.rank': 2},
    'adapters in four bits': {**WIDE, 'lora.rank': 2, 'lora.quantize_base': 'nf4'},
    'experts': {**tiny.EXPERTS, **COMMON, 'moe.aux_loss_coeff': 0, 'moe.load_balance_coeff': 0, 'model.n_experts': 8},
}
THREE = {**tiny.MODELS['llama'], **COMMON, 'model.n_heads': 3, 'training.seq_len': 8}
KINDS |= {'six heads': {**THREE, **DOCUMENTS, 'model.n_heads': 6, 'model.n_kv_heads': 2}, 'three heads': THREE, 'three heads, documents': {**THREE, **DOCUMENTS, 'model.n_kv_heads': 3},
          'three heads, window': {**THREE, **WINDOW}}
GATHER = {'parallelism.context_parallel_method': 'gather'}
KINDS['sinks'] = {key: value for key, value in KINDS['experts'].items()
                  if key not in ('model.ffn_dim', 'model.first_dense_layers', 'model.shared_ffn_dim')}
KINDS['sinks'] |= {'model.family': 'gpt_oss', 'model.attention_window': 5, 'model.layer_types': 'sliding,full'}
KINDS['latent'] = {key: value for key, value in {**KINDS['experts'], **tiny.LATENT}.items() if value is not None}
TENSOR = {'parallelism.tensor_parallel_degree': 2}
INLINE = {**APART, **cut.INLINE}
TWICE = {'mesh.replicate': 2, 'mesh.shard': 2}
AXIS = cut.Cut(CP, KINDS, WIDE)
on = AXIS.on
MESHES = {
    'full_shard, 2 of 2': on('llama, one kv head', 'full_shard', 2, 2),
    'full_shard, 4 of 4, apart': on('llama, one kv head', 'full_shard', 4, 4, APART, FULL),
    'full_shard, 2 of 4, inline': on('llama, two kv heads, documents', 'full_shard', 4, 2, INLINE, SELECTIVE),
    'full_shard, 4 of 4, documents': on('llama, two kv heads, documents', 'full_shard', 4, 4, ONE),
    'full_shard, resharded over 2': on('gpt2', 'full_shard', 4, 2, {'parallelism.reshard_after_forward': 2}),
    'shard_grad_op, 2 of 4': on('gpt2', 'shard_grad_op', 4, 2, FULL),
    'shard_optim, 2 of 2, states in a file': on('window', 'shard_optim', 2, 2, STATES, ONE),
    'hybrid_shard, 2 of 2, twice': on('window', 'hybrid_shard', 4, 2, TWICE, APART),
    'no_shard, 4 of 4': on('gpt2', 'no_shard', 4, 4),
    'no_shard, 2 of 4, replicas': on('llama, one kv head', 'no_shard', 4, 2, {'mesh.replicate': 4}),
    'gathered, 2 of 2': on('three heads', 'full_shard', 2, 2, SELECTIVE),
    'gathered, 4 of 4, documents': on('three heads, documents', 'full_shard', 4, 4, ONE, FULL),
    'gathered, 2 of 4, inline': on('three heads, documents', 'hybrid_shard', 4, 2, TWICE, INLINE),
    'gathered, 2 of 2, window, states in a file': on('three heads, window', 'shard_optim', 2, 2, STATES),
    'gathered, 2 of 4, gpt2': on('gpt2', 'shard_grad_op', 4, 2, GATHER),
    'gathered, 2 of 4, adapters in four bits': on('adapters in four bits', 'full_shard', 4, 2, GATHER, FULL),
    'gathered, 4 of 4, no_shard': on('three heads', 'no_shard', 4, 4, APART),
    'gathered, 2 of 4, sinks': on('sinks', 'full_shard', 4, 2, SELECTIVE),
    'gathered, 2 of 4, three heads of half of each matrix': on('six heads', 'full_shard', 4, 2, ONE, TENSOR),
    'latent attention, 4 of 4': on('latent', 'full_shard', 4, 4, FULL),
    'gathered, 2 of 2, latent attention': on('latent', 'shard_grad_op', 2, 2, GATHER, SELECTIVE),
    'adapters, 2 of 4': on('adapters', 'full_shard', 4, 2, SELECTIVE),
    'adapters in four bits, 4 of 4': on('adapters in four bits', 'full_shard', 4, 4, APART),
    'experts on each rank': on('experts', 'full_shard', 2, 2, ONE),
    'experts on 2 of 4 ranks': on('experts', 'full_shard', 4, 2, {'parallelism.expert_parallel_degree': 2}),
}
# Changes that only move or repeat operations.
MOVED = (APART, INLINE, FULL, {**APART, **SELECTIVE, 'parallelism.forward_prefetch': 3, 'parallelism.backward_prefetch': 0})
# Scores: the kind, the ranks, the degree and more. Texts share rows, whose length no degree divides; gpt2's are alone in
# theirs, up to the last of its positions. Of the 144 rows of two ranks tiles take 64 at a time.
SCORED = {
    'one kv head, 2 of 2': ('llama, one kv head', 2, 2, {}),
    'one kv head, 4 of 4, apart': ('llama, one kv head', 4, 4, {**APART, 'parallelism.sharding_strategy': 'full_shard'}),
    'gpt2, all positions, 2 of 4': ('gpt2', 4, 2, {'parallelism.sharding_strategy': 'full_shard'}),
    'gpt2, all positions, 4 of 4': ('gpt2', 4, 4, APART),
    'window, 2 of 4': ('window', 4, 2, INLINE),
    'adapters, 4 of 4': ('adapters', 4, 4, {'parallelism.sharding_strategy': 'full_shard'}),
    'adapters in four bits, 2 of 2, tiles': ('adapters in four bits', 2, 2, {'training.tile_rows': 64}),
    'experts on 2 of 4 ranks': ('experts', 4, 2, {'parallelism.sharding_strategy': 'full_shard',
                                                  'parallelism.expert_parallel_degree': 2}),
    'gathered, 2 of 2': ('three heads', 2, 2, {}),
    'gathered, gpt2, all positions, 2 of 4': ('gpt2', 4, 2, {**GATHER, 'parallelism.sharding_strategy': 'full_shard'}),
    'gathered, window, 2 of 4': ('three heads, window', 4, 2, INLINE),
    'gathered, 2 of 4, half of each matrix': ('six heads', 4, 2, TENSOR),
}
SPREAD = MESHES['experts on 2 of 4 ranks']
if job.FEW:
    MESHES = dict(list(MESHES.items())[::6])
    SCORED = dict(list(SCORED.items())[1::3])
    MOVED = MOVED[:1]


def case_announced():
    """The line that announces a run says what is cut over its ranks."""
    _, ranks, changes = SPREAD
    changes = {**KINDS['experts'], **changes, 'training.steps': 1, 'validation.enable': False}
    folder = job.prepare('said', {'job.dump_folder': 'out', **AXIS.config(changes)})
    said = job.launch('train', 'c.yaml', ranks=ranks, folder=folder)[1]
    return [] if '2 context x 2 data (1 x 4 ranks, replicate x shard), experts over 2, ' in said else [said]


def case_float16():
    """Gradients of keys in float16 are summed in float32."""
    numbers = cut.train('float16', AXIS.config({**THREE, CP: 2, 'training.mixed_precision_param': 'float16'}), 2)[0]
    return job.differ('losses and norms', numbers, AXIS.one_rank('three heads'), 4e-3)


def case_balance():
    """A run says how unequally documents and windows share the work of ranks that gather keys and values; whole sequences are
    not noted."""
    wrong = []
    for kind, noted in (('three heads, documents', True), ('three heads', False), ('three heads, window', True)):
        changes = {**KINDS[kind], CP: 2, 'training.steps': 1, 'validation.enable': False}
        folder = job.prepare(f'balance-{kind}', {'job.dump_folder': 'out', **AXIS.config(changes)})
        said = job.launch('train', 'c.yaml', ranks=2, folder=folder)[1]
        found = re.findall(r'of the 2 ranks of the first sequences, the busiest has (1\.\d\d) times the mean', said)
        wrong += [said] * (len(found) != noted or 'window' in kind and found[0] != f'{busiest(8, 2, [5] * 2, 8):.2f}')
    return wrong


def busiest(tokens, ranks, windows, document):
    """Pairs of a query and a key that the busiest rank has in all blocks, over the mean, counted one by one."""
    piece, work = tokens // (2 * ranks), [0] * ranks
    for query in range(tokens):
        place = min(query // piece, 2 * ranks - 1 - query // piece)
        work[place] += sum(key // document == query // document and (not window or query - key < window)
                           for window in windows for key in range(query + 1))
    return max(work) * ranks / sum(work)


def case_planned_balance():
    """So does the plan, in JSON too, with documents of a known length."""
    wrong = []
    for kind, pattern in (('three heads', [0]), ('three heads, window', [5]), ('sinks', [5, 0]), ('window', [5])):
        windows = (pattern * 9)[:KINDS[kind]['model.n_layers']]
        for ranks, docs in ((2, 48), (4, 48), (2, 9), (4, 20), (2, 0)):
            method = 'ulysses' if kind == 'window' else 'gather'
            folder = job.prepare('planned', {**AXIS.config(KINDS[kind]), CP: ranks, 'training.seq_len': 48, 'model.max_seq_len': 48,
                                             'training.global_batch_size': -1, 'validation.enable': False, 'parallelism.context_parallel_method': method,
                                             **({'data.document_mask': True, 'data.document_separator': 1, 'data.document_tokens': docs} if docs < 48 else {})})
            said = ' '.join(job.sherd('plan', 'c.yaml', '--ranks', ranks, '--machine', 'h100-80x8-ndr400', '--json', 'plan.json', folder=folder).split())
            found = json.loads((folder / 'plan.json').read_text())['context']
            want = 1.0 if method == 'ulysses' else busiest(48, ranks, windows, docs) if docs else None
            named = re.findall(r'gather keys and values: with ([\w ]*) the busiest has ([\d.]+) times the mean work', said)
            words = ' and '.join([f'documents of {docs} tokens'] * (docs < 48) + ['windows of 5'] * (5 in windows))
            wanted = [(words, f'{want:.2f}')] if words and docs and method == 'gather' else []
            right = found['ranks'] == ranks and (found['busiest'] is want or abs(found['busiest'] - want) < 1e-9)
            wrong += [f'{kind}, {ranks} ranks, {method}, {docs}: {found}, wanted {want}; {named}'] * (not right or named != wanted)
    return wrong


def case_longer_than_a_rank():
    """Two ranks score a text for which one has no room, by either method."""
    length, room = 4000, 3 << 20
    job.train('long', AXIS.config({**tiny.MODELS['llama'], **COMMON, 'model.family': 'ministral3', 'model.rope_original_max_len': length,
                                   'model.vocab_size': 256, 'model.max_seq_len': length,
                                   'training.steps': 1, 'validation.enable': False}))
    pathlib.Path('long.txt').write_bytes(pathlib.Path(__file__).read_bytes()[:length])
    score = lambda *words, ranks=0: job.sherd('eval', '--checkpoint', 'long/out', '--text', 'long.txt', '--batch', 1, *words,
                                              ranks=ranks).split()[:-1]
    limit, whole = f'--memory.limit_bytes={room}', score()
    try:
        return [f'one rank has room: {score(limit)}']
    except job.Failed as failed:
        wrong = [str(failed)] * ('memory.limit_bytes' not in str(failed))
    for method in 'ulysses', 'gather':
        found = score(limit, f'--{CP}=2', f'--parallelism.context_parallel_method={method}', ranks=2)
        wrong += job.differ(method, *([float(word) for word in words if word[-1].isdigit()] for words in (found, whole)), 1e-6)
    return wrong


def cases():
    return ([(name, AXIS.case_mesh, name, *row) for name, row in MESHES.items()]
            + [(f'moved, {number}', AXIS.case_moved, 'llama, two kv heads, documents', number, moved)
               for number, moved in enumerate(MOVED)]
            + [(f'scores: {name}', AXIS.case_scores, *row) for name, row in SCORED.items()]
            + [('checkpoints do not show the degree', AXIS.case_resume, 'llama, two kv heads, documents', 'lm_head.weight',
                ((0, 1), (2, 2), (4, 4)), {}), ('announced', case_announced),
               ('float16', case_float16), ('balance of documents', case_balance), ('balance in the plan', case_planned_balance),
               ('a text longer than a rank holds', case_longer_than_a_rank)])


if __name__ == '__main__':
    sys.exit(job.run_cases(cases()))
