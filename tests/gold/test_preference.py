#!/usr/bin/env python3
"""Preference optimization against PyTorch in float64, which has a row for each answer: losses, rewards, norms and
the change of weights in ten steps, for all losses, one pair a sequence and packed, of the whole model and of adapters.
SHERD_LONG=1 takes twenty steps, and each loss in each way. Prints TAP.

The losses are written down as in TRL 1.x (DPOTrainer with reverse KL, CPOTrainer, ORPOTrainer, KTOTrainer), and
differentiated by PyTorch. What ORPO and sft_weight add is the mean over the chosen answer, as in their papers.
"""
import functools
import os
import pathlib
import random
import shutil
import sys

import job
job.need_modules('numpy', 'h5py', 'torch')
import numpy
import torch
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import checkpoint
import pairs
import torch_reference
from test_torch import CHANGE_BOUND, COMMON, compare_tensors, draw_weights

STEPS, BATCH = 20 if os.environ.get('SHERD_LONG') else 10, 8
LOSS_BOUND = 1e-5     # relative, each step
REWARD_BOUND = 2e-5   # of log-probabilities of up to 100, of which rewards are small differences
NORM_BOUND = 5e-5
ADAPTER_BOUND = 2e-3  # of the change: one factor begins at 0, so the first gradients of the other are small, and rounding is not; seen: 5e-4
log_s = torch.nn.functional.logsigmoid


# dc, dj: how much likelier the chosen and the rejected answer are than to the reference; nc, nj: their tokens.
LOSSES = {
    'sigmoid': lambda dc, dj, nc, nj, b, e: -(1 - e) * log_s(b * (dc - dj)) - e * log_s(b * (dj - dc)),
    'hinge': lambda dc, dj, nc, nj, b, e: torch.relu(1 - b * (dc - dj)),
    'ipo': lambda dc, dj, nc, nj, b, e: (dc / nc - dj / nj - 1 / (2 * b)) ** 2,
    'exo_pair': lambda dc, dj, nc, nj, b, e: sum(
        torch.sigmoid(x) * (log_s(x) - numpy.log(p)) for x, p in ((b * (dc - dj), 1 - e), (b * (dj - dc), e))),
    'nca_pair': lambda dc, dj, nc, nj, b, e: -log_s(b * dc) - (log_s(-b * dc) + log_s(-b * dj)) / 2,
    'robust': lambda dc, dj, nc, nj, b, e: (e * log_s(b * (dj - dc)) - (1 - e) * log_s(b * (dc - dj))) / (1 - 2 * e),
    'bco_pair': lambda dc, dj, nc, nj, b, e: -log_s(b * dc) - log_s(-b * dj),
    'sppo_hard': lambda dc, dj, nc, nj, b, e: (dc - 0.5 / b) ** 2 + (dj + 0.5 / b) ** 2,
    'apo_zero': lambda dc, dj, nc, nj, b, e: 1 - torch.sigmoid(b * dc) + torch.sigmoid(b * dj),
    'apo_down': lambda dc, dj, nc, nj, b, e: torch.sigmoid(b * dc) + 1 - torch.sigmoid(b * (dc - dj)),
    'sigmoid_norm': lambda dc, dj, nc, nj, b, e: -log_s(b * (dc / nc - dj / nj)),
    'cpo': lambda dc, dj, nc, nj, b, e: -(1 - e) * log_s(b * (dc - dj)) - e * log_s(b * (dj - dc)),
    'simpo': lambda dc, dj, nc, nj, b, e: sum(
        -p * log_s(s * b * (dc / nc - dj / nj - GAMMA / b)) for s, p in ((1, 1 - e), (-1, e))),
    'orpo': lambda dc, dj, nc, nj, b, e: -dc / nc - b * log_s(
        (dc / nc - dj / nj) - (log_rest(dc / nc) - log_rest(dj / nj))),
}
GAMMA = 0.4
NO_REFERENCE = ('cpo', 'simpo', 'orpo')
MEANS = ('simpo', 'orpo')   # whose rewards are of mean log-probabilities
SFT = {'objective.sft_weight': 0.3}


def log_rest(m):
    return torch.log(-torch.expm1(m))


