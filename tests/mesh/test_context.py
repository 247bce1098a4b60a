#!/usr/bin/env python3
"""Sequences cut over ranks (parallelism.context_parallel_degree): the numbers of whole sequences. Prints TAP.

Losses, norms and validation are those of one rank to LOSS_BOUND; memory is what the plan says. So are the scores of given
texts and the loss of a token file that `sherd eval` finds. What only moves or
repeats operations on the same mesh changes no bit. A checkpoint is loaded and saved by 4 ranks with a part of each
sequence, then by one, then by 2, with the same bytes. SHERD_TEST_FEW=1 leaves out most rows.
"""
import functools
import json
import pathlib
import random
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import test_memory
import tiny

STEPS = 3
LOSS_BOUND = 1e-5
CP = 'parallelism.context_parallel_degree'
COMMON = {'model.n_heads': 4, 'training.global_batch_size': 12, 'training.local_batch_size': 3, 'training.steps': STEPS,
          'lr_scheduler.total_steps': STEPS, 'validation.enable': True, 'validation.freq': STEPS,
          'validation.sequences': 10, 'metrics.log_freq': 1}
DOCUMENTS = {'data.document_mask': True, 'data.document_separator': 7}
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
KINDS |= {'three heads': THREE, 'three heads, documents': {**THREE, **DOCUMENTS, 'model.n_kv_heads': 3},
          'three heads, window': {**THREE, **WINDOW}}
GATHER = {'parallelism.context_parallel_method': 'gather'}
APART = {'comm.shared_memory': 'off'}
INLINE = {**APART, 'comm.progress': 'inline'}
FULL = {'activation_checkpoint.mode': 'full'}
SELECTIVE = {'activation_checkpoint.mode': 'selective'}
STATES = {'offload.optimizer': 'nvme', 'offload.nvme_path': '.'}


def on(kind, strategy, ranks, degree, *more):
    found = {'parallelism.sharding_strategy': strategy, CP: degree}
    for changes in more:
        found |= changes
    return kind, ranks, found


ONE = {'training.local_batch_size': 1}
TWICE = {'mesh.replicate': 2, 'mesh.shard': 2}
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
}
SPREAD = MESHES['experts on 2 of 4 ranks']
if job.FEW:
    MESHES = dict(list(MESHES.items())[::6])
    SCORED = dict(list(SCORED.items())[1::3])
    MOVED = MOVED[:1]


def config(changes):
    data = {'training.dataset_path': tokens, 'validation.dataset_path': tokens}
    return {**data, **changes, **({'checkpoint.initial_load_path': base()} if 'lora.rank' in changes else {})}


@functools.lru_cache(None)
def base():
    job.train('base', config({**WIDE, 'training.steps': 1}))
    return str(pathlib.Path('base/out').resolve())


def saved(folder, step=STEPS):
    return pathlib.Path(folder) / f'out/checkpoint/step-{step:08}.h5'


def train(name, changes, ranks=0):
    """Returns losses, norms and the losses of validation; and the metrics of all steps."""
    folder = pathlib.Path(name.replace(', ', '-').replace(' ', '-'))
    steps = job.train(folder, changes, ranks)
    lines = map(json.loads, (folder / 'out/metrics.jsonl').read_text().splitlines())
    numbers = [step[key] for step in steps for key in ('loss', 'grad_norm')]
    numbers += [line['validation_loss'] for line in lines if 'validation_loss' in line]
    shutil.rmtree(folder)
    return numbers, steps


@functools.lru_cache(None)
def one_rank(kind):
    return train('one ' + kind, config(KINDS[kind]))[0]


def case_mesh(name):
    kind, ranks, changes = MESHES[name]
    changes = config({**KINDS[kind], **changes})
    numbers, steps = train('run ' + name, changes, ranks)
    planned = test_memory.plan({'mesh.ranks_per_node': ranks, **changes}, ranks)[test_memory.ARENA]
    wrong = [f'arena of {steps[-1]["arena_bytes"]} bytes, planned {planned}'] * (steps[-1]['arena_bytes'] != planned)
    return wrong + job.differ('losses and norms', numbers, one_rank(kind), LOSS_BOUND)


def case_moved(number):
    """Two steps more, with everything at another place: the same bytes."""
    found = []
    for i, more in enumerate(({}, MOVED[number])):
        job.train(f'moved-{number}-{i}', config({**KINDS['llama, two kv heads, documents'], CP: 2, **more}), 4)
        found.append(saved(f'moved-{number}-{i}').read_bytes())
    return [] if found[0] == found[1] else [f'{MOVED[number]} changes bits']


