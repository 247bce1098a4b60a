#!/usr/bin/env python3
"""Matrices cut over ranks (parallelism.tensor_parallel_degree): the numbers of whole matrices. Prints TAP.

Losses, norms and validation are those of one rank to LOSS_BOUND; memory is what the plan says. What only moves or
repeats operations on the same mesh changes no bit. A checkpoint is loaded and saved by 4 ranks with a part of each
matrix, then by one, then by 2, with the same bytes. SHERD_TEST_FEW=1 leaves out most rows.
"""
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
job.need_launcher()
job.need_modules('h5py', 'numpy')
import checkpoint
import cut
import tiny
from cut import APART, DOCUMENTS, FULL, INLINE, LOSS_BOUND, ONE, SELECTIVE, STATES, STEPS, saved

TP, CP, EP = (f'parallelism.{axis}_parallel_degree' for axis in ('tensor', 'context', 'expert'))
TILES = 'parallelism.tensor_parallel_tiles'
COMMON = {**cut.COMMON, 'model.n_kv_heads': 4}
WIDE = {**tiny.MODELS['llama'], **COMMON, 'model.dim': 128, 'model.head_dim': 32, 'model.ffn_dim': 256, 'model.init_std': 0.02}
LLAMA, GPT2 = {**tiny.MODELS['llama'], **COMMON}, {**tiny.MODELS['gpt2'], **COMMON, 'model.dim': 16}
KINDS = {
    'llama': LLAMA,
    'llama, two kv heads, documents': {**LLAMA, **DOCUMENTS, 'model.n_kv_heads': 2},
    'gpt2': GPT2,
    'phi3': {**LLAMA, 'model.family': 'phi3', 'model.n_kv_heads': 2},
    'gpt_neox': {**GPT2, 'model.family': 'gpt_neox', 'model.tie_word_embeddings': False},
    'gemma3': {**LLAMA, 'model.family': 'gemma3_text', 'model.tie_word_embeddings': True},
    'qwen3': {**LLAMA, 'model.family': 'qwen3', 'model.tie_word_embeddings': True},
    'llama, wide': {**LLAMA, 'model.dim': 256, 'model.init_std': 0.02},
    'adapters': {**WIDE, 'lora.rank': 2},
    'adapters of some': {**WIDE, 'lora.rank': 3, 'lora.target_modules': 'q_proj,v_proj,o_proj,up_proj'},
    'adapters in four bits': {**WIDE, 'lora.rank': 2, 'lora.quantize_base': 'nf4'},
    'adapters of biases in four bits': {**WIDE, 'model.family': 'qwen2', 'lora.rank': 2, 'lora.quantize_base': 'nf4'},
    'olmo2': {**LLAMA, 'model.family': 'olmo2', 'model.n_kv_heads': 2},
    'olmo3': {**LLAMA, 'model.family': 'olmo3'},
    'experts': {**tiny.EXPERTS, **COMMON, 'moe.aux_loss_coeff': 0},
    'olmoe': {**tiny.EXPERTS, **COMMON, 'model.family': 'olmoe', 'moe.aux_loss_coeff': 0, 'moe.load_balance_coeff': 0,
              'model.shared_ffn_dim': 0, 'model.first_dense_layers': 0},
    'experts, sinks': {**tiny.EXPERTS, **COMMON, 'model.family': 'gpt_oss', 'moe.aux_loss_coeff': 0, 'moe.load_balance_coeff': 0,
                       'model.shared_ffn_dim': 0, 'model.first_dense_layers': 0},
    'starcoder2': {**LLAMA, 'model.family': 'starcoder2', 'model.n_kv_heads': 2},
}
CURVE, CURVE_BOUND = 200, 0.01
SPILLED = {'offload.activations': 'nvme', 'offload.nvme_path': '.'}

EVEN = {'training.local_batch_size': 2}


