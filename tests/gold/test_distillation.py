#!/usr/bin/env python3
"""Distillation against PyTorch in float64: what a teacher finds likely; losses, norms, gradients of the first step and
the change of weights in eight steps of a student that learns from it. Prints TAP.

The formula is that of axolotl's top-k distillation with kd_normalize_topk: with q the softmax of the teacher's K
log-probabilities divided by T, and p that of the student's logits divided by T, alpha T^2 sum q (log q - log p), and
1 - alpha times the loss of the next token. Or q are the probabilities themselves, without or with the rest of both as one
more word, as TRL's loss_add_tail has it.
"""
import functools
import pathlib
import struct
import sys

import job
job.need_modules('numpy', 'h5py', 'torch')
import numpy
import torch
import checkpoint
import torch_reference
from test_torch import CHANGE_BOUND, DOCUMENTS, GPT2, LLAMA, LOSS_BOUND, MASKED, STEPS, WEIGHED, compare_tensors, \
    draw_heavy, draw_mask, draw_tokens, draw_weights

K = 12
NORM_BOUND = GRADIENT_BOUND = 1e-5  # relative; seen: under 2e-6
HEADER = 56
WHOLE_BOUND = 1e-6  # relative, of the divergence of two distributions of all words
HALF_BOUND = 4e-3  # of log-probabilities of up to 8 in float16, half a unit of the last place
MODELS = {'llama': {**LLAMA, 'model.tie_word_embeddings': False},
          'gpt2': {**GPT2, **DOCUMENTS, **MASKED, **WEIGHED, 'model.tie_word_embeddings': True}}
HYBRID = {'training.local_batch_size': 1, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2,
          'mesh.replicate': 2}


def read(path):
    """The file as src/run/teacher_file.h describes it: (words, log-probabilities), [N,T,K]."""
    data = path.read_bytes()
    magic, windows, words, length, top_k, _ = struct.unpack_from('<8sqqiiq', data)
    width = 4 if words > 65536 else 2
    record = 16 + length * top_k * (width + 2)
    assert magic == b'SHRDTOP1' and len(data) == HEADER + windows * record
    ids, logp = [], []
    for i in range(windows):
        at, n = HEADER + i * record + 16, length * top_k
        ids.append(numpy.frombuffer(data, f'<u{width}', n, at).reshape(length, top_k))
        logp.append(numpy.frombuffer(data, '<f2', n, at + n * width).reshape(length, top_k))
    return numpy.array(ids).astype(numpy.int64), numpy.array(logp).astype(numpy.float64)


class Model:
    """Folders of a teacher and of a student, two sets of random weights, with tokens.bin."""

    def __init__(self, name):
        self.c = MODELS[name]
        self.folder = pathlib.Path(name)
        self.folder.mkdir()
        self.stream, self.mask = draw_tokens(self.c), draw_mask(self.c) if 'data.target_mask' in self.c else None
        self.stream.astype('<u2').tofile(self.folder / 'tokens.bin')
        if self.mask is not None:
            self.mask.tofile(self.folder / 'tokens.bin.mask')
        self.weights = {}
        self.heavy = draw_heavy(self.c) if 'data.token_weight' in self.c else None
        if self.heavy is not None:
            self.heavy.tofile(self.folder / 'tokens.bin.weight')
        for who, seed in (('teacher', 33), ('student', 20)):
            job.train(self.folder / who, {**self.c, 'training.steps': 1, 'lr_scheduler.total_steps': 0,
                                          'lr_scheduler.warmup_steps': 0, 'checkpoint.create_seed_checkpoint': True})
            path = self.seed(who)
            self.weights[who] = draw_weights({key: value.shape for key, value in checkpoint.read(path).items()}, 1, seed)
            checkpoint.replace(path, self.weights[who])
        self.teach('top.bin')
        self.words, self.logp = read(self.folder / 'top.bin')

    def seed(self, who):
        return self.folder / who / 'out/checkpoint/step-00000000.h5'

    def teach(self, path, ranks=0, k=K):
        return job.sherd('eval', '--checkpoint', self.seed('teacher').resolve(), '--data', 'tokens.bin', '--top-k', k, '-o', path,
                         folder=self.folder, ranks=ranks)

    def train(self, folder, changes, ranks=0):
        path = self.folder / folder
        c = {**self.c, 'objective.name': 'distillation', 'objective.teacher_path': '../top.bin', 'objective.top_k': K,
             'checkpoint.initial_load_path': '../student/out/checkpoint/step-00000000.h5', **changes}
        steps = job.train(path, c, ranks)
        return c, steps, path / f'out/checkpoint/step-{steps[-1]["step"]:08}.h5'


