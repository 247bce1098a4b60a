#!/usr/bin/env python3
"""A kernel that is wrong once, on one rank: `sherd diff` names the operation, or what it went into if that has no record;
debug.find_nan names it too, if what it makes is not a number; and so does `sherd check --operations`. Prints TAP."""
import json
import os
import pathlib
import random
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import tiny

PROGRAM = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).resolve() / 'tests/fault/sherd_wrong'
STEPS = 4
BASE = {'training.steps': STEPS, 'training.global_batch_size': 8, 'training.local_batch_size': 2, 'lr_scheduler.total_steps': 10,
        'checkpoint.enable': False, 'comm.shared_memory': 'off', 'training.reproducible': 'mesh'}
PRINTS = {'debug.fingerprint': 'f.jsonl', 'debug.fingerprint_leaves': True, 'debug.fingerprint_steps': f'1-{STEPS}'}
# Ranks, strategy, recomputation, threads.
EQUAL = [(ranks, strategy, recompute, 1 + number % 2)
         for number, (strategy, recompute, ranks) in enumerate((s, m, n) for s in ('full_shard', 'shard_grad_op', 'shard_optim', 'no_shard')
                                                               for m in ('none', 'full') for n in (2, 4))]
EQUAL += [(4, 'full_shard', 'selective', 1), (2, 'no_shard', 'selective', 2), (2, 'shard_optim', 'selective', 1), (4, 'shard_grad_op', 'selective', 1)]
MODELS = {
    'llama on one rank': (0, tiny.MODELS['llama']),
    'gpt2 over 2, bfloat16, recomputed': (2, {**tiny.MODELS['gpt2'], 'training.mixed_precision_param': 'bfloat16',
                                              'activation_checkpoint.mode': 'full'}),
}
STAGES = (2, {**tiny.MODELS['llama'], 'parallelism.pipeline_parallel_degree': 2, 'parallelism.pipeline_parallel_schedule': 'ZBH1',
              'parallelism.sharding_strategy': 'shard_optim'})
EXPERTS = (2, {**{key: value for key, value in tiny.EXPERTS.items() if key.startswith(('model.', 'moe.'))}, 'parallelism.expert_parallel_degree': 2})
LONG = bool(os.environ.get('SHERD_LONG'))
WAYS = ('scale', 'tile', 'shift', 'element', 'skip', *(('bias', 'border') if LONG else ()))
# Objectives with data of their own, and operations that only these have.
OBJECTIVES = {'--data.token_weight=must': 'head_loss_grad', '--data.token_weight=must --data.packing=bfd': 'head_loss_grad',
              '--training.z_loss=0.05': 'head_loss_grad',
              '--objective.name=dpo': 'pair_loss head_score', '--objective.name=dpo --objective.loss_type=kto': 'pair_loss',
              '--model.num_labels=3': 'head_loss_grad', '--model.num_labels=1 --objective.name=reward': 'pair_loss',
              '--model.num_labels=1 --objective.name=regression': 'pair_loss', '--data.packing=bfd': 'attention', '--data.length_schedule=0:20,3:80': 'attention',
              '--training.seq_len=128 --model.max_seq_len=128 --training.reproducible=mesh --training.row_leaves=8': 'linear_bwd_w',
              '--objective.name=distillation --objective.top_k=4 --objective.teacher_path=no': 'head_loss_grad'}
MUTANTS = 42 if LONG else 6 if job.FEW else 15
STALE = 20 if LONG else 2
NANS = 30 if LONG else 8
CHECKED = 15 if LONG else 6
NAMED = 0.95  # of the mutants, at least
# What has no record of its own: gradients on their way to a sum, and what the update reads and writes.
LATER = {'gradient': ('bwd_w', 'bias_bwd', 'embed_bwd', 'accumulate', 'lora_bwd'), 'next step': ('adamw', 'sumsq', 'exact_round', 'cast', 'copy')}