SMOOTHED = {'robust': 0.2, 'exo_pair': 0.1}
MORE = {'hinge': {'objective.beta': 3.0},  # which brings some pairs beyond the hinge
        'cpo': SFT, 'simpo': {'objective.gamma': GAMMA, 'objective.label_smoothing': 0.1}}
LLAMA = {**COMMON, 'model.family': 'llama', 'model.n_kv_heads': 2, 'model.head_dim': 16, 'model.ffn_dim': 96,
         'model.vocab_size': 101, 'model.rope_theta': 10000.0, 'model.tie_word_embeddings': False}
GPT2 = {**COMMON, 'model.family': 'gpt2', 'model.head_dim': 16, 'model.ffn_dim': 256, 'model.vocab_size': 97,
        'model.tie_word_embeddings': True}
MODELS = {'llama': LLAMA, 'gpt2': GPT2}
PREFERENCE = {'training.dataset_path': '../pairs.bin', 'objective.name': 'dpo', 'objective.beta': 0.3,
              'data.packing': 'none', 'optimizer.lr': 2e-3, 'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS,
              'checkpoint.interval': STEPS}
PAIRS = STEPS * BATCH
SEED = '../seed/out/checkpoint/step-00000000.h5'
EPOCHS = 20 if STEPS == 20 else 3
PACKED = {'data.packing': 'bfd', 'training.local_batch_size': 1, 'training.steps': EPOCHS}
ADAPTERS = {'lora.rank': 3, 'lora.alpha': 9}
WAYS = LOSSES if STEPS == 20 else ('ipo', 'orpo')  # of which adapters and packed pairs are tried


def states(w, texts, c):
    """[n,T] tokens of lists of tokens, and [n,T,C]. Zeros come behind a text, where none of its tokens sees them."""
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], True)
    run = torch_reference.gpt2 if c['model.family'] == 'gpt2' else torch_reference.llama
    return tokens, run(w, tokens, torch_reference.visible(tokens, -1), {**c, 'routed': []})


