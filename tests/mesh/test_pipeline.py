#!/usr/bin/env python3
"""Layers cut over ranks (parallelism.pipeline_parallel_degree): the bits of one stage. Prints TAP.

Losses, norms, validation and checkpoints are those of one stage, whatever the strategy, the micro-steps, what is
recomputed, and however late messages are; memory is what the plan says. A checkpoint of 4 stages is loaded by one, then by
2. What stages are not combined with is refused by name, and a stage that stands still is named with its micro-step.
SHERD_TEST_FEW=1 leaves out most rows.
"""
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import live
import pairs
import test_labels
import test_memory
import tiny

STEPS = 3
LATE_US = 50000  # of a message in case_late()
SCHEDULE, CHUNK = 'parallelism.pipeline_parallel_schedule', 'parallelism.pipeline_parallel_layers_per_stage'
PP, STRATEGY = 'parallelism.pipeline_parallel_degree', 'parallelism.sharding_strategy'
TENSOR, CONTEXT, EXPERTS = (f'parallelism.{axis}_parallel_degree' for axis in ('tensor', 'context', 'expert'))
FIRST, LAST = (f'parallelism.pipeline_parallel_{which}_stage_less_layers' for which in ('first', 'last'))
COMMON = {'model.n_layers': 5, 'model.tie_word_embeddings': False, 'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS,
          'training.local_batch_size': 2, 'training.global_batch_size': 24, 'validation.enable': True,
          'validation.freq': STEPS, 'validation.sequences': 10, 'metrics.log_freq': 1, STRATEGY: 'shard_optim',
          'comm.shared_memory': 'off'}
DOCUMENTS = {'data.document_mask': True, 'data.document_separator': 7}
LLAMA, GPT2 = {**tiny.MODELS['llama'], **COMMON}, {**tiny.MODELS['gpt2'], **COMMON}
HEADS = {'model.n_heads': 4, 'model.n_kv_heads': 4}
LATER, RING = {SCHEDULE: 'ZBH1'}, {SCHEDULE: 'Interleaved1F1B'}
BLOCKS = {'model.dim': 64}  # vectors that do not share a block of the norm's sum
KINDS = {
    'llama': LLAMA,
    'gpt2, documents': {**GPT2, **DOCUMENTS},
    'gemma3': {**LLAMA, 'model.family': 'gemma3_text'},
    'qwen3, bfloat16': {**LLAMA, 'model.family': 'qwen3', 'training.mixed_precision_param': 'bfloat16',
                        'training.mixed_precision_reduce': 'bfloat16'},
    'llama, tiles': {**LLAMA, 'activation_checkpoint.mode': 'full', 'training.tile_rows': 64, 'training.local_batch_size': 12},
    'llama, 4 heads': {**LLAMA, **HEADS},
    'llama, 4 heads, documents': {**LLAMA, **HEADS, **DOCUMENTS},
    'gemma4': {**LLAMA, 'model.family': 'gemma4_text', 'model.global_head_dim': 6, 'model.global_kv_heads': 1, 'model.keys_as_values': True,
               'model.rotary_dim': 2, 'model.attention_window': 5, 'model.layer_types': '2*sliding,full'},
    'experts': {**tiny.EXPERTS, **COMMON},
    'gpt2, float16': {**GPT2, 'training.mixed_precision_param': 'float16', 'training.loss_scale_init': 64},
    'adapters': {**LLAMA, **HEADS, **BLOCKS, 'lora.rank': 2, 'lora.alpha': 9},
}
OBJECTIVES = {
    'pairs': {'objective.name': 'dpo'},
    'answers': {'objective.name': 'dpo', 'objective.loss_type': 'kto'},
    'labels': {'model.num_labels': test_labels.LABELS},
    'values': {'model.num_labels': 1, 'objective.name': 'reward'},
    'a teacher': {'objective.name': 'distillation', 'objective.top_k': 7, 'objective.temperature': 1.7},
}
KINDS |= {kind: {**LLAMA, **changes, **({} if kind == 'a teacher' else {'training.seq_len': 16, 'training.global_batch_size': 8,
                                                                   'validation.sequences': 0})}
          for kind, changes in OBJECTIVES.items()}
