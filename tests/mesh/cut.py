"""What a model that is cut over ranks must have in common with one that is not: shared by the tests of an axis that cuts
sequences and of one that cuts matrices.

Losses, norms, validation and scores are those of one rank to LOSS_BOUND; memory is what the plan says. A checkpoint shows
no degree.
"""
import functools
import json
import pathlib
import random
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import checkpoint
import job
import test_memory
import tiny

STEPS = 3
LOSS_BOUND = 1e-5
COMMON = {'model.n_heads': 4, 'training.global_batch_size': 12, 'training.local_batch_size': 3, 'training.steps': STEPS,
          'lr_scheduler.total_steps': STEPS, 'validation.enable': True, 'validation.freq': STEPS,
          'validation.sequences': 10, 'metrics.log_freq': 1, 'optimizer.eps': 1e-5}  # else what is only rounding moves a weight as far as any other
DOCUMENTS = {'data.document_mask': True, 'data.document_separator': 7}
APART = {'comm.shared_memory': 'off'}
INLINE = {'comm.progress': 'inline'}
FULL = {'activation_checkpoint.mode': 'full'}
SELECTIVE = {'activation_checkpoint.mode': 'selective'}
STATES = {'offload.optimizer': 'nvme', 'offload.nvme_path': '.'}
ONE = {'training.local_batch_size': 1}


def saved(folder, step=STEPS):
    return pathlib.Path(folder) / f'out/checkpoint/step-{step:08}.h5'


def tensors(path):
    return {(state, name): values.tobytes() for state in checkpoint.STATES
            for name, values in checkpoint.read(path, state).items()}


def train(name, changes, ranks=0):
    """Returns losses, norms and the losses of validation; and the metrics of all steps."""
    folder = pathlib.Path(name.replace(', ', '-').replace(' ', '-'))
    steps = job.train(folder, changes, ranks)
    lines = map(json.loads, (folder / 'out/metrics.jsonl').read_text().splitlines())
    numbers = [step[key] for step in steps for key in ('loss', 'grad_norm')]
    numbers += [line['validation_loss'] for line in lines if 'validation_loss' in line]
    shutil.rmtree(folder)
    return numbers, steps


class Cut:
    """An axis, by the key of its degree; models by name, and of which one a checkpoint is for adapters to begin with."""

    def __init__(self, key, kinds, wide):
        self.key, self.kinds, self.wide = key, kinds, wide
        self.tokens = tiny.write_tokens()
        for name in ('base', 'one_rank', 'to_score'):
            setattr(self, name, functools.lru_cache(None)(getattr(self, name)))

    def config(self, changes):
        data = {'training.dataset_path': self.tokens, 'validation.dataset_path': self.tokens}
        start = {'checkpoint.initial_load_path': self.base(changes['model.family'], changes['model.vocab_size'])} if 'lora.rank' in changes else {}
        return {**data, **changes, **start}

    def base(self, family, words):
        folder = f'base-{family}-{words}'
        job.train(folder, self.config({**self.wide, 'model.family': family, 'model.vocab_size': words, 'training.steps': 1}))
        return str(pathlib.Path(folder, 'out').resolve())

    def one_rank(self, kind):
        return train('one ' + kind, self.config(self.kinds[kind]))[0]

    def case_mesh(self, name, kind, ranks, changes):
        changes = self.config({**self.kinds[kind], **changes})
        numbers, steps = train('run ' + name, changes, ranks)
        planned = test_memory.plan({'mesh.ranks_per_node': ranks, **changes}, ranks)[test_memory.ARENA]
        wrong = [f'arena of {steps[-1]["arena_bytes"]} bytes, planned {planned}'] * (steps[-1]['arena_bytes'] != planned)
        return wrong + job.differ('losses and norms', numbers, self.one_rank(kind), LOSS_BOUND)

    def case_moved(self, kind, number, moved):
        """Everything at another place: the same bytes."""
        found = []
        for name, more in ('there', {}), (f'moved-{number}', moved):
            if not saved(name).exists():
                job.train(name, self.config({**self.kinds[kind], self.key: 2, **more}), 4)
            found.append(saved(name).read_bytes())
        return [] if found[0] == found[1] else [f'{moved} changes bits']

    def case_resume(self, kind, large, meshes, more):
        """Each mesh loads what the one before has saved. A matrix is so large that no loss is finite, so a step is skipped."""
        base = self.config({**self.kinds[kind], **more, 'validation.enable': False, 'training.local_batch_size': 1})
        name = f'resume-{large}'
        job.train(name, {**base, self.key: 4}, 4)
        path, step, wrong = saved(name), STEPS, []
        values = checkpoint.read(path)[large]
        values[...] = 3e38
        checkpoint.replace(path, {large: values})
        expected = tensors(path)
        for ranks, degree in meshes:
            step += 1
            folder = job.prepare(f'{name}-{ranks}-{degree}',
                                 {'job.dump_folder': 'out', **base, self.key: degree, 'training.steps': step})
            saved(folder, step - 1).parent.mkdir(parents=True)
            shutil.copy(path, saved(folder, step - 1))
            job.sherd('train', 'c.yaml', ranks=ranks, folder=folder)
            path = saved(folder, step)
            wrong += [f'degree {degree} saves other tensors'] * (tensors(path) != expected)
        return wrong

    def to_score(self, kind):
        """A checkpoint, texts, their scores on one rank, and the line of a token file."""
        longest, name = 15, 'scored ' + kind
        draw = random.Random(3)
        words = lambda n: [draw.randrange(tiny.COMMON['model.vocab_size']) for _ in range(n)]
        lengths = [(1, 1), (longest - 2, 3), (2, longest - 1), (5, 4), (9, 2), (3, 3), (longest, 1)]
        texts = job.write_examples('texts.bin', [(words(a), [words(b), words(1)]) for a, b in lengths])
        job.train(name, self.config({**self.kinds[kind], 'model.max_seq_len': longest, 'training.steps': 1,
                                     'validation.enable': False}))
        return saved(name, 1), texts, job.scores(saved(name, 1), texts, '--batch', 2), self.evaluated(saved(name, 1))

    def evaluated(self, path, *words, ranks=0):
        return job.sherd('eval', '--checkpoint', path, '--data', self.tokens, '--sequences', 7, *words, ranks=ranks).split()

    def case_scores(self, kind, ranks, degree, changes):
        words = [f'--{key}={value}' for key, value in {**changes, self.key: degree}.items()]
        path, texts, scores, line = self.to_score(kind)
        found = job.scores(path, texts, '--batch', 18 if 'training.tile_rows' in changes else 3, *words, ranks=ranks)
        wrong = job.differ('scores', [s for s, _ in found], [s for s, _ in scores], LOSS_BOUND)
        wrong += ['other texts are greedy'] * ([greedy for _, greedy in found] != [greedy for _, greedy in scores])
        again = self.evaluated(path, *words, ranks=ranks)
        wrong += job.differ('loss', [float(again[1])], [float(line[1])], LOSS_BOUND)
        return wrong + [f'{again} for {line}'] * (again[-5:-2] != line[-5:-2])

    def on(self, kind, strategy, ranks, degree, *more):
        """A row of meshes."""
        found = {'parallelism.sharding_strategy': strategy, self.key: degree}
        for changes in more:
            found |= changes
        return kind, ranks, found