def log_probabilities(w, texts, c):
    """[n] of the answers of pairs of a prompt and an answer."""
    tokens, x = states(w, [prompt + answer for prompt, answer in texts], c)
    embedding = 'transformer.wte.weight' if c['model.family'] == 'gpt2' else 'model.embed_tokens.weight'
    logp = (x @ w['lm_head.weight' if 'lm_head.weight' in w else embedding].T).log_softmax(-1)
    logp = logp[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
    return torch.stack([row[len(prompt) - 1:len(prompt) + len(answer) - 1].sum() for row, (prompt, answer) in zip(logp, texts)])


def texts_of(batch):
    return [(prompt, answer) for prompt, *answers in batch for answer in answers]


def train(weights, batches, loss, c, reference=None):
    """Returns (metrics by name, weights). If there are adapters, only they are trained. reference: weights of another model."""
    other = {name: torch.tensor(value, dtype=torch.float64) for name, value in (reference or {}).items()}
    base = {name: torch.tensor(value, dtype=torch.float64) for name, value in weights.items()}
    w = {name: x.requires_grad_() for name, x in base.items() if '.lora_' in name or 'lora.rank' not in c}
    whole = (lambda: torch_reference.adapted(base, w, c)) if 'lora.rank' in c else lambda: w
    optimizer = torch_reference.make_optimizer(w, c)
    beta, smoothing = c['objective.beta'], c.get('objective.label_smoothing', 0)
    with torch.no_grad():
        known = [log_probabilities(other or whole(), texts_of(batch), c).unflatten(0, (-1, 2)) for batch in batches]
    found = {'loss': [], 'chosen': [], 'rejected': [], 'accuracies': [], 'norm': []}
    for step, (batch, refs) in enumerate(zip(batches, known)):
        optimizer.zero_grad()
        costs, rewards = [], []
        for (_, *answers), logps, ref in zip(batch, log_probabilities(whole(), texts_of(batch), c).unflatten(0, (-1, 2)), refs):
            d = logps if loss in NO_REFERENCE else logps - ref
            costs.append(LOSSES[loss](*d, *map(len, answers), beta, smoothing))
            costs[-1] = costs[-1] - c.get('objective.sft_weight', 0) * logps[0] / len(answers[0])
            rewards.append([beta * float(x.detach()) / (len(a) if loss in MEANS else 1) for x, a in zip(d, answers)])
        mean = sum(costs) / len(costs)
        mean.backward()
        found['loss'].append(float(mean.detach()))
        found['chosen'].append(sum(r[0] for r in rewards) / len(rewards))
        found['rejected'].append(sum(r[1] for r in rewards) / len(rewards))
        found['accuracies'].append(sum(r[0] > r[1] for r in rewards) / len(rewards))
        found['norm'].append(torch_reference.clip(w, c['training.max_norm']))
        for group in optimizer.param_groups:
            group['lr'] = torch_reference.learning_rate(step, c)
        optimizer.step()
    return found, {name: x.detach().numpy() for name, x in w.items()}


class Model:
    """A folder with pairs.bin, and seed.h5 with random weights."""

    def __init__(self, name):
        self.c = {**MODELS[name], **PREFERENCE}
        self.folder = pathlib.Path(name)
        self.folder.mkdir()
        words = self.c['model.vocab_size']
        self.pairs = pairs.draw_pairs(3, PAIRS, words, longest=8)
        pairs.write(self.folder / 'pairs.bin', self.pairs, words)
        job.train(self.folder / 'seed', {**self.c, 'training.steps': 1, 'lr_scheduler.total_steps': 0,
                                         'lr_scheduler.warmup_steps': 0, 'checkpoint.create_seed_checkpoint': True})
        seed = self.folder / 'seed/out/checkpoint/step-00000000.h5'
        self.weights = draw_weights({key: value.shape for key, value in checkpoint.read(seed).items()})
        checkpoint.replace(seed, self.weights)

    @functools.cached_property
    def adapters(self):
        """The weights with the adapters that any run upon them begins with."""
        job.train(self.folder / 'adapters', {**self.c, **ADAPTERS, 'checkpoint.initial_load_path': SEED, 'checkpoint.create_seed_checkpoint': True})
        return self.weights | checkpoint.read(self.folder / 'adapters/out/checkpoint/step-00000000.h5')

    @functools.cached_property
    def rows(self):
        """Rows that the pairs fill when packed."""
        _, said = job.launch('train', 'c.yaml', folder=job.prepare(self.folder / 'rows', {
            'job.dump_folder': 'out', **self.c, **PACKED, 'training.global_batch_size': 1, 'training.steps': 1}))
        return int(said.split(' sequences')[0].split()[-1])

    def train(self, folder, changes, ranks=0):
        """Returns (configuration, metrics, the last checkpoint)."""
        path = self.folder / folder
        c = {**self.c, 'checkpoint.initial_load_path': SEED, **changes}
        steps = job.train(path, c, ranks)
        return c, steps, path / f'out/checkpoint/step-{steps[-1]["step"]:08}.h5'


@functools.lru_cache(None)
def model(name):
    return Model(name)


def compare(m, batches, loss, c, steps, path, reference=None):
    first = m.adapters if 'lora.rank' in c else m.weights
    expected, weights = train(first, batches, loss, c, reference)
    rewards = {key: [step['rewards'][key] for step in steps] for key in ('chosen', 'rejected', 'accuracies', 'margins')}
    wrong = job.differ('loss', job.losses(steps), expected['loss'], LOSS_BOUND)
    wrong += job.differ('gradient norm', [step['grad_norm'] for step in steps], expected['norm'], NORM_BOUND)
    for key in 'chosen', 'rejected':
        off = max(abs(a - b) for a, b in zip(rewards[key], expected[key]))
        wrong += [] if off <= REWARD_BOUND else [f'rewards/{key}: {off:.2g} off']
    wrong += [] if rewards['accuracies'] == expected['accuracies'] else [f'{rewards["accuracies"]}, expected {expected["accuracies"]}']
    changed = {name: values - first[name] for name, values in checkpoint.read(path).items()}
    return wrong + compare_tensors(changed, {name: weights[name] - first[name] for name in weights}, ADAPTER_BOUND if 'lora.rank' in c else CHANGE_BOUND)


def options(loss):
    return {'objective.loss_type': loss, **({'objective.label_smoothing': SMOOTHED[loss]} if loss in SMOOTHED else MORE.get(loss, {}))}


def case_loss(name, loss, ranks=0, changes=None):
    m = model(name)
    folder = '-'.join([loss, str(ranks), *(changes or {})])
    c, steps, path = m.train(folder, {**options(loss), **(changes or {})}, ranks)
    return compare(m, [m.pairs[i:i + BATCH] for i in range(0, PAIRS, BATCH)], loss, c, steps, path)


def case_reference(name, loss, ranks=0, changes=None):
    """Another model is the reference, whose numbers an evaluation of another packing has written."""
    m, noise = model(name), numpy.random.default_rng(5)
    other = {key: x + noise.normal(scale=0.02, size=x.shape).astype(x.dtype) for key, x in m.weights.items()}
    path = shutil.copy(m.folder / SEED[3:], m.folder / 'other.h5')
    checkpoint.replace(path, other)
    job.sherd('eval', '--checkpoint', 'other.h5', '--data', 'pairs.bin', '--data.packing=bfd', '--reference', '-o', 'pairs.ref',
              folder=m.folder, ranks=ranks)
    c, steps, path = m.train(f'other-{ranks}-{len(changes or {})}', {**options(loss), 'objective.reference_path': '../pairs.ref', **(changes or {})}, ranks)
    wrong = [] if abs(steps[0]['loss'] - numpy.log(2)) > 1e-3 else ['the reference is not another one']
    return wrong + compare(m, [m.pairs[i:i + BATCH] for i in range(0, PAIRS, BATCH)], loss, c, steps, path, other)


def train_single(weights, batches, c):
    """KTOTrainer with apo_zero_unpaired. Batches have (prompt, answer, whether it is desirable)."""
    w = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in weights.items()}
    optimizer = torch_reference.make_optimizer(w, c)
    beta, counts = c['objective.beta'], (c['objective.undesirable_weight'], c['objective.desirable_weight'])
    with torch.no_grad():
        known = [log_probabilities(w, [text[:2] for text in batch], c) for batch in batches]
    found = {'loss': [], 'norm': [], 'rewards': [], 'answers': []}
    for step, (batch, refs) in enumerate(zip(batches, known)):
        optimizer.zero_grad()
        costs, rewards = [], ([], [])
        for (_, _, good), ratio in zip(batch, log_probabilities(w, [text[:2] for text in batch], c) - refs):
            costs.append(counts[good] * (1 - torch.sigmoid(beta * ratio) if good else torch.sigmoid(beta * ratio)))
            rewards[good].append(beta * float(ratio.detach()))
        mean = torch.cat([cost.reshape(1) for cost in costs]).mean()
        mean.backward()
        found['loss'].append(float(mean.detach()))
        found['norm'].append(torch_reference.clip(w, c['training.max_norm']))
        found['rewards'].append([sum(r) / len(r) if r else None for r in rewards])
        found['answers'].append([len(r) for r in rewards])
        for group in optimizer.param_groups:
            group['lr'] = torch_reference.learning_rate(step, c)
        optimizer.step()
    return found, {name: x.detach().numpy() for name, x in w.items()}