AXIS = cut.Cut(TP, KINDS, WIDE)
on, config = AXIS.on, AXIS.config
MESHES = {
    'full_shard, 2 of 2': on('llama', 'full_shard', 2, 2),
    'full_shard, 4 of 4': on('llama', 'full_shard', 4, 4, FULL),
    'full_shard, 2 of 4': on('llama, two kv heads, documents', 'full_shard', 4, 2, INLINE, SELECTIVE),
    'full_shard, resharded over 2': on('gpt2', 'full_shard', 4, 2, {'parallelism.reshard_after_forward': 2}),
    'shard_grad_op, 2 of 4': on('gpt2', 'shard_grad_op', 4, 2, FULL),
    'full_shard, whose ranks cut sequences too': on('llama', 'full_shard', 4, 2, {CP: 2}, FULL),
    'shard_optim, 2 of 4, states in a file': on('qwen3', 'shard_optim', 4, 2, STATES, ONE),
    'shard_optim, 4 of 4, activations in a file': on('llama, wide', 'shard_optim', 4, 4, SPILLED),
    'hybrid_shard, 2 of 4': on('gemma3', 'hybrid_shard', 4, 2, {'mesh.shard': 1}),
    'hybrid_shard_zero2, 2 of 4': on('phi3', 'hybrid_shard_zero2', 4, 2, {'mesh.shard': 1}, ONE),
    'adapters, 2 of 4': on('adapters', 'full_shard', 4, 2, SELECTIVE),
    'adapters of some, 4 of 4': on('adapters of some', 'shard_optim', 4, 4, FULL),
    'adapters in four bits, 2 of 2': on('adapters in four bits', 'full_shard', 2, 2),
    'adapters of biases in four bits, 2 of 4': on('adapters of biases in four bits', 'shard_grad_op', 4, 2, SELECTIVE),
    'olmo2, 2 of 4': on('olmo2', 'full_shard', 4, 2, FULL, {CP: 2}),
    'olmo3, 4 of 4': on('olmo3', 'shard_grad_op', 4, 4, SELECTIVE),
    'experts, 2 of 4': on('experts', 'full_shard', 4, 2, {EP: 2}, FULL),
    'olmoe, 2 of 2': on('olmoe', 'hybrid_shard', 2, 2),
    'experts and sinks, 4 of 4': on('experts, sinks', 'shard_grad_op', 4, 4),
    'no_shard, 4 of 4': on('gpt_neox', 'no_shard', 4, 4),
    'full_shard, 2 of 2, in 3 tiles': on('llama, wide', 'full_shard', 2, 2, SPILLED, {TILES: 3}),
    'gpt2, 4 of 4, in 3 tiles': on('gpt2', 'full_shard', 4, 4, SELECTIVE, INLINE, {TILES: 3}),
    'documents, whose ranks cut sequences too, in 3 tiles': on('llama, two kv heads, documents', 'hybrid_shard', 4, 2, FULL, {CP: 2, TILES: 3}),
    'adapters in four bits, 2 of 2, in 2 tiles': on('adapters in four bits', 'full_shard', 2, 2, FULL, {TILES: 2, **EVEN}),
    'adapters of some, 4 of 4, in 3 tiles': on('adapters of some', 'shard_grad_op', 4, 4, {TILES: 3}),
    'olmo3, 2 of 2, in 3 tiles': on('olmo3', 'shard_grad_op', 2, 2, {TILES: 3}),
    'gpt_neox, 2 of 4, in 2 tiles': on('gpt_neox', 'shard_grad_op', 4, 2, SELECTIVE, {TILES: 2, **EVEN}),
    'experts, 2 of 2, in 3 tiles': on('experts', 'full_shard', 2, 2, FULL, {TILES: 3}),
    'no_shard, 2 of 4, both kinds of tiles': on('starcoder2', 'no_shard', 4, 2, FULL,
                                               {'training.tile_rows': 64, 'training.local_batch_size': 6, TILES: 2}),
    'no_shard, 2 of 4, tiles': on('starcoder2', 'no_shard', 4, 2, FULL, {'training.tile_rows': 64, 'training.local_batch_size': 6}),
}
# Changes that only move or repeat operations.
MOVED = (INLINE, FULL, {**SELECTIVE, 'parallelism.forward_prefetch': 3, 'parallelism.backward_prefetch': 0}, SPILLED)
# Scores: the kind, the ranks, the degree and more, as in test_context.py. Each row of texts is padded to a multiple of it.
FLAT = {'parallelism.sharding_strategy': 'full_shard'}
SCORED = {
    '2 of 2': ('llama', 2, 2, {}),
    'gpt2, all positions, 4 of 4': ('gpt2', 4, 4, APART),
    'gpt2, 2 of 2, in 3 tiles': ('gpt2', 2, 2, {TILES: 3}),
    'gemma3, 2 of 4': ('gemma3', 4, 2, {**FLAT, **INLINE}),
    'qwen3, whose ranks cut sequences too': ('qwen3', 4, 2, {**FLAT, CP: 2}),
    'adapters in four bits, 2 of 2': ('adapters in four bits', 2, 2, {'training.tile_rows': 64}),
    'adapters of some, 4 of 4': ('adapters of some', 4, 4, FLAT),
}
# Texts: the kind, the ranks, the degree and more. No degree divides the words.
TEXTS = {'model.vocab_size': 257, 'model.max_seq_len': 20, 'training.steps': 1, 'validation.enable': False}
CONTINUED = {
    '2 of 2': ('llama', 2, 2, {}),
    'gpt2, sampled, 4 of 4': ('gpt2', 4, 4, {'--temperature': 1, '--parallel': 'shard', **APART}),
    'gemma3, others on other ranks, 2 of 4': ('gemma3', 4, 2, INLINE),
    'adapters of some, 4 of 4': ('adapters of some', 4, 4, {}),
    'olmo3, 2 of 2': ('olmo3', 2, 2, {}),
    'experts, 2 of 4': ('experts', 4, 2, {}),
}
if job.FEW:
    CONTINUED = dict(list(CONTINUED.items())[1::4])
    SCORED = dict(list(SCORED.items())[1::4])
    MESHES = dict(list(MESHES.items())[::5])
    MOVED = MOVED[:1]