FULL = {'activation_checkpoint.mode': 'full'}
SELECTIVE = {'activation_checkpoint.mode': 'selective'}
BUDGET = {'activation_checkpoint.mode': 'memory_budget'}  # with the limit of limited()
TREE = {'training.reproducible': 'mesh', 'training.local_batch_size': 1, 'training.global_batch_size': 16}
# Neither of them nor GRADS changes a bit of one stage, so rows share what it computes.
MOVES = ('parallelism.pipeline', 'parallelism.resident', 'activation_checkpoint.', 'offload.', 'memory.')
GRADS, HYBRID = {STRATEGY: 'shard_grad_op'}, {STRATEGY: 'hybrid_shard_zero2', 'mesh.shard': 1}
STATES = {'offload.optimizer': 'nvme', 'offload.nvme_path': '.', 'model.dim': 64}
ROWS = {'offload.activations': 'nvme', 'offload.nvme_path': '.', 'model.dim': 64, 'training.seq_len': 16}  # of whole pages
# Kind, ranks, stages, changes. The job of one stage has as many ranks as each stage here.
MESHES = {
    '2 stages': ('llama', 2, 2, {SCHEDULE: '1F1B'}),
    '2 stages, gradients sharded': ('llama', 4, 2, {**GRADS, **FULL, 'parallelism.resident_units': 1}),
    '2 stages, weights apart': ('llama', 4, 2, {**GRADS, **LATER}),
    '4 stages, weights apart': ('gpt2, documents', 4, 4, {**SELECTIVE, **LATER}),
    '2 stages of replicas, 2 chunks, z-loss': ('llama', 4, 2, {**HYBRID, **SELECTIVE, **RING, 'training.z_loss': 0.01}),
    '3 stages of 2 chunks': ('gpt2, documents', 3, 3, {'model.n_layers': 7, **RING}),
    '4 stages': ('gpt2, documents', 4, 4, FULL),
    '4 stages, two kinds of heads, 3 micro-steps': ('gemma4', 4, 4, {**GRADS, 'training.local_batch_size': 8}),
    '2 stages, 1 micro-step': ('gpt2, documents', 2, 2, {'training.local_batch_size': 24}),
    '2 stages in bfloat16': ('qwen3, bfloat16', 4, 2, {**SELECTIVE, FIRST: 1}),
    '2 stages in float16': ('gpt2, float16', 2, 2, {LAST: 1}),
    '2 stages of 3 chunks, matrices over 2': (
        'llama, 4 heads', 4, 2, {TENSOR: 2, **BLOCKS, **RING, 'model.n_layers': 6, CHUNK: 1, **FULL}),
    '2 stages, sequences over 2': ('llama, 4 heads, documents', 4, 2, {CONTEXT: 2, **GRADS, **FULL}),
    '2 stages, keys and values gathered': ('llama, 4 heads, documents', 4, 2,
                                           {CONTEXT: 2, 'parallelism.context_parallel_method': 'gather', **RING}),
    '2 stages, matrices over 2, sequences over 2': (
        'llama, 4 heads', 8, 2, {TENSOR: 2, CONTEXT: 2, **BLOCKS, **GRADS, **SELECTIVE}),
    '2 stages, matrices over 2, in bfloat16': (
        'llama, 4 heads', 4, 2, {TENSOR: 2, **LATER, **BLOCKS, 'training.mixed_precision_param': 'bfloat16', **FULL}),
    '3 stages, a head of two blocks': ('llama', 3, 3, {'model.vocab_size': 300, 'model.n_layers': 7, **LATER}),
    '2 stages, tiles': ('llama, tiles', 2, 2, LATER),
}
MESHES |= {
    '4 stages of experts, the first block dense': ('experts', 4, 4, {**FULL, 'moe.z_loss_coeff': 1e-3}),
    '2 stages of experts, interleaved': ('experts', 2, 2, {'parallelism.pipeline_parallel_schedule': 'Interleaved1F1B'}),
    '2 stages of experts, ZBH1': ('experts', 2, 2, {'parallelism.pipeline_parallel_schedule': 'ZBH1'}),
    '2 stages of experts over 2': ('experts', 4, 2, {EXPERTS: 2, **GRADS, **SELECTIVE, 'training.local_batch_size': 4}),
    '2 stages, Muon': ('gpt2, documents', 4, 2, {**LATER, 'optimizer.name': 'muon'}),
    '2 stages of experts, NorMuon': ('experts', 4, 2, {**GRADS, 'optimizer.name': 'normuon', 'optimizer.muon_split': 'heads',
                                                       'optimizer.groups': 'pattern=layers.[12].*o_proj optimizer=adamw'}),
    '2 stages of adapters': ('adapters', 2, 2, {**LATER, **SELECTIVE}),
    '2 stages of adapters, matrices over 2': ('adapters', 4, 2, {TENSOR: 2, **FULL}),
    '2 stages of adapters of shards, interleaved, base in nf4': (
        'adapters', 4, 2, {**GRADS, **RING, 'lora.quantize_base': 'nf4', 'training.mixed_precision_param': 'bfloat16'}),
}
MESHES |= {
    '2 stages, pairs': ('pairs', 4, 2, {**LATER, **GRADS}),
    '3 stages, answers': ('answers', 3, 3, FULL),
    '2 stages, labels': ('labels', 2, 2, {**RING, **SELECTIVE}),
    '2 stages, values': ('values', 2, 2, {}),
    '2 stages, a teacher': ('a teacher', 4, 2, LATER),
    'a tree over 2 stages': ('llama', 4, 2, {**TREE, **LATER}),
    'a tree over 4 stages': ('gpt2, documents', 4, 4, {**TREE, **FULL, **LATER}),
    'a tree over 2 stages, interleaved, matrices over 2, z-loss': ('llama, 4 heads', 4, 2, {**TREE, **RING, TENSOR: 2, **BLOCKS, 'training.z_loss': 0.01}),
    'a tree over 2 stages, pairs': ('pairs', 4, 2, {**TREE, **HYBRID, 'training.global_batch_size': 8}),
    'a tree over 2 stages of experts over 2': ('experts', 4, 2, {**TREE, EXPERTS: 2, 'training.local_batch_size': 4}),
}
MESHES |= {
    '2 stages, states in a file': ('llama', 4, 2, {**STATES, **GRADS, **LATER, **FULL}),
    '4 stages of chunks, states in a file': ('qwen3, bfloat16', 4, 4, {**STATES, **RING, 'model.n_layers': 9,
                                                                      'training.local_batch_size': 3}),
    'a tree over 2 stages, states in a file, not carried': ('llama', 4, 2, {**STATES, **TREE, 'offload.overlap_update': 'off'}),
    '2 stages of experts, biases move with an update that is carried': ('experts', 4, 2, {**STATES, **GRADS, 'moe.load_balance_coeff': 0.2,
                                                                                       'model.router_bias': True}),
    '2 stages, activations in a file': ('llama', 2, 2, {**ROWS, 'training.local_batch_size': 4}),
    '4 stages of chunks, activations and states in a file': ('llama', 4, 4, {**ROWS, **STATES, **RING, **FULL, 'model.n_layers': 9,
                                                                          'training.local_batch_size': 6}),
}
MESHES |= {
    '2 stages, a budget': ('llama', 4, 2, {**BUDGET, **GRADS, **LATER}),
    '3 stages of chunks, a budget': ('gpt2, documents', 3, 3, {**BUDGET, **RING, 'model.n_layers': 7}),
    '2 stages, matrices over 2, a budget': ('llama, 4 heads', 4, 2, {**BUDGET, TENSOR: 2, **BLOCKS}),
}
if job.FEW:
    MESHES = dict(list(MESHES.items())[::4])