def case_single(name, ranks=0, changes=None):
    m = model(name)
    answers = pairs.draw_answers(5, PAIRS, m.c['model.vocab_size'], longest=8)
    pairs.write_answers(m.folder / 'answers.bin', answers, m.c['model.vocab_size'])
    c, steps, path = m.train(f'single-{ranks}', {
        'training.dataset_path': '../answers.bin', 'objective.loss_type': 'apo_zero_unpaired',
        'objective.desirable_weight': 1.5, 'objective.undesirable_weight': 0.6, **(changes or {})}, ranks)
    expected, weights = train_single(m.weights, [answers[i:i + BATCH] for i in range(0, PAIRS, BATCH)], c)
    wrong = job.differ('loss', job.losses(steps), expected['loss'], LOSS_BOUND)
    wrong += job.differ('gradient norm', [step['grad_norm'] for step in steps], expected['norm'], NORM_BOUND)
    for step, rewards, count in zip(steps, expected['rewards'], expected['answers']):
        said = [step['rewards'].get(key) for key in ('rejected', 'chosen')]
        off = [(a is None) != (b is None) or a is not None and abs(a - b) > REWARD_BOUND for a, b in zip(said, rewards)]
        wrong += [f'step {step["step"]}: rewards {said}, expected {rewards}'] if any(off) else []
        found = [step['answers'][key] for key in ('rejected', 'chosen')]
        wrong += [] if found == count else [f'step {step["step"]}: {found} answers, expected {count}']
        both = None not in rewards
        wrong += [] if ('margins' in step['rewards']) == both else [f'step {step["step"]}: {step["rewards"]}']
    changed = {name: values - m.weights[name] for name, values in checkpoint.read(path).items()}
    return wrong + compare_tensors(changed, {name: weights[name] - m.weights[name] for name in weights}, CHANGE_BOUND)