def run(folder, ranks, config, words=('train', 'c.yaml'), statuses=(0, 6), more=None, **env):
    """Standard error of a run that is meant to end well, with the guard's status, or with that of wrong operations."""
    return go(prepare(folder, config), ranks, words, statuses, more, **env)


def prepare(folder, config):
    return job.prepare(folder, {'job.dump_folder': 'out', 'training.dataset_path': tokens, **config})


def go(folder, ranks, words=('train', 'c.yaml'), statuses=(0, 6), more=None, **env):
    words = job.command(ranks, list(words))
    words[words.index(os.environ['SHERD'])] = str(PROGRAM)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder, timeout=job.SECONDS,
                          env={**job.environment(ranks), **(more or {}), **{f'WRONG_{name}': str(value) for name, value in env.items()}})
    if done.returncode not in statuses:
        raise job.Failed(f'{env}: exit {done.returncode}\n{done.stderr}')
    return done.stderr


def count_calls(ranks, config, of='calls'):
    """How many kernels had been called before each step, and in all; or how many gathers."""
    return [int(word) for word in re.search(rf'^{of} (.*)', run('count', ranks, config, CALL='count'), re.M)[1].split()]


def first_difference():
    done = subprocess.run([os.environ['SHERD'], 'diff', '--json', 'right/f.jsonl', 'wrong/f.jsonl'], capture_output=True, text=True)
    return json.loads(done.stdout)


def named(label, step, found, rank):
    """Whether the record is that of the operation "backward layers.0 linear_bwd_x", or of the first thing made of it; and whether the
    rank is named, if micro-steps made it."""
    if 'ranks' in found and rank != 'all' and found['ranks'][1] != rank:
        return False
    phase, *block, kind = label.split()
    for later, kinds in LATER.items():
        if kind.endswith(kinds):
            return found['name'].startswith('gradient ') if later == 'gradient' else found['step'] > step
    return found['step'] == step and found['kind'] == kind and found['name'].startswith(phase + ' ')


def case_mutants(ranks, model):
    config = {**model, **BASE, **PRINTS}
    calls = count_calls(ranks, config)
    run('right', ranks, config)
    draw, tried, missed, micro_steps = random.Random(ranks + 17), 0, [], 0
    while tried < MUTANTS:
        call, how = draw.randrange(calls[1], calls[STEPS]), WAYS[tried % len(WAYS)]
        step = max(i for i in range(1, STEPS) if calls[i] <= call)
        rank = ranks // 2 if tried % 4 else 'all'
        text = run('wrong', ranks, config, CALL=call, HOW=how, RANK=rank)
        label, change = re.search(r'^wrong: (.*): (\w+)$', text, re.M).groups()
        found = first_difference()
        if change == 'nothing' or (how == 'skip' and found['equal']):
            continue
        tried += 1
        micro_steps += 'ranks' in found
        if found['equal'] or not named(label, step, found, rank):
            missed.append(f'{how}, call {call} in step {step}, {label}: {found}')
    print(f'# {tried - len(missed)} of {tried} named, {micro_steps} with their micro-step')
    return missed if tried - len(missed) < NAMED * tried else [] if micro_steps else ['no micro-step was named']


def of_unit(label):
    """Names of what is made of a gathered unit: "backward layers.0 all_gather" is for "backward d.layers.0.gelu"."""
    phase, unit = label.split()[:2]
    return rf'{phase} (d\.)?' + (re.escape(unit) + r'\.' if unit.startswith('layers.') else '')


