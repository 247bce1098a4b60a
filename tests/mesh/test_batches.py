#!/usr/bin/env python3
"""training.batch_schedule, data.length_schedule: the same bits as a run that is resumed with another number at each of its
steps, on every mesh and after a change of mesh; and what it refuses. Prints TAP."""
import functools
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny
from test_documents import DELTA, SCAN
from test_states import new_folder, saved, take_up

STEPS = 7
PHASES = ((0, 8), (2, 16), (3, 4), (5, 8))
SCHEDULE = {'training.batch_schedule': ', '.join(f'{step}:{n}' for step, n in PHASES)}
TREE = {'training.reproducible': 'mesh'}
LENGTHS = ((0, 3), (2, 6), (5, 12))
SHORT = {'training.global_batch_size': 8, 'data.length_schedule': ', '.join(f'{step}:{n}' for step, n in LENGTHS),
         'checkpoint.interval': 3, 'validation.enable': True, 'validation.freq': 3, 'validation.sequences': 5}

WINDOWS = {'model.family': 'olmo3', 'model.attention_window': 4, 'model.layer_types': 'sliding,full', 'model.tie_word_embeddings': False}
CONTEXT = {'parallelism.context_parallel_degree': 2, 'parallelism.sharding_strategy': 'full_shard'}
TILES = {'training.tile_rows': 64, 'training.local_batch_size': 8, 'activation_checkpoint.mode': 'full'}
# Models, what else the run of short sequences has, and its ranks.
SHORT_MODELS = {
    'one rank': ({}, {}, 0), 'in tiles': ({}, TILES, 0), 'keys gathered over 2 ranks': ({}, CONTEXT, 2),
    'heads exchanged over 2 ranks': ({'model.n_heads': 4, 'model.n_kv_heads': 2}, CONTEXT, 2), 'windows': (WINDOWS, {}, 0),
    'windows over 2 ranks': (WINDOWS, CONTEXT, 2), 'delta rule': (DELTA, {}, 0), 'Mamba-2': (SCAN, {}, 0)}


def config(changes):
    return {**tiny.MODELS['llama'], 'training.dataset_path': tokens, 'training.steps': STEPS, 'training.global_batch_size': -1,
            'training.local_batch_size': 2, 'checkpoint.interval': 4, 'lr_scheduler.total_steps': STEPS, **changes}


def numbers(steps):
    return [step[key] for step in steps for key in ('loss', 'grad_norm', 'tokens_seen')]


@functools.lru_cache(None)
def whole(*changes):
    folder = new_folder()
    return folder, job.train(folder, config({**SCHEDULE, **dict(changes)}))


def chain(changes, ranks=0):
    """A phase after the other, each a job of its own."""
    folder = job.prepare(new_folder(), {'job.dump_folder': 'out', **config(changes)})
    for i, (_, batch) in enumerate(PHASES):
        end = PHASES[i + 1][0] if i + 1 < len(PHASES) else STEPS
        job.sherd('train', 'c.yaml', f'--training.global_batch_size={batch}', f'--training.steps={end}', ranks=ranks, folder=folder)
    return job.metrics(folder)