def case_parameters(kind):
    """What all ranks hold whole is trained as on one rank: the gradient of norms, biases and halves of adapters is summed
    over all rows and all parts. The first halves of adapters have no gradient while the second ones are 0."""
    steps = STEPS + 2 * (kind == 'adapters')
    changes = {**KINDS[kind], 'optimizer.eps': 1e-3, 'training.steps': steps, 'lr_scheduler.total_steps': steps}
    for name, ranks, degree in (('whole', 0, 1), ('cut', 4, 4)):
        job.train(f'{name}-{kind}', config({**changes, TP: degree}), ranks)
    whole, cut = (checkpoint.read(saved(f'{name}-{kind}', steps)) for name in ('whole', 'cut'))
    return [f'{name} differs by {abs(cut[name] - whole[name]).max()}' for name in whole
            if abs(cut[name] - whole[name]).max() > LOSS_BOUND * max(1, abs(whole[name]).max())]


def case_blocks():
    """Four bits need parts of whole blocks."""
    folder = job.prepare('blocks', {'job.dump_folder': 'out', **config({**KINDS['adapters in four bits'], TP: 4})})
    try:
        return [job.sherd('plan', 'c.yaml', '--ranks', 4, folder=folder)]
    except job.Failed as refusal:
        said = str(refusal)
    return [] if 'packs 64 neighbours of a matrix together, but these ranks have 32 of 128' in said else [said]


def case_tiles(tiles, changes):
    """Tiles of 24 and more rows: the bits of a step's loss, and of the gradients of matrices, by what one step of AdamW makes
    of them. Norms are summed over other rows first."""
    changes = config({**KINDS['llama, wide'], 'optimizer.eps': 1e-3, 'training.max_norm': 0, 'training.global_batch_size': 12,
                      'training.local_batch_size': 12, 'training.steps': 1, TP: 2, **changes})
    whole, cut = (job.train(f'tiles-{tiles}-{n}', {**changes, TILES: n}, 2) for n in (1, tiles))
    values = [checkpoint.read(saved(f'tiles-{tiles}-{n}', 1)) for n in (1, tiles)]
    wrong = job.differ('losses', job.losses(cut), job.losses(whole), 0)
    wrong += job.differ('memory', [cut[0]['arena_bytes']], [whole[0]['arena_bytes']], 0)
    apart = {name: abs(values[0][name] - values[1][name]).max() for name in values[0]}
    return wrong + [f'{name} differs by {by}' for name, by in apart.items() if by > ('norm' in name) * LOSS_BOUND]


def case_texts(kind, ranks, degree, changes):
    """Texts of other lengths, more than a batch and longer than the cache, are those of one rank."""
    folder, lines = 'texts-' + kind.replace(' ', '-'), [{'prompt': '12 3'[:n % 5] * n or '-'} for n in (1, 4, 2, 9, 3)]
    job.train(folder, config({**KINDS[kind], **TEXTS}))
    prompts = pathlib.Path(folder, 'prompts.jsonl').absolute()
    prompts.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    words = {'--tokenizer': 'byte', '--batch': 3, '--tokens': 14, '--temperature': 0, **{key if key[0] == '-' else '--' + key: value
                                                                                  for key, value in changes.items()}}
    words = ['generate', '--checkpoint', saved(folder, 1), '--prompts', prompts, *(x for word in words.items() for x in word)]
    found = job.sherd(*words, f'--{TP}', degree, ranks=ranks)
    return [] if found == job.sherd(*words) else [f'other texts: {found}']