def case_stale(ranks, model):
    """A gather that brings nothing: what reads its unit is named, in the same step, phase and block."""
    config = {**model, **BASE, **PRINTS, 'parallelism.sharding_strategy': 'full_shard', 'activation_checkpoint.mode': 'none'}
    gathers = count_calls(ranks, config, 'gathers')
    run('right', ranks, config)
    draw, missed, tried = random.Random(ranks + 29), [], 0
    while tried < STALE:
        gather = draw.randrange(gathers[1], gathers[STEPS])
        step = max(i for i in range(1, STEPS) if gathers[i] <= gather)
        text = run('wrong', ranks, config, CALL=gather, HOW='stale', RANK=ranks // 2)
        label, change = re.search(r'^wrong: (.*): (\w+)$', text, re.M).groups()
        found = first_difference()
        if change == 'nothing':  # the unit was still there, from the micro-step before
            continue
        tried += 1
        if found['equal'] or found['step'] != step or not re.match(of_unit(label), found['name']):
            missed.append(f'gather {gather} in step {step}, {label}: {found}')
    print(f'# {tried - len(missed)} of {tried} named')
    return missed if len(missed) > (1 - NAMED) * tried else []


def case_equal():
    """Pairs of equal steps, on other meshes and strategies: no difference is found."""
    steps, wrong, pairs = (25 if LONG else 4), [], 0
    config = {**tiny.MODELS['llama'], **BASE, 'training.steps': steps, 'lr_scheduler.total_steps': steps,
              'debug.fingerprint': 'f.jsonl', 'debug.fingerprint_steps': f'1-{steps}'}
    for narrow in ({}, {'training.mixed_precision_param': 'bfloat16'})[:2 if LONG else 1]:
        run('right', 0, {**config, **narrow})
        for ranks, strategy, recompute, local in EQUAL if LONG else EQUAL[:1]:
            run('wrong', ranks, {**config, **narrow, 'parallelism.sharding_strategy': strategy, 'activation_checkpoint.mode': recompute,
                                 'training.threads': local})
            found = first_difference()
            wrong += [f'{ranks} ranks, {strategy}, {recompute}, {narrow}: {found}'] * (not found['equal'])
            pairs += steps
    print(f'# no difference in {pairs} equal pairs of steps' if not wrong else f'# {len(wrong)} false')
    return wrong


def case_nan(ranks, model, tries=NANS):
    """The operation is named, with its rank, and the step changes nothing; one that is not wrong again is told apart."""
    config = {**model, **BASE, 'debug.find_nan': True, 'guard.action': 'skip'}
    calls = count_calls(ranks, config)
    draw, wrong, tried = random.Random(ranks + 5), [], 0
    while tried < tries:
        call = draw.randrange(calls[1], calls[2])
        text = run('nan', ranks, config, CALL=call, HOW='nan', RANK=ranks // 2, AGAIN=tried % 3 > 0)
        label, change = re.search(r'^wrong: (.*): (\w+)$', text, re.M).groups()
        said = re.search(r'step 1: (first not finite: .*|run again, all numbers are finite.*)', text)
        if change == 'nothing' or not said:  # it did not reach the loss or the norm
            continue
        tried += 1
        if tried % 3 == 1:
            right = said[1].startswith('run again')
        else:
            right = said[1].startswith(f'first not finite: {label} makes nan in ') and f'; rank {ranks // 2} on ' in said[1]
        wrong += [f'call {call}, {label}: {said[0]}'] * (not right)
    return wrong


def case_check(ranks, model):
    """The operation is named, with its tensor and rank."""
    config, words = {**model, **BASE}, ('check', 'c.yaml', '--operations')
    said = run('count', ranks, config, words, CALL='count')
    calls = int(re.search(r'^calls .* (\d+)$', said, re.M)[1])
    draw, tried, missed = random.Random(ranks + 3), 0, []
    while tried < CHECKED:
        call, how = draw.randrange(calls), WAYS[tried % len(WAYS)]
        text = run('wrong', ranks, config, words, CALL=call, HOW=how, RANK=ranks // 2)
        label, change = re.search(r'^wrong: (.*): (\w+)$', text, re.M).groups()
        if change == 'nothing':
            continue
        tried += 1
        if not re.search(rf'^rank {ranks // 2} on \S+: {re.escape(label)}: element \d+ of .* in float64 it is ', text, re.M):
            missed.append(f'{how}, call {call}, {label}: {text}')
    return missed if tried - len(missed) < NAMED * tried else []


def check(*words, ranks=0):
    done = subprocess.run(job.command(ranks, ['check', 'c.yaml', *words]), capture_output=True, text=True, cwd='right', env=job.environment(ranks))
    return done.returncode, done.stdout, done.stderr


def case_right():
    """Right kernels are within their bounds, of all types and with all operations of a step; the sizes are said."""
    wrong = []
    for dtype in ('float32', 'bfloat16', 'float16'):
        job.prepare('right', {'training.dataset_path': 'nowhere', **BASE, **tiny.MODELS['llama'], 'model.n_layers': 3,
                              'training.mixed_precision_param': dtype, 'training.seq_len': 80, 'model.max_seq_len': 80,
                              'training.global_batch_size': 4, 'training.batch_schedule': '0:2, 3:4'})
        status, said, error = check('--operations')
        kinds = {line.split()[0]: line.split()[1] for line in said.splitlines() if len(line.split()) == 3}
        wrong += [f'{dtype}: exit {status}: {said}{error}'] * (
            status != 0 or '2 of 3 layers, 1 sequence of 64 of 80 tokens' not in said or kinds.get('attention_bwd') != '2')
        wrong += [f'{dtype}: not in {list(kinds)}'] * (not {'embed', 'linear_bwd_w', 'swiglu', 'adamw', 'head_loss_grad'} <= set(kinds))
    status, said, _ = check('--operations', '--full')
    wrong += [f'in full: exit {status}: {said}'] * (status != 0 or '3 of 3 layers, 1 sequence of 80 of 80 tokens' not in said)
    for words, kinds in OBJECTIVES.items():
        status, said, error = check('--operations', *words.split())
        wrong += [f'{words}: exit {status}: {said}{error}'] * (status != 0 or not all(f'\n{kind} ' in said for kind in kinds.split()))
    stages = ('--parallelism.sharding_strategy=shard_optim', '--model.n_layers=8', '--training.batch_schedule=', '--model.tie_word_embeddings=false',
              '--parallelism.pipeline_parallel_degree=2', '--parallelism.pipeline_parallel_schedule=Interleaved1F1B')
    for ranks, layers, *words in [(0, '2 of 3', '--offload.activations=nvme', f'--offload.nvme_path={pathlib.Path.cwd()}'),  # which stay in memory here
                                  
                                  *[(2, '2 of 8', *stages), (2, '2 of 8', *stages[:-1], '--parallelism.pipeline_parallel_first_stage_less_layers=2')] * job.can_launch()]:
        status, said, error = check('--operations', *words, ranks=ranks)
        wrong += [f'{words}: exit {status}: {said}{error}'] * (status != 0 or f'{layers} layers' not in said)
    # Numbers of blocks that are left out; of those that the whole model lacks, too, a run is refused.
    groups = '--optimizer.groups=pattern=layers.2 lr=0.5; pattern=norm weight_decay=0; pattern=layers.[0-9] beta1=0.5'
    status, said, error = check('--operations', groups)
    wrong += [f'groups: exit {status}: {said}{error}'] * (status != 0 or '2 of 3 layers' not in said)
    status, said, error = check('--operations', groups.replace('.2', '.3'))
    wrong += [f'groups of no block: exit {status}: {said}{error}'] * (status != 2 or "pattern 'layers.3' is in the name of no" not in error)
    # Muon has a matrix, wherever groups leave it one.
    for name, groups in ('adamw', 'pattern=layers.2 optimizer=muon'), ('muon', 'pattern=layers.[01] optimizer=adamw'):
        status, said, error = check('--operations', f'--optimizer.name={name}', f'--optimizer.groups={groups}')
        wrong += [f'{groups}: exit {status}: {said}{error}'] * (status != 0 or '3 of 3 layers' not in said or '\northo ' not in said)
    # As many blocks that share keys and values as it takes to have all kinds.
    job.prepare('right', {'training.dataset_path': 'nowhere', **BASE, **tiny.MODELS['llama'], **tiny.SHARING})
    status, said, error = check('--operations')
    wrong += [f'shared keys: exit {status}: {said}{error}'] * (status != 0 or '4 of 6 layers' not in said or '\njoin_kv ' not in said)
    # Experts are in the blocks that are taken, and on each stage.
    job.prepare('right', {'training.dataset_path': 'nowhere', **BASE, **tiny.EXPERTS, 'model.n_layers': 8, 'model.first_dense_layers': 3})
    status, said, error = check('--operations')
    wrong += [f'experts: exit {status}: {said}{error}'] * (status != 0 or '4 of 8 layers' not in said or '\nexpert_linear ' not in said)
    if job.can_launch():
        job.prepare('right', {'training.dataset_path': 'nowhere', **BASE, **tiny.EXPERTS, 'model.n_layers': 8, 'model.first_dense_layers': 1, 'moe.aux_loss_coeff': 0,
                              'parallelism.sharding_strategy': 'shard_optim', 'parallelism.pipeline_parallel_degree': 2, 'parallelism.expert_parallel_degree': 2})
        status, said, error = check('--operations', ranks=4)
        wrong += [f'experts on stages: exit {status}: {said}{error}'] * (status != 0 or '4 of 8 layers' not in said)
    # Two operations in one: where the first rounds to the other of two neighbours, the second sums what it was given.
    wide = ('--model.dim=160', '--model.n_heads=10', '--model.n_kv_heads=10', '--model.head_dim=16', '--model.ffn_dim=640', '--training.seq_len=16')
    job.prepare('right', {'training.dataset_path': 'nowhere', **BASE, **tiny.MODELS['gpt2'], 'training.mixed_precision_param': 'bfloat16'})
    status, said, error = check('--operations', *wide)
    wrong += [f'a fused sum: exit {status}: {said}{error}'] * (status != 0 or '\ngelu_bwd_bias ' not in said)
    # Few rows have a score, and by this seed all are next to nothing.
    job.prepare('right', {'training.dataset_path': 'nowhere', **BASE, **tiny.MODELS['llama'], 'model.init_std': 0.02, 'model.dim': 256, 'model.n_layers': 1,
                          'training.seq_len': 12, 'training.global_batch_size': 1, 'training.local_batch_size': 1, 'model.num_labels': 1,
                          'objective.name': 'regression', 'debug.seed': 146})
    status, said, error = check('--operations')
    wrong += [f'few scores: exit {status}: {said}{error}'] * (status != 0)
    # Answers to learn and to avoid that cost nearly the same, by this seed: their difference is no measure of what rounds.
    job.prepare('right', {'training.dataset_path': 'nowhere', **BASE, **tiny.MODELS['llama'], 'objective.name': 'dpo', 'model.init_std': 0.02,
                          'training.seq_len': 16, 'model.max_seq_len': 32, 'debug.seed': 84})
    status, said, error = check('--operations')
    wrong += [f'a weighed sum: exit {status}: {said}{error}'] * (status != 0)
    left = sorted(path.name for path in pathlib.Path('right').iterdir())
    wrong += [f'left behind: {left}'] * (left != ['c.yaml'])
    for words, status, text in (((), 2, '--operations'), (('--operations', '--objective.name=dpo', '--training.seq_len=8'), 2, 'training.seq_len of 10'),
                                (('--operations', '--folder=no/such'), 3, 'no/such')):
        found, _, error = check(*words)
        wrong += [f'{words}: exit {found}: {error}'] * (found != status or text not in error)
    return wrong


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    rows = [(name, *row) for name, row in MODELS.items() if row[0] == 0 or job.can_launch()]
    sys.exit(job.run_cases([(f'a wrong kernel, {name}', case_mutants, *row) for name, *row in rows]
                           + [(f'a stale gather, {name}', case_stale, *row) for name, *row in rows if row[0]]
                           + [('equal steps', case_equal)] * job.can_launch() + [('right kernels', case_right)] + [(f'a check, {name}', case_check, *row) for name, *row in rows]
                           + [(f'no number, {name}', case_nan, *row) for name, *row in rows]
                           + [('no number, 2 stages', case_nan, *STAGES, NANS // 4), ('no number, experts on 2 ranks', case_nan, *EXPERTS)] * job.can_launch()))