# What stages cannot be combined with, and a word of what is given instead.
REFUSED = {
    'full_shard': ({STRATEGY: 'full_shard'}, 'shard_grad_op or shard_optim'),
    'tied': ({'model.tie_word_embeddings': True}, 'one matrix'),
    'vectors': ({**HEADS, TENSOR: 2}, 'a multiple of 64 elements'),
    'a stage without experts': ({**{key: value for key, value in tiny.EXPERTS.items() if key.startswith(('model.', 'moe.'))},
                                 'model.n_layers': 5, 'model.first_dense_layers': 3, EXPERTS: 2}, 'stage 0 has no block with experts'),
    'a stage without adapters': ({**{key: value for key, value in tiny.EXPERTS.items() if key.startswith(('model.', 'moe.'))},
                                  'model.n_layers': 5, 'model.first_dense_layers': 3, 'moe.load_balance_coeff': 0,
                                  'lora.rank': 2, 'lora.target_modules': '', 'lora.target_parameters': 'down_proj'}, 'no block before the first border between stages has an adapter'),
    'leaves of rows': ({'training.reproducible': 'mesh', 'training.global_batch_size': 16, 'training.row_leaves': 2}, 'leave out training.row_leaves'),
    'sync': ({'parallelism.gradient_sync': 'every_micro_step'}, 'leave out parallelism.gradient_sync'),
    'homes by a budget': ({'offload.mode': 'memory_budget', 'offload.nvme_path': '.', 'memory.limit_bytes': 1 << 30}, 'choose them by offload.optimizer'),
    'gradients': ({'offload.gradients': 'nvme', 'offload.nvme_path': '.'}, 'leave out offload.gradients'),
    'scores': ({}, 'for training and validation only', 'eval', '--checkpoint', '../evaluated/out/checkpoint/step-00000003.h5',
               '--choices', '../examples.bin', '-o', 'scores.jsonl', f'--{PP}=2', f'--{STRATEGY}=shard_optim'),
    'another schedule': ({SCHEDULE: 'ZBVZeroBubble'}, 'the nearest one is ZBH1'),
    'uneven chunks': ({**RING, CHUNK: 2}, '2 interleaved stages need 4, 6, ...'),
    'one chunk': ({}, 'has no effect without', 'train', 'c.yaml', f'--{CHUNK}=2'),
    'uneven micro-steps': ({**RING, 'training.local_batch_size': 4}, 'need a multiple of 2 micro-steps'),
    'too many stages': ({PP: 4, 'model.n_layers': 3}, 'at most 3 stages'),
    'too few blocks': ({PP: 4, FIRST: 4}, 'not every stage has a block; give smaller numbers, or auto'),
    'a long step': ({'training.local_batch_size': 1, 'training.global_batch_size': 1 << 14}, 'is one list, of at most 500000; give a larger'),
    'ranks': ({PP: 3}, "does not divide the job's 4 ranks"),
}


def config(changes):
    changes = {'training.dataset_path': tokens, 'validation.dataset_path': tokens, **of_objective(changes), **changes}
    return {**changes, 'checkpoint.initial_load_path': base()} if changes.get('lora.rank') else changes