def case_curve():
    """In bfloat16 the partial sums of ranks are rounded before they are added. The loss of each of 200 steps shows it by a
    hundredth at most, at a rate at which no other order of sums shows more."""
    changes = {**WIDE, 'optimizer.lr': 1e-3, 'training.mixed_precision_param': 'bfloat16', 'training.steps': CURVE, 'lr_scheduler.total_steps': CURVE,
               'validation.enable': False, 'checkpoint.enable': False}
    whole, halves = (job.losses(job.train(f'curve-{ranks}', config({**changes, TP: ranks or 1}), ranks)) for ranks in (0, 2))
    apart = [abs(b / a - 1) for a, b in zip(whole, halves)]
    print(f'# loss {whole[0]:.4g} to {whole[-1]:.4g}; at most {100 * max(apart):.3g} % apart', flush=True)
    return ([f'step {apart.index(max(apart))}: {max(apart)}'] * (max(apart) > CURVE_BOUND)
            + ['not the same steps'] * (not len(whole) == len(halves) == CURVE) + ['nothing is learned'] * (whole[-1] > 0.9 * whole[0]))


def case_leaves():
    """Leaves of rows are no rows of ranks with parts of matrices. A checkpoint that was trained with them is evaluated without,
    and its refusal says how."""
    job.train('leaves', config({**LLAMA, 'training.reproducible': 'mesh', 'training.row_leaves': 2, 'training.steps': 1,
                                'training.seq_len': 32, 'model.max_seq_len': 32, 'training.global_batch_size': 4,
                                'training.local_batch_size': 1, 'validation.enable': False}))
    words = ['eval', '--checkpoint', saved('leaves', 1), '--data', AXIS.tokens, '--sequences', 5]
    try:
        return [job.sherd(*words, f'--{TP}=2', ranks=2)]
    except job.Failed as refusal:
        said = str(refusal)
    one, two = (float(re.search(r'loss (\S+)', job.sherd(*words, *more, ranks=ranks))[1])
                for ranks, more in ((0, []), (2, [f'--{TP}=2', '--training.row_leaves=1'])))
    return [said] * ('give training.row_leaves=1' not in said) + job.differ('losses', [two], [one], LOSS_BOUND)


def case_announced():
    """The lines that announce a run and its plan say what is cut over its ranks."""
    changes = config({**LLAMA, TP: 2, 'training.steps': 1, 'validation.enable': False})
    folder = job.prepare('said', {'job.dump_folder': 'out', **changes})
    said = job.launch('train', 'c.yaml', ranks=4, folder=folder)[1]
    planned = job.sherd('plan', 'c.yaml', '--ranks', 4, folder=folder)
    return ([said] * ('2 tensor x 2 data (1 x 2 ranks, replicate x shard), ' not in said)
            + [planned] * ('matrices of blocks are cut over 2 ranks, 18 rows on each' not in planned))


def cases():
    return ([(name, AXIS.case_mesh, name, *row) for name, row in MESHES.items()]
            + [(f'moved, {number}', AXIS.case_moved, 'llama, wide', number, moved) for number, moved in enumerate(MOVED)]
            + [(f'scores: {name}', AXIS.case_scores, *row) for name, row in SCORED.items()]
            + [(f'texts: {name}', case_texts, *row) for name, row in CONTINUED.items()]
            + [(f'checkpoints do not show the degree: {kind}', AXIS.case_resume, kind, large,
                ((0, 1), (2, 2), (4, 2), (4, 4)), {'model.n_kv_heads': 4})
               for kind, large in (('phi3', 'lm_head.weight'), ('gpt2', 'transformer.wte.weight'))]
            + [('announced', case_announced)]
            + [(f'parameters, {kind}', case_parameters, kind) for kind in ('gpt2', 'qwen3', 'olmo3', 'adapters')]
            + [(f'bits of {tiles} tiles', case_tiles, tiles, changes) for tiles, changes in ((2, {}), (3, FULL))]
            + [('blocks', case_blocks), ('leaves', case_leaves), ('a curve in bfloat16', case_curve)])


if __name__ == '__main__':
    sys.exit(job.run_cases(cases()))