@functools.lru_cache(None)
def model(name):
    return Model(name)


def rest(x):
    return 1 - x.sum(-1, keepdim=True)


def loss_of(w, tokens, targets, weights, words, logp, c):
    T, alpha, form = c.get('objective.temperature', 1), c.get('objective.alpha', 1), c.get('objective.kd_form', 'normalized')
    logits = torch_reference.logits_of(w, tokens, c, [])
    own = (logits / T).log_softmax(-1).gather(-1, words)
    q = (logp / T).softmax(-1) if form == 'normalized' else logp.exp()
    if form == 'tail':
        q, own = (torch.cat([x, rest(x)], -1) for x in (q, own.exp()))
        own = own.log()
    kl, mass, right = (q * (q.log() - own)).sum(-1), logp.exp().sum(-1), (logits.argmax(-1) == targets).double()
    soft = T * T * kl
    counts = targets != torch_reference.IGNORED
    hard = torch.nn.functional.cross_entropy(logits[counts], targets[counts], reduction='none')
    squares = c.get('training.z_loss', 0) * torch_reference.weighed_mean(logits[counts].logsumexp(-1).square(), weights[counts])
    told = [float(torch_reference.weighed_mean(x[counts], weights[counts]).detach()) for x in (kl, mass, right)]
    return torch_reference.weighed_mean(alpha * soft[counts] + (1 - alpha) * hard, weights[counts]), squares, told


def reference(m, c):
    """Returns (losses, losses of squares, norms, weights, gradients of the first step, [divergence, mass, accuracy] of the steps)."""
    w = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in m.weights['student'].items()}
    optimizer, k, size = torch_reference.make_optimizer(w, c), c['objective.top_k'], c['training.global_batch_size']
    losses, added, norms, told, first = [], [], [], [], None
    for step in range(c['training.steps']):
        optimizer.zero_grad()
        rows = slice(step * size, (step + 1) * size)
        words, logp = torch.tensor(m.words[rows, :, :k]), torch.tensor(m.logp[rows, :, :k])
        loss, squares, numbers = loss_of(w, *torch_reference.batch(torch.tensor(m.stream, dtype=torch.long), m.mask, step, c, m.heavy), words, logp, c)
        (loss + squares).backward()
        first = first or {name: x.grad.numpy().copy() for name, x in w.items()}
        losses.append(float(loss.detach()))
        added.append(float(squares.detach()))
        told.append(numbers)
        norms.append(torch_reference.clip(w, c['training.max_norm']))
        for group in optimizer.param_groups:
            group['lr'] = torch_reference.learning_rate(step, c)
        optimizer.step()
    return losses, added, norms, {name: x.detach().numpy() for name, x in w.items()}, first, told


def case_teacher(name):
    """The words are the likeliest ones, in order, and the numbers are theirs."""
    m, wrong = model(name), []
    w = {key: torch.tensor(value, dtype=torch.float64) for key, value in m.weights['teacher'].items()}
    stream = torch.tensor(m.stream, dtype=torch.long)
    for i in range(0, len(m.words), 20):
        tokens = stream[None, i * m.c['training.seq_len']:(i + 1) * m.c['training.seq_len']]
        likely = torch_reference.logits_of(w, tokens, m.c, [])[0].log_softmax(-1)
        best, words = likely.topk(K)
        off = float((best - torch.tensor(m.logp[i])).abs().max())
        wrong += [] if off <= HALF_BOUND else [f'sequence {i}: {off:.2g} off']
        # float32 may swap two words only if they are equally likely to it.
        swapped = (likely.gather(-1, torch.tensor(m.words[i])) - best).abs().max()
        wrong += [] if float(swapped) <= 1e-5 else [f'sequence {i}: other words']
    return wrong + ([] if (numpy.diff(m.logp) <= 0).all() else ['not in order'])