def of_objective(changes):
    """The files of an objective."""
    words, texts = tiny.COMMON['model.vocab_size'], [text for text, _ in test_labels.draw_texts(5, 40, 7)]
    name = changes.get('objective.name')
    if name == 'distillation':
        return {'objective.teacher_path': teacher()}
    if name == 'reward':
        data = pairs.write_values('values.bin', texts, [0.1 * (i % 4) for i in range(40)], words, pairs=True)
    elif changes.get('objective.loss_type') == 'kto':
        data = pairs.write_answers('answers.bin', pairs.draw_answers(1, 80, words), words)
    elif name == 'dpo':
        data = pairs.write('pairs.bin', pairs.draw_pairs(1, 40, words), words)
    elif changes.get('model.num_labels'):
        data = pairs.write_documents('labels.bin', test_labels.draw_texts(1, 40), words, 1)
    else:
        return {}
    return {'training.dataset_path': data, 'validation.dataset_path': data}


@functools.lru_cache(None)
def teacher():
    job.train('teacher', config({**LLAMA, 'training.steps': 1, 'validation.enable': False}))
    job.sherd('eval', '--checkpoint', saved('teacher', 1), '--data', tokens, '--top-k', 9, '-o', 'teacher.bin')
    return str(pathlib.Path('teacher.bin').resolve())


@functools.lru_cache(None)
def base():
    """What adapters are trained on."""
    job.train('base', config({**{key: value for key, value in KINDS['adapters'].items() if not key.startswith('lora.')},
                              'training.steps': 1, 'validation.enable': False}))
    return str(saved('base', 1).resolve())


def saved(folder, step=STEPS):
    return pathlib.Path(folder) / f'out/checkpoint/step-{step:08}.h5'


def of_routers(step):
    """Loads are whole numbers; losses are sums over blocks and micro-steps, for which stages have another order."""
    loads = step.get('expert_load', {})
    return [loads[key] for key in ('max',) if key in loads] + [
        number for key in ('max_by_block', 'entropy_by_block') for number in loads.get(key, ())] + [
        float(f'{step[key]:.9g}') for key in ('aux_loss', 'z_loss') if key in step]


def of_answers(line):
    """What is said of pairs, answers and labels."""
    numbers = [line.get(key, 0) for key in ('pairs', 'answers', 'rewards', 'logps', 'kl', 'mean_reward', 'min_reward', 'max_reward', 'margin', 'accuracy')]
    return [number for one in numbers for number in (one.values() if isinstance(one, dict) else [one])]


def train(name, changes, ranks, **env):
    """Returns what must not differ: losses, norms, losses of validation and the bytes of the checkpoint; the steps; and the start."""
    folder = job.prepare(name.replace(', ', '-').replace(' ', '-'), {'job.dump_folder': 'out', **changes})
    done = subprocess.run(job.command(ranks, ['train', 'c.yaml']), cwd=folder, env={**job.environment(ranks), **env},
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=job.SECONDS, check=False)
    if done.returncode:
        raise job.Failed(f'{name}: exit {done.returncode}\n{done.stderr}')
    lines = [json.loads(line) for line in (folder / 'out/metrics.jsonl').read_text().splitlines()]
    steps = [line for line in lines if 'loss' in line]
    found = [number for step in steps for number in (step['loss'], step['grad_norm'], *of_routers(step),
                                                        *of_answers(step))]
    found += [number for line in lines if 'validation_loss' in line for number in (line['validation_loss'], *of_answers(line))]
    found.append(saved(folder).read_bytes())
    shutil.rmtree(folder)
    return found, steps, lines[0]


@functools.lru_cache(None)
def one_stage(kind, ranks, changes):
    last = {'parallelism.gradient_sync': 'last_micro_step'}
    found = train(f'one {kind} {ranks}', config({**KINDS[kind], **dict(changes), **last}), ranks)[0]
    return found[:-1], tensors_in(found[-1])


def tensors_in(data):
    """The tensors of a checkpoint; its other contents are the configuration, in which the degree does not show."""
    path = pathlib.Path('checkpoint.h5')
    path.write_bytes(data)
    with checkpoint.h5py.File(path, 'r') as file:
        states = checkpoint.states(file)
    return {(state, name): values.tobytes() for state in states for name, values in checkpoint.read(path, state).items()}


def limited(changes, ranks):
    """With the limit of a budget: a byte less than the first stage takes if it recomputes nothing."""
    if changes.get('activation_checkpoint.mode') != 'memory_budget':
        return changes
    return {**changes, 'memory.limit_bytes': test_memory.plan({**changes, 'activation_checkpoint.mode': 'none'}, ranks)[test_memory.ARENA] - 1}