def train_kto(weights, answers, steps, rows, c, most):
    """KTOTrainer, each step over all answers of rows, which are lists of them, of which the first `most` tokens are kept: z is the
    mean of the mismatched ones of a row."""
    w = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in weights.items()}
    optimizer, beta = torch_reference.make_optimizer(w, c), c['objective.beta']
    counts = (c['objective.undesirable_weight'], c['objective.desirable_weight'])
    others = [(prompt, answers[(i + len(answers) // 2) % len(answers)][1]) for i, (prompt, _, _) in enumerate(answers)]
    texts = [(prompt, answer[:max(1, most - len(prompt))]) for prompt, answer in [text[:2] for text in answers] + others]
    with torch.no_grad():
        known = log_probabilities(w, texts, c)
    found = {'loss': [], 'norm': [], 'kl': []}
    for step in range(steps):
        optimizer.zero_grad()
        own, mismatched = (log_probabilities(w, texts, c) - known).chunk(2)
        z = {i: max(0, float(sum(mismatched[k] for k in row).detach()) / len(row)) for row in rows for i in row}
        costs = [counts[good] * (1 - torch.sigmoid(beta * (own[i] - z[i]) * (1 if good else -1)))
                 for i, (_, _, good) in enumerate(answers) if i in z]
        mean = sum(costs) / len(costs)
        mean.backward()
        found['loss'].append(float(mean.detach()))
        found['kl'].append(sum(z.values()) / len(z))
        found['norm'].append(torch_reference.clip(w, c['training.max_norm']))
        for group in optimizer.param_groups:
            group['lr'] = torch_reference.learning_rate(step, c)
        optimizer.step()
    return found


def case_kto(packing, ranks=0, changes=None, most=0):
    """One answer a row, or all of them in one; either way with the mismatched answers behind them. most: tokens of an answer
    that are kept; without an answer's first one it is left out, though its completion is still that of another prompt."""
    m, count = model('llama'), 8
    answers = pairs.draw_answers(8, count, m.c['model.vocab_size'], longest=6)
    name = pairs.write_answers(m.folder / 'kto.bin', answers, m.c['model.vocab_size'])
    alone = packing == 'none'
    rows = [[i] for i, (prompt, *_) in enumerate(answers) if not most or len(prompt) < most] if alone else [list(range(count))]
    if most:
        changes = {'training.seq_len': 2 * (most - 1), 'data.excess_length_strategy': 'truncate', 'training.local_batch_size': 1,
                   'training.global_batch_size': len(rows)}
    c, steps, _ = m.train(f'kto-{packing}-{ranks}-{most}', {
        'training.dataset_path': name, 'objective.loss_type': 'kto', 'objective.desirable_weight': 1.5,
        'objective.undesirable_weight': 0.6, 'data.packing': packing, 'training.seq_len': 33 if alone else 256, 'model.max_seq_len': 256,
        'training.local_batch_size': 4 if alone else 1, 'training.global_batch_size': count if alone else 1, 'training.steps': 8,
        'lr_scheduler.total_steps': 8, 'checkpoint.interval': 8, 'optimizer.lr': 4e-3, **(changes or {})}, ranks)
    expected = train_kto(m.weights, answers, len(steps), rows, c, most or 256)
    wrong = job.differ('loss', job.losses(steps), expected['loss'], LOSS_BOUND)
    wrong += job.differ('gradient norm', [step['grad_norm'] for step in steps], expected['norm'], NORM_BOUND)
    wrong += [f'{step["kl"]}, expected {z}' for step, z in zip(steps, expected['kl']) if abs(step['kl'] - z) > REWARD_BOUND]
    chosen = sum(answers[i][2] for row in rows for i in row)
    wrong += [] if max(expected['kl']) > 0.1 and steps[0]['answers']['chosen'] == chosen else [f'{steps[0]}, {expected["kl"]}']
    wrong += [f'{len(rows)} answers are kept, all or none'] if most and not 2 < len(rows) < count else []
    return wrong


def values(w, documents, c):
    """[n] what the head makes of each last token."""
    last = [len(tokens) - 1 for tokens in documents]
    return states(w, documents, c)[1][range(len(last)), last] @ w['score.weight'][0]


def reward_loss(w, documents, numbers, c):
    """RewardTrainer: the loss of a batch of neighbouring documents, and its metrics."""
    chosen, rejected = values(w, documents, c).unflatten(0, (-1, 2)).T
    loss = -log_s(chosen - rejected - torch.tensor(numbers[::2])).mean()
    loss = loss + c['objective.center_rewards_coefficient'] * ((chosen + rejected) ** 2).mean()
    both = torch.cat([chosen, rejected])
    return loss, {'mean_reward': float(both.mean()), 'min_reward': float(both.min()), 'max_reward': float(both.max()), 'margin': float((chosen - rejected).mean()),
                  'accuracy': float((chosen > rejected).double().mean()), 'pairs': len(chosen)}


def regression_loss(w, documents, numbers, c):
    """MSELoss of ForSequenceClassification."""
    found = values(w, documents, c)
    return ((found - torch.tensor(numbers, dtype=torch.float64)) ** 2).mean(), {'texts': len(found)}


def several_loss(w, documents, numbers, c):
    """BCEWithLogitsLoss of ForSequenceClassification."""
    last = [len(tokens) - 1 for tokens in documents]
    logits = states(w, documents, c)[1][range(len(last)), last] @ w['score.weight'].T
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(numbers, dtype=torch.float64)), {'targets': len(last)}


VALUES = {'multi_label': (several_loss, {'model.num_labels': 5}), 'reward': (reward_loss, {'objective.center_rewards_coefficient': 0.05}), 'regression': (regression_loss, {})}


def case_value(name, kind, ranks=0, changes=None):
    """A head with one row, over packed or single texts, of which each step sees all."""
    loss_of, more = VALUES[kind]
    draw, words = random.Random(4), MODELS[name]['model.vocab_size']
    documents = [[draw.randrange(words) for _ in range(draw.randint(1, 12))] for _ in range(16)]
    numbers = [draw.uniform(-1, 1) if kind == 'regression' or i % 2 == 0 else 0 for i in range(16)]
    if kind == 'multi_label':
        numbers = [[float(draw.randrange(2)) if k < 4 else draw.random() for k in range(5)] for _ in range(16)]
    folder = pathlib.Path(f'{kind}-{name}-{ranks}')
    folder.mkdir()
    pairs.write_values(folder / 'values.bin', documents, numbers, words, kind == 'reward')
    c = {**MODELS[name], 'training.dataset_path': '../values.bin', 'objective.name': kind, 'model.num_labels': 1, **more,
         'data.packing': 'none', 'optimizer.lr': 1e-3, 'training.global_batch_size': 8 if kind == 'reward' else 16,
         'training.steps': 6, 'lr_scheduler.total_steps': 6, 'lr_scheduler.warmup_steps': 2, 'checkpoint.interval': 6, **(changes or {})}
    job.train(folder / 'seed', {**c, 'training.steps': 1, 'lr_scheduler.total_steps': 0, 'lr_scheduler.warmup_steps': 0,
                                'checkpoint.create_seed_checkpoint': True}, ranks)
    seed = folder / 'seed/out/checkpoint/step-00000000.h5'
    weights = draw_weights({key: found.shape for key, found in checkpoint.read(seed).items()})
    checkpoint.replace(seed, weights)
    steps = job.train(folder / 'run', {**c, 'checkpoint.initial_load_path': '../' + str(seed.relative_to(folder))}, ranks)
    w = {key: torch.tensor(found, dtype=torch.float64, requires_grad=True) for key, found in weights.items()}
    optimizer, wrong = torch_reference.make_optimizer(w, c), []
    for i, step in enumerate(steps):
        optimizer.zero_grad()
        loss, right = loss_of(w, documents, numbers, c)
        loss.backward()
        wrong += job.differ(f'loss of step {i + 1}', [step['loss']], [float(loss.detach())], LOSS_BOUND)
        wrong += job.differ('norm', [step['grad_norm']], [torch_reference.clip(w, c['training.max_norm'])], NORM_BOUND)
        wrong += [f'step {i + 1}: {key} {step.get(key)}, expected {number}' for key, number in right.items()
                  if key not in step or abs(step[key] - number) > 1e-5 * max(1, abs(number))]
        for group in optimizer.param_groups:
            group['lr'] = torch_reference.learning_rate(i, c)
        optimizer.step()
    found = checkpoint.read(folder / 'run/out/checkpoint/step-00000006.h5')
    return wrong + compare_tensors({key: x - weights[key] for key, x in found.items()},
                                   {key: w[key].detach().numpy() - weights[key] for key in weights}, CHANGE_BOUND)


def case_packed(name, loss, changes=None):
    """Each step is an epoch, so the order of pairs and what else is in their row does not matter."""
    m = model(name)
    c, steps, path = m.train('-'.join(['packed', loss, *(changes or {})]), {
        **PACKED, 'training.global_batch_size': m.rows, 'lr_scheduler.warmup_steps': 1, 'lr_scheduler.total_steps': EPOCHS, **options(loss), **(changes or {})})
    wrong = [] if m.rows < PAIRS else ['nothing was packed']
    wrong += [] if steps[0]['pairs'] == PAIRS else [f'{steps[0]["pairs"]} pairs']
    return wrong + compare(m, [m.pairs] * EPOCHS, loss, c, steps, path)


HYBRID = {'training.local_batch_size': 1, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2,
          'mesh.replicate': 2}

if __name__ == '__main__':
    torch.set_num_threads(1)
    sys.exit(job.run_cases([*((f'llama: {loss}', case_loss, 'llama', loss) for loss in LOSSES),
                            ('gpt2: sigmoid', case_loss, 'gpt2', 'sigmoid'),
                            ('llama: sigmoid with the loss of chosen answers', case_loss, 'llama', 'sigmoid', 0, SFT),
                            *((f'{name}: single answers', case_single, name) for name in MODELS),
                            ('llama: sigmoid, smoothed', case_loss, 'llama', 'sigmoid', 0, {'objective.label_smoothing': 0.2}),
                            *((f'kto, data.packing: {packing}', case_kto, packing) for packing in ('none', 'bfd')),
                            ('kto, answers cut', case_kto, 'none', 0, None, 5),
                            *((f'{name}: another reference', case_reference, name, 'sigmoid') for name in MODELS),
                            ('llama: another reference, adapters', case_reference, 'llama', 'apo_down', 0, ADAPTERS),
                            ('llama: reward', case_value, 'llama', 'reward'),
                            ('gpt2: regression', case_value, 'gpt2', 'regression'),
                            *((f'{name}: several labels', case_value, name, 'multi_label') for name in MODELS),
                            *((('llama: ipo on 2 x 2 ranks', case_loss, 'llama', 'ipo', 4, HYBRID),
                               ('gpt2: orpo on 2 x 2 ranks', case_loss, 'gpt2', 'orpo', 4, HYBRID),
                               ('kto on 2 x 2 ranks', case_kto, 'none', 4, HYBRID),
                               ('llama: another reference on 2 x 2 ranks', case_reference, 'llama', 'ipo', 4, HYBRID),
                               ('gpt2: reward on 2 x 2 ranks', case_value, 'gpt2', 'reward', 4, HYBRID),
                               ('gpt2: several labels on 2 x 2 ranks', case_value, 'gpt2', 'multi_label', 4, HYBRID),
                               ('llama: single answers on 2 x 2 ranks', case_single, 'llama', 4, HYBRID)) if job.can_launch() else ()),
                            *((f'llama: {loss}, adapters', case_loss, 'llama', loss, 0, ADAPTERS) for loss in WAYS),
                            *((f'llama: {loss}, packed', case_packed, 'llama', loss) for loss in WAYS),
                            ('llama: sigmoid, packed, adapters', case_packed, 'llama', 'sigmoid', ADAPTERS),
                            *((f'{name}: sigmoid, packed', case_packed, name, 'sigmoid') for name in MODELS)]))