def case_student(name, changes, ranks=0):
    m = model(name)
    c, steps, path = m.train('run', changes, ranks)
    losses, added, norms, weights, _, told = reference(m, c)
    found = [(step['teacher']['kl'], step['teacher']['mass'], step['mean_token_accuracy']) for step in steps]
    changed = {name: values - m.weights['student'][name] for name, values in checkpoint.read(path).items()}
    return (job.differ('loss', job.losses(steps), losses, LOSS_BOUND)
            + job.differ('loss of squares', [step.get('head_z_loss', 0) for step in steps], added, LOSS_BOUND)
            + sum((job.differ(what, a, b, LOSS_BOUND) for what, a, b in zip(('kl', 'mass', 'accuracy'), zip(*found), zip(*told))), [])
            + job.differ('gradient norm', [step['grad_norm'] for step in steps], norms, NORM_BOUND)
            + compare_tensors(changed, {name: weights[name] - m.weights['student'][name] for name in weights}, CHANGE_BOUND))


def case_gradients(name, changes):
    m = model(name)
    c, _, path = m.train('gradients', {**changes, 'training.max_norm': 0, 'training.steps': 1})
    found = {key: value / (1 - c['optimizer.beta1']) for key, value in checkpoint.read(path, checkpoint.EXP_AVG).items()}
    return compare_tensors(found, reference(m, c)[4], GRADIENT_BOUND)


def case_whole(name):
    """With all words in the file, what is left out is nothing: PyTorch's KL divergence of two distributions of all words."""
    m = model(name)
    words = m.c['model.vocab_size']
    m.teach('whole.bin', k=words)
    c, steps, _ = m.train('whole', {'objective.teacher_path': '../whole.bin', 'objective.top_k': words, 'training.steps': 1})
    ids, logp = (torch.tensor(x[:c['training.global_batch_size']]) for x in read(m.folder / 'whole.bin'))
    stream = torch.tensor(m.stream, dtype=torch.long)
    wrong = [] if sorted(ids[0, 0].tolist()) == list(range(words)) else ['not all words']
    losses = []
    for teacher in (torch.empty_like(logp).scatter(-1, ids, logp), None):
        w = {who: {key: torch.tensor(value, dtype=torch.float64) for key, value in m.weights[who].items()} for who in m.weights}
        tokens, targets, _ = torch_reference.batch(stream, m.mask, 0, c)
        own, of_model = (torch_reference.logits_of(w[who], tokens, c, []).log_softmax(-1) for who in ('student', 'teacher'))
        teacher = of_model if teacher is None else teacher.log_softmax(-1)
        counts = targets != torch_reference.IGNORED
        losses.append(float(torch.nn.functional.kl_div(own[counts], teacher[counts], reduction='batchmean', log_target=True)))
    return (wrong + job.differ('loss', job.losses(steps), losses[:1], WHOLE_BOUND)
            + job.differ('loss by the logits of the teacher', job.losses(steps), losses[1:], HALF_BOUND))


MIXED = {'objective.temperature': 2.5, 'objective.alpha': 0.7}
FEW = {'objective.top_k': 5, 'objective.alpha': 0.4}

if __name__ == '__main__':
    torch.set_num_threads(1)
    sys.exit(job.run_cases([
        ('llama: what the teacher finds likely', case_teacher, 'llama'),
        ('gpt2, documents, masked: what the teacher finds likely', case_teacher, 'gpt2'),
        ('llama: all words, as the divergence of PyTorch', case_whole, 'llama'),
        ('llama: gradients', case_gradients, 'llama', {}),
        ('llama: gradients, with a temperature and the next token', case_gradients, 'llama', MIXED),
        *((f'llama: gradients, {form}', case_gradients, 'llama', {'objective.kd_form': form, 'objective.alpha': 0.7})
          for form in ('stored', 'tail')),
        *((f'{name}: {form}', case_student, name, {'objective.kd_form': form, 'objective.alpha': 0.6, **more})
          for name, form, more in (('llama', 'stored', {}), ('gpt2', 'tail', {'objective.top_k': 5}))),
        ('llama: the teacher alone', case_student, 'llama', {}),
        ('llama: with a temperature and the next token', case_student, 'llama', MIXED),
        ('gpt2: fewer words than the file has, and the next token', case_student, 'gpt2', FEW),
        ('llama: with squares of lse', case_student, 'llama', {**MIXED, 'training.z_loss': 0.05}),
        *([('llama: 2 x 2 ranks', case_student, 'llama', {**MIXED, **HYBRID}, 4),
           ('gpt2: 2 ranks', case_student, 'gpt2', {**FEW, 'training.local_batch_size': 1}, 2)] if job.can_launch() else [])]))