def case_chain(changes, ranks):
    """Sums, positions and steps are those of runs that know one batch."""
    folder = new_folder()
    steps = job.train(folder, config({**SCHEDULE, **changes}), ranks)
    seen = [step['tokens_seen'] // tiny.SEQ_LEN for step in steps]
    wrong = [] if seen == [8, 16, 32, 36, 40, 48, 56] else [f'sequences seen: {seen}']
    return wrong + job.differ('loss, norm or tokens', numbers(steps), numbers(chain(changes, ranks)), 0)


def judge(folder, changes):
    first, steps = whole(*changes.items())
    found = job.metrics(folder)
    wrong = job.differ('loss, norm or tokens', numbers(found), numbers(steps[-len(found):]), 0)
    return wrong + ([] if saved(folder, STEPS).read_bytes() == saved(first, STEPS).read_bytes() else ['the last checkpoints differ'])


def case_mesh(ranks, strategy):
    folder = new_folder()
    job.train(folder, config({**SCHEDULE, **TREE, 'parallelism.sharding_strategy': strategy}), ranks)
    return judge(folder, TREE)


def case_taken_up(ranks):
    folder, _ = take_up(whole(*TREE.items())[0], config({**SCHEDULE, **TREE}), ranks, 4)
    return judge(folder, TREE)


def case_plan():
    path = job.prepare(new_folder(), config({'training.global_batch_size': 32})) / 'c.yaml'
    text = job.sherd('plan', path, '--ranks', 2, '--check', f'--training.batch_schedule={SCHEDULE["training.batch_schedule"]}')
    wanted = ('step 16 sequences of 12 tokens', 'batches 8 from step 0 (2 micro-steps), 16 from step 2 (4 micro-steps), 4 from step 3 '
              '(1 micro-step), 8 from step 5 (2 micro-steps); this plan is of the largest', '2 ranks agree')
    found = job.sherd('plan', path, '--ranks', 2, '--search', '--machine', 'h100-80x8-ndr400', '--training.batch_schedule=0:4, 2:12')
    wrong = [] if '12 sequences per step (the largest of training.batch_schedule)' in ' '.join(found.split()) else [found]
    return wrong + [part for part in wanted if part not in ' '.join(text.split())]


def case_short(model, changes, ranks):
    """Whole sequences of 12 in two are those of a run of sequences of 6; the last bits differ by the order of sums."""
    plain = config({**model, 'training.global_batch_size': 8, 'data.shuffle': False})
    short = job.train(new_folder(), {**plain, 'data.length_schedule': '0:6', **changes}, ranks)
    own = job.train(new_folder(), {**plain, 'training.seq_len': 6, 'training.local_batch_size': 4, 'training.global_batch_size': 16})
    return job.differ('loss, norm or tokens', numbers(short), numbers(own), 1e-5)


def short_numbers(folder):
    lines = (json.loads(line) for line in (folder / 'out/metrics.jsonl').read_text().splitlines())
    return numbers(job.metrics(folder)) + [line['validation_loss'] for line in lines if 'validation_loss' in line]


def run_short(changes=(), ranks=0):
    folder = new_folder()
    job.train(folder, config({**SHORT, 'validation.dataset_path': tokens, **TREE, **dict(changes)}), ranks)
    return folder


def case_short_chain():
    """A phase after the other, each a job that knows one length; and stopped amid a phase."""
    whole, wrong = short_numbers(run_short()), []
    for ends in ((2, 5), (3, 4)):
        folder = job.prepare(new_folder(), {'job.dump_folder': 'out', **config({**SHORT, 'validation.dataset_path': tokens, **TREE})})
        for end in (*ends, STEPS):
            lengths = [f'--data.length_schedule=0:{dict(zip((2, 5, STEPS), (n for _, n in LENGTHS)))[end]}'] if ends == (2, 5) else []
            job.sherd('train', 'c.yaml', f'--training.steps={end}', *lengths, folder=folder)
        found = short_numbers(folder)[:3 * STEPS]
        wrong += job.differ(f'jobs that end after {ends}', found, whole[:3 * STEPS], 0)
    return wrong


def case_short_mesh(ranks, changes):
    one, other = run_short(), run_short(changes, ranks)
    wrong = job.differ('loss, norm, tokens or validation', short_numbers(other), short_numbers(one), 0)
    return wrong + ([] if saved(one, STEPS).read_bytes() == saved(other, STEPS).read_bytes() else ['the last checkpoints differ'])


def case_short_plan():
    path = job.prepare(new_folder(), config(SHORT)) / 'c.yaml'
    text = ' '.join(job.sherd('plan', path, '--ranks', 2, '--check').split())
    wanted = 'lengths 3 tokens from step 0, 6 tokens from step 2, 12 tokens from step 5; this plan is of 12'
    return [] if wanted in text and '2 ranks agree' in text else [text]


def case_short_eval():
    """Evaluation reads whole sequences of any length: those of a run without a schedule."""
    folder, losses = run_short(), []
    for length in (12, 8):
        for words in ([], ['--data.length_schedule=']):
            losses.append(job.sherd('eval', '--checkpoint', 'out', f'--training.seq_len={length}', *words, folder=folder).split()[1])
    return [] if losses[0] == losses[1] != losses[2] == losses[3] else [f'losses {losses}']


def case_eval():
    """Micro-steps of any size, and stages, evaluate what steps of several sizes made: they are no steps."""
    folder, losses = whole()[0], []
    stages = (2, '--parallelism.pipeline_parallel_degree=2', '--parallelism.sharding_strategy=shard_optim')
    for ranks, *words in [(0,), (0, '--training.local_batch_size=3')] + [stages] * job.can_launch():
        losses.append(float(job.sherd('eval', '--checkpoint', 'out', '--data', tokens, *words, ranks=ranks, folder=folder).split()[1]))
    return [] if max(losses) - min(losses) < 2e-6 else [f'losses {losses}']  # six digits, of products of other numbers of rows


SHORT_REFUSED = ((['--data.length_schedule=0:5'], '5 tokens from step 0 on do not divide training.seq_len=12'),
                 (['--data.length_schedule=2:6'], 'the first phase begins at step 2'),
                 (['--model.family=gpt2'], 'a vector for each position'), (['--data.packing=bfd'], 'give data.packing=concat'),
                 (['--data.packing=bfd', '--model.num_labels=3'], 'learns from whole texts'),
                 (['--data.document_mask=true', '--data.document_separator=1'], 'has documents already'),
                 (['--objective.name=dpo'], 'whole sequences or answers'))


REFUSED = ((['--training.batch_schedule=1:8'], 'the first phase begins at step 1, not at step 0'),
           (['--training.batch_schedule=0:8, 2'], 'phase 2 is not STEP:NUMBER'),
           (['--training.batch_schedule=0:8 2:16'], 'no comma after phase 1'),
           (['--training.batch_schedule=0:8, 2:16, 2:8'], 'a phase from step 2 follows one from step 2'),
           (['--training.batch_schedule=0:8, 2:7'], '7 sequences from step 2 on are not a multiple'),
           (['--training.batch_schedule=0:8, 2:10', '--ranks', '2'], 'training.batch_schedule: 10 does not divide'),
           (['--training.batch_schedule=0:8, 2:12', '--training.reproducible=mesh'], 'is 6; nearest'),
           (['--training.global_batch_size=8'], 'its largest step has 16 sequences, but training.global_batch_size=8'),
           (['--parallelism.pipeline_parallel_degree=2'], 'stages have one list of all micro-steps'),
           (['--offload.gradients=nvme', '--offload.nvme_path=.', '--offload.optimizer=nvme'], 'gradients that live elsewhere'),
           (['--search', '--ranks', '2', '--allow=batch', '--machine', 'cpu'], '--allow=batch would change'))


def case_refused():
    return refusals(SCHEDULE, REFUSED) + refusals(SHORT, SHORT_REFUSED)


def refusals(changes, rows):
    folder, wrong = job.prepare(new_folder(), config(changes)), []
    for words, wanted in rows:
        words = words if '--ranks' in words else ['--ranks', '1', *words]
        done = subprocess.run(job.command(0, ['plan', 'c.yaml', *words]), capture_output=True, text=True, cwd=folder,
                              env=job.environment(0), timeout=job.SECONDS)
        wrong += [] if done.returncode == 2 and wanted in done.stderr else [f'{words}: {done.returncode}, {done.stderr}']
    return wrong


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    two = 2 if job.can_launch() else 0
    cases = [('as a chain of runs', case_chain, {}, two), ('as a chain of runs, a tree of sums', case_chain, TREE, 0),
             ('as a chain, states in a file', case_chain, {'offload.optimizer': 'nvme', 'offload.nvme_path': '.'}, 0)]
    cases += [(f'{ranks} ranks, {strategy}', case_mesh, ranks, strategy) for ranks, strategy in ((2, 'full_shard'), (2, 'no_shard'))
              if job.can_launch()]
    cases += [(f'short sequences, {name}', case_short, *row) for name, row in SHORT_MODELS.items() if not row[2] or job.can_launch()]
    cases += [('short sequences in a chain of runs', case_short_chain), ('short sequences, then evaluated', case_short_eval), ('evaluated', case_eval),
              ('plan of lengths', case_short_plan)]
    cases += [(f'short sequences, 2 ranks, {changes}', case_short_mesh, 2, changes) for changes in (
        {'parallelism.sharding_strategy': 'full_shard'}, {'parallelism.sharding_strategy': 'no_shard', 'activation_checkpoint.mode': 'full'})
              if job.can_launch()]
    cases += [('taken up', case_taken_up, two), ('plan', case_plan), ('refused', case_refused)]
    sys.exit(job.run_cases(cases))