def case_resume():
    """Each mesh loads what the one before has saved. The head is so large that no loss is finite, so a step is skipped."""
    base = config({**KINDS['llama, two kv heads, documents'], 'validation.enable': False, 'training.local_batch_size': 1, CP: 4})
    job.train('resume', base, 4)
    path, step, wrong = saved('resume'), STEPS, []
    head = checkpoint.read(path)['lm_head.weight']
    head[...] = 3e38
    checkpoint.replace(path, {'lm_head.weight': head})
    expected = tensors(path)
    for ranks, degree in ((0, 1), (2, 2), (4, 4)):
        step += 1
        folder = job.prepare(f'resume-{degree}', {'job.dump_folder': 'out', **base, CP: degree, 'training.steps': step})
        saved(folder, step - 1).parent.mkdir(parents=True)
        shutil.copy(path, saved(folder, step - 1))
        job.sherd('train', 'c.yaml', ranks=ranks, folder=folder)
        path = saved(folder, step)
        wrong += [f'degree {degree} saves other tensors'] * (tensors(path) != expected)
    return wrong


@functools.lru_cache(None)
def to_score(kind):
    """A checkpoint, texts, their scores on one rank, and the line of a token file."""
    longest, name = 15, 'scored ' + kind
    draw = random.Random(3)
    words = lambda n: [draw.randrange(tiny.COMMON['model.vocab_size']) for _ in range(n)]
    lengths = [(1, 1), (longest - 2, 3), (2, longest - 1), (5, 4), (9, 2), (3, 3), (longest, 1)]
    texts = job.write_examples('texts.bin', [(words(a), [words(b), words(1)]) for a, b in lengths])
    job.train(name, config({**KINDS[kind], 'model.max_seq_len': longest, 'training.steps': 1, 'validation.enable': False}))
    return saved(name, 1), texts, job.scores(saved(name, 1), texts, '--batch', 2), evaluated(saved(name, 1))


def evaluated(checkpoint, *words, ranks=0):
    return job.sherd('eval', '--checkpoint', checkpoint, '--data', tokens, '--sequences', 7, *words, ranks=ranks).split()


def case_scores(name):
    kind, ranks, degree, changes = SCORED[name]
    words = [f'--{key}={value}' for key, value in {**changes, CP: degree}.items()]
    checkpoint, texts, scores, line = to_score(kind)
    found = job.scores(checkpoint, texts, '--batch', 18 if 'training.tile_rows' in changes else 3, *words, ranks=ranks)
    wrong = job.differ('scores', [s for s, _ in found], [s for s, _ in scores], LOSS_BOUND)
    wrong += ['other texts are greedy'] * ([greedy for _, greedy in found] != [greedy for _, greedy in scores])
    again = evaluated(checkpoint, *words, ranks=ranks)
    wrong += job.differ('loss', [float(again[1])], [float(line[1])], LOSS_BOUND)
    return wrong + [f'{again} for {line}'] * (again[-5:-2] != line[-5:-2])


def case_announced():
    """The line that announces a run says what is cut over its ranks."""
    _, ranks, changes = SPREAD
    changes = {**KINDS['experts'], **changes, 'training.steps': 1, 'validation.enable': False}
    folder = job.prepare('said', {'job.dump_folder': 'out', **config(changes)})
    said = job.launch('train', 'c.yaml', ranks=ranks, folder=folder)[1]
    return [] if '1 x 4 ranks (replicate x shard), experts over 2, sequences over 2, ' in said else [said]


def case_balance():
    """A run says how unequally documents share the work of ranks that gather keys and values; whole sequences are not noted."""
    wrong = []
    for kind, noted in (('three heads, documents', True), ('three heads', False)):
        changes = {**KINDS[kind], CP: 2, 'training.steps': 1, 'validation.enable': False}
        folder = job.prepare(f'balance-{noted}', {'job.dump_folder': 'out', **config(changes)})
        said = job.launch('train', 'c.yaml', ranks=2, folder=folder)[1]
        found = re.findall(r'of the 2 ranks of the first sequences, the busiest has (1\.\d\d) times the mean', said)
        wrong += [said] * (len(found) != noted)
    return wrong


def tensors(path):
    return {(state, name): values.tobytes() for state in checkpoint.STATES
            for name, values in checkpoint.read(path, state).items()}


def case_not_scored():
    """Scores of gathered rows, and of cut matrices, are refused by the key that is in the way."""
    job.train('plain', config({**KINDS['gpt2'], 'model.vocab_size': 256, 'training.steps': 1, 'validation.enable': False}), 2)
    wrong = []
    for key, words in {'context': ['--parallelism.context_parallel_degree=2', '--parallelism.context_parallel_method=gather'],
                       'tensor': ['--parallelism.tensor_parallel_degree=2']}.items():
        try:
            job.sherd('eval', '--checkpoint', 'plain/out', '--text', __file__, *words, ranks=2)
            wrong.append(f'{key}: not refused')
        except job.Failed as failed:
            wrong += [str(failed)] * (f'parallelism.{key}_parallel_degree=2' not in str(failed) or 'exit 2' not in str(failed))
    return wrong


def cases():
    return ([(name, case_mesh, name) for name in MESHES]
            + [(f'moved, {number}', case_moved, number) for number in range(len(MOVED))]
             + [(f'scores: {name}', case_scores, name) for name in SCORED]
             + [('checkpoints do not show the degree', case_resume), ('announced', case_announced),
                ('balance of documents', case_balance), ('what is not scored', case_not_scored)])


if __name__ == '__main__':
    job.need_launcher()
    job.need_modules('h5py', 'numpy')
    import checkpoint
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(cases()))