def case_mesh(name):
    kind, ranks, stages, changes = MESHES[name]
    mesh = {key: value for key, value in changes.items() if not key.startswith(MOVES) and (key, value) not in GRADS.items()}
    expected, tensors = one_stage(kind, ranks // stages, tuple(mesh.items()))
    changes = limited(config({**KINDS[kind], **changes, PP: stages}), ranks)
    found, steps, begun = train('run ' + name, changes, ranks)
    by_rank = [test_memory.plan(changes, ranks, rank)[test_memory.ARENA] for rank in range(ranks)]
    planned = [max(by_rank[at:at + ranks // stages]) for at in range(0, ranks, ranks // stages)]
    wrong = [f'arena of {steps[-1]["arena_bytes"]} bytes, planned {by_rank[0]}'] * (steps[-1]['arena_bytes'] != by_rank[0])
    wrong += [f'arenas {begun["stage_arena_bytes"]}, planned {planned}'] * (begun['stage_arena_bytes'] != planned)
    wrong += ['other tensors are saved'] * (tensors_in(found[-1]) != tensors)
    wrong += [f'{planned} are over the limit'] * (max(planned) > changes.get('memory.limit_bytes', max(planned)))
    return wrong + job.differ('losses and norms', found[:-1], expected, 0)


def case_homes():
    """States in a file leave the memory of each stage, and activations that of the first."""
    none = {'offload.optimizer': 'none'}
    away, here, moved = [[test_memory.plan(config({**LLAMA, PP: 2, **STATES, 'training.local_batch_size': 8, **changes}), 2, rank)
                          for rank in (0, 1)] for changes in ({}, none, {**none, **ROWS})]
    return [f'{a}, and in memory {b}' for a, b in zip(away, here)
            if a[test_memory.ARENA] > b[test_memory.ARENA] - b['optimizer state'] / 2] + [
        f'activations in a file {moved}, and in memory {here}'] * (moved[0][test_memory.ARENA] > 0.9 * here[0][test_memory.ARENA])


def case_budget():
    """Each stage recomputes what the limit asks of it, the first most, and as the plan says; blocks are dealt as if nothing were
    recomputed. One that cannot fit is named."""
    changes = limited(config({**LLAMA, **BUDGET, PP: 4, 'model.n_layers': 8, 'training.steps': 1, 'validation.enable': False}), 4)
    folder = job.prepare('fitted', {'job.dump_folder': 'out', **changes})
    planned = job.sherd('plan', 'c.yaml', '--ranks', 4, folder=folder)
    said = job.launch('train', 'c.yaml', ranks=4, folder=folder)[1]
    words = re.findall(r'^  \d: layers.* recompute (.*)$', planned, re.M)
    wrong = [planned] * (len(words) != 4 or words[0] == 'none' or words[3] != 'none' or 'recompute what each stage needs, to fit' not in planned)
    wrong += [said] * (f'recompute {"; ".join(words)}' not in said)
    try:
        return wrong + [job.sherd('plan', 'c.yaml', '--ranks', 4, '--memory.limit_bytes=8KiB', folder=folder)]
    except job.Failed as refusal:
        return wrong + [str(refusal)] * ('at least, whatever is recomputed, more than memory.limit_bytes' not in str(refusal))


def case_late():
    """Messages that are late, each by up to LATE_US, change nothing; nor does a rank without a thread for them, even if it
    waits for them inside MPI."""
    shims = pathlib.Path(os.environ['SHERD_BUILDDIR']) / 'tests/mesh'
    late = {'LD_PRELOAD': job.launcher.preload(shims / 'slow.so'), 'SLOW_US': str(LATE_US)}
    one_thread = {'LD_PRELOAD': job.launcher.preload(shims / 'single.so')}
    inline = {'comm.progress': 'inline'}
    runs = [train('late', config({**LLAMA, PP: 4, **changes}), 4, **env) for changes, env in
             (({}, late), (inline, one_thread), ({**inline, 'comm.train_timeout_seconds': 0}, one_thread))]
    same = all((one[:-1], tensors_in(one[-1])) == one_stage('llama', 1, ()) for one, _, _ in runs)
    wrong = ['late messages, or ranks without a thread, change bits'] * (not same)
    # A stage between two others sends a message each way in each of 12 micro-steps, late by half of LATE_US on average.
    took, least = sum(step['seconds']['step'] for step in runs[0][1]), STEPS * 12 * LATE_US / 4e6
    return wrong + [f'messages are not late: {STEPS} steps took {took} s, and {least} s at least are expected'] * (took < least)


def case_resume():
    """Each mesh loads what the one before has saved. The head is so large that no loss is finite, so a step is skipped."""
    base = config({**LLAMA, 'validation.enable': False, PP: 4})
    job.train('resume', base, 4)
    path, step, wrong = saved('resume'), STEPS, []
    head = checkpoint.read(path)['lm_head.weight']
    head[...] = 3e38
    checkpoint.replace(path, {'lm_head.weight': head})
    expected = tensors_in(path.read_bytes())
    for ranks, degree in ((0, 1), (2, 2), (4, 2), (4, 4)):
        step += 1
        folder = job.prepare(f'resume-{ranks}-{degree}',
                             {'job.dump_folder': 'out', **base, PP: degree, 'training.steps': step})
        saved(folder, step - 1).parent.mkdir(parents=True)
        shutil.copy(path, saved(folder, step - 1))
        job.sherd('train', 'c.yaml', ranks=ranks, folder=folder)
        path = saved(folder, step)
        wrong += [f'degree {degree} saves other tensors'] * (tensors_in(path.read_bytes()) != expected)
    return wrong


def case_adapters():
    """One process goes on with the adapters of 2 stages, and 2 stages begin with those that PEFT would open."""
    changes = config({**KINDS['adapters'], SCHEDULE: 'ZBH1', PP: 2})
    job.train('stages', {**changes, 'training.steps': 1}, 2)
    job.sherd('ckpt', 'export', saved('stages', 1), '--adapter', 'peft')
    start = {**changes, 'lora.adapter_path': str(pathlib.Path('peft').resolve())}
    begun = [job.losses(job.train('begun', {**start, PP: degree}, ranks)) for ranks, degree in ((0, 1), (2, 2))]
    job.sherd('train', 'c.yaml', f'--training.steps={STEPS}', f'--{PP}=1', folder='stages')
    wrong = ['another end'] * (tensors_in(saved('stages').read_bytes()) != one_stage('adapters', 1, ())[1])
    return wrong + job.differ('losses', begun[1], begun[0], 0)


def case_untrained():
    """The last stage has no adapters: what it adds to the norm is nothing, and not the norm of the step before; ranks of it
    open the channels for sums that those of the other need."""
    model = {**tiny.EXPERTS, **tiny.NANO, **COMMON, 'model.n_layers': 4, 'moe.load_balance_coeff': 0, 'moe.aux_loss_coeff': 0}
    changes = {'training.dataset_path': tokens, **{key: value for key, value in model.items() if value is not None}, 'validation.enable': False}
    job.train('untrained', {**changes, 'training.steps': 1})
    changes |= {'lora.rank': 2, 'lora.alpha': 4, 'lora.target_modules': 'q_proj,v_proj', LAST: 2,
                'checkpoint.initial_load_path': str(saved('untrained', 1).resolve())}
    norms = [[step['grad_norm'] for step in job.train(f'untrained-{degree}', {**changes, PP: degree, **({} if degree > 1 else {LAST: 'auto'})}, ranks)]
             for ranks, degree in ((0, 1), (2, 2), (4, 2))]
    return [line for found in norms[1:] for line in job.differ('norms', found, norms[0], 1e-5)]


def case_evaluated():
    """A checkpoint's loss over 2 stages is that of one rank."""
    job.train('evaluated', config({**LLAMA, PP: 2}), 2)
    words = ['eval', '--checkpoint', saved('evaluated'), f'--validation.dataset_path={tokens}', '--validation.sequences=10']
    found = [re.findall(r'loss \d\S+', job.sherd(*words, *more, ranks=ranks)) for ranks, more in
             ((0, [f'--{PP}=1']), (2, [f'--{PP}=2', f'--{STRATEGY}=shard_optim']))]
    return [] if found[0] and found[0] == found[1] else [str(found)]


def case_refused(name):
    changes, says, *words = REFUSED[name]
    folder = job.prepare('refused', {'job.dump_folder': 'out', **config({**LLAMA, PP: 2, **changes})})
    try:
        words = words or ['plan', 'c.yaml', '--ranks', 4]
        return [job.sherd(*words, ranks=0 if words[0] == 'plan' else 4, folder=folder)]
    except job.Failed as refusal:
        said = ' '.join(str(refusal).split())
    named = re.search(r'parallelism\.pipeline_parallel_(degree|schedule|layers_per_stage)(=|: )', said)
    return [] if says in said and named else [said]


def case_idle():
    """In a file keys of stages may wait for a degree that is typed, since every printed configuration has them; typed without
    one they are refused."""
    keys = {SCHEDULE: 'ZBH1', CHUNK: 1, FIRST: 1, LAST: 1}
    words, plans, wrong = ('plan', 'c.yaml', '--ranks', 2), [], []
    for changes in ({}, keys):
        folder = job.prepare('idle', config({**LLAMA, **changes}))
        plans.append(job.sherd(*words, folder=folder))
    wrong += plans * (plans[0] != plans[1])
    wrong += ['another order'] * ('2 stages' not in job.sherd(*words, f'--{PP}=2', folder=folder))
    for key, value in keys.items():
        try:
            wrong.append(job.sherd(*words, f'--{key}={value}', folder=folder))
        except job.Failed as refusal:
            wrong += [str(refusal)] * (f'--{key}: has no effect without {PP} above 1' not in str(refusal))
    return wrong


def case_announced():
    """The lines that announce a run and its plan say what is cut over its ranks, and what each stage takes."""
    changes = config({**LLAMA, PP: 2, 'training.steps': 1, 'validation.enable': False, 'mesh.ranks_per_node': 4})
    folder = job.prepare('said', {'job.dump_folder': 'out', **changes})
    said = job.launch('train', 'c.yaml', ranks=4, folder=folder)[1]
    planned = job.sherd('plan', 'c.yaml', '--ranks', 4, '--check', folder=folder)
    wrong = [said] * ('2 stages x 2 data (1 x 2 ranks, replicate x shard), ' not in said)
    for words in ('2 stages x 2 data (1 x 2 ranks, replicate x shard), rank 0 of 4', '4 ranks agree',
                  'if all are equally fast: 16.7 % of the time that a stage works'):
        wrong += [planned] * (words not in planned)
    arenas = re.findall(r'^  (\d): layers\.(\d) \.\. layers\.(\d)(?:, \w+)* +(\d+) ', planned, re.M)
    wrong += [planned] * ([row[:3] for row in arenas] != [('0', '0', '2'), ('1', '3', '4')])
    return wrong + [f'stage {row[0]}: {row[3]} bytes' for row, rank in zip(arenas, (1, 3))
                    if int(row[3]) != test_memory.plan(changes, 4, rank)[test_memory.ARENA]]


def case_apart(said, *words):
    """Two stages, of which the first has other arguments: what they disagree about is named before the first step."""
    folder = job.prepare('apart', {'job.dump_folder': 'out', **config({**LLAMA, PP: 2, 'comm.train_timeout_seconds': job.stretch(5)})})
    both = [*job.command(1, ['train', 'c.yaml', *words]), ':', '-n', '1', *job.command(0, ['train', 'c.yaml'])]
    done = subprocess.run(both, cwd=folder, env=job.environment(2), capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=job.SECONDS, check=False)
    return [] if done.returncode == 70 and re.search(said, done.stderr) else [f'exit {done.returncode}: {done.stderr}']


# What is said, and the arguments of the first stage alone. Ranks that deal blocks otherwise would train a model that lacks one, for
# borders have the same rows wherever they are; those with other micro-steps would take each other's messages for their own.
DISAGREED = {
    'dealt apart': ('have dealt other blocks to the stages', f'--{FIRST}=1', f'--{LAST}=0'),
    'other micro-steps': (r'stage 0, forward of micro-step 0, send, \d+ bytes: meets stage 1', '--training.local_batch_size=4'),
}


def case_traced():
    """A trace shows messages with their micro-step, and their bytes."""
    changes = config({**LLAMA, PP: 2, 'training.steps': 2, 'profiling.trace': 'out/trace.json', 'profiling.trace_steps': 1})
    job.train('traced', changes, 2)
    events = json.loads(pathlib.Path('traced/out/trace.json').read_text())['traceEvents']
    sent = [event for event in events if event.get('name') == 'forward send, micro-step 3']
    rows = 2 * tiny.SEQ_LEN * tiny.COMMON['model.dim'] * 4
    return [] if [event['args']['bytes'] for event in sent] == [rows] else [str(sent), str(rows)]


def case_stalled():
    """The line says which stage waits for which, and for which micro-step."""
    program, os.environ['SHERD'] = os.environ['SHERD'], os.environ['SHERD_BUILDDIR'] + '/tests/fault/sherd_dies'
    place, limit = 'forward layers.3 attention, micro-step 7', job.stretch(2)
    changes = config({**LLAMA, PP: 2, 'training.steps': 1000000, 'comm.train_timeout_seconds': limit})
    child = live.start(pathlib.Path('stalled'), changes, 2, DIES_AT=place, DIES_SAVE='2', DIES_RANK='1', DIES_HOW='hang',
                       DIES_SECONDS=str(limit / 2))
    os.environ['SHERD'] = program
    try:
        status = child.wait(job.SECONDS)
        said = live.said(pathlib.Path('stalled'))
    finally:
        job.launcher.stop(child)
    line = (r'stage 0 waits for stage 1: (send|receive) \w+ \w+, micro-step \d+ \(ticket \d+, stream (ahead|back) 0, axis '
            rf'pipeline of 2 ranks\) is not complete after \S+ s; not in it: rank 1 on \S+ \(step \d+, {place}\)')
    return [] if status == 5 and re.search(line, said) else [f'exit {status}'] + said.splitlines()[-5:]


# Kind, ranks, stages, borders of chunks, changes.
PRINTED = {
    '2 stages': ('llama', 4, 2, 1, {**TREE, **LATER, **GRADS}),
    '4 stages, recomputed': ('gpt2, documents', 4, 4, 3, {**TREE, **FULL}),
    '2 stages of 2 chunks': ('gemma3', 2, 2, 3, {**TREE, **RING}),
    '2 stages in bfloat16, all micro-steps in one list': ('qwen3, bfloat16', 2, 2, 1, {'training.global_batch_size': 6}),
    '2 stages of experts': ('experts', 2, 2, 1, TREE),
    '2 stages, gathered in codes': ('gemma3', 2, 2, 1, {**TREE, 'parallelism.gather_dtype': 'int8'}),
    '2 stages, sequences over 2': ('llama, 4 heads', 4, 2, 1, {CONTEXT: 2, **GRADS}),
}
OTHERS = '4 stages, recomputed'  # of which a difference is found too


def printed(name, changes, ranks):
    job.train(name, config({**changes, 'debug.fingerprint': 'f.jsonl', 'debug.fingerprint_steps': '1,3', 'validation.enable': False,
                            'checkpoint.enable': False, 'metrics.norms': 'blocks'}), ranks)
    return pathlib.Path(name, 'f.jsonl')


def compare(*files):
    done = subprocess.run(job.command(0, ['diff', *files, '--json']), capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def records(path):
    """By step and name, without which operation it is: stages do not fuse over a border."""
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return {(line['step'], line['name']): {key: line[key] for key in ('sum', 'bad', 'largest', 'norm', 'signs')} for line in lines
            if not line['name'].startswith('recompute ')}


def case_printed(name):
    """Records of stages are those of one, in the same order, but for the sum at each border, which one stage fuses with the
    norm after it and names by that. So are metrics.norms. A difference is found on the stage that makes it."""
    kind, ranks, stages, borders, changes = PRINTED[name]
    mesh = {key: value for key, value in changes.items() if not key.startswith('parallelism.pipeline')}
    one = printed('printed-one', {**KINDS[kind], **mesh, 'parallelism.gradient_sync': 'last_micro_step'}, ranks // stages)
    many = printed('printed-many', {**KINDS[kind], **changes, PP: stages}, ranks)
    a, b = records(one), records(many)
    wrong = [f'in one stage only: {sorted(set(a) - set(b))}, in stages only: {sorted(set(b) - set(a))}'] * (
        len(set(a) - set(b)) != 4 * borders or len(set(b) - set(a)) != 4 * borders
        or any(f'{word} ' in name for _, name in set(a) ^ set(b) for word in ('gradient', 'parameter', 'tokens')))
    wrong += [f'{key}: {b[key]}, of one stage {a[key]}' for key in a if key in b and a[key] != b[key]][:1]
    norms = [[{**line['norms'], 'seconds': 0} for line in job.metrics(folder) if 'norms' in line] for folder in ('printed-one', 'printed-many')]
    wrong += [f'norms {norms[1]}, of one stage {norms[0]}'] * (norms[0] != norms[1] or not norms[0])
    wrong += ['another order'] * ([key for key in a if key in b] != [key for key in b if key in a])
    status, said = compare(one, many)
    wrong += [f'exit {status}: {said}'] * (status != 0 or not said['equal'])
    if name != OTHERS:
        return wrong
    other = printed('printed-other', {**KINDS[kind], **changes, PP: stages, 'model.norm_eps': 1e-3}, ranks)
    status, said = compare(many, other)
    return wrong + [f'exit {status}: {said}'] * (status != 3 or not said['name'].startswith('forward layers.0.'))


def case_threads():
    """Ranks of two threads would fit the stage of those of one otherwise: records are of what that has chosen."""
    changes = config({**KINDS['llama, 4 heads'], **GRADS, PP: 2, 'training.steps': 2, 'validation.enable': False, 'checkpoint.enable': False,
                      'debug.fingerprint': 'f.jsonl', 'debug.fingerprint_steps': '2', 'training.threads': 1})
    limit, more = (test_memory.plan({**changes, 'training.threads': threads}, 2)[test_memory.ARENA] for threads in (1, 2))
    changes |= {**BUDGET, 'memory.limit_bytes': limit}
    folder, alike = job.prepare('threads', changes), job.prepare('threads-alike', changes)
    said = job.launch('train', 'c.yaml', ranks=2, folder=alike)[1]
    both = [*job.command(1, ['train', 'c.yaml']), ':', '-n', '1', os.environ['SHERD'], 'train', 'c.yaml', '--training.threads=2']
    done = subprocess.run(both, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder, env=job.environment(2))
    wrong = [f'{more} bytes with two threads, {limit} with one: {said}'] * (more <= limit or 'recompute none; none' not in said)
    if done.returncode:
        return wrong + [f'exit {done.returncode}: {done.stderr}']
    status, said = compare(folder / 'f.jsonl', alike / 'f.jsonl')
    return wrong + [f'exit {status}: {said}'] * (status != 0 or not said['bits'] or said['only_a'] + said['only_b'] != 0)


def cases():
    return ([(name, case_mesh, name) for name in MESHES]
            + [(f'fingerprints: {name}', case_printed, name) for name in PRINTED]
            + [('homes', case_homes), ('a budget', case_budget), ('threads', case_threads), ('late messages', case_late), ('checkpoints do not show the degree', case_resume),
               ('folders of adapters', case_adapters), ('no adapters on the last', case_untrained), ('evaluated', case_evaluated), ('announced', case_announced), ('keys without stages', case_idle),
               ('traced', case_traced), ('stalled', case_stalled)]
            + [(name, case_apart, *row) for name, row in DISAGREED.items()]
            + [(f'refused: {name}', case_refused, name) for name in REFUSED])


if __name__ == '__main__':
    job.need_launcher()
    job.need_modules('h5py', 'numpy')
    import checkpoint
    tokens = tiny.write_tokens()
    job.write_examples('examples.bin', [([1, 2], [[3], [4, 5]])])
    sys.exit(job.run_cases(cases()))
