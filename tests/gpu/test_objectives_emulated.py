#!/usr/bin/env python3
"""What is learned beside the next word, on emulated GPUs as on the CPU: labels, rewards, numbers, single answers, a
teacher's words; what targets weigh and short sequences; and families whose positions turn neighbours, or whose logits have a cap. Prints TAP.

Only in a build that was configured --with-cuda=emulated.
"""
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys

from trains import BOUND, CPU, as_on_cpu, job, on_cpu, run, tiny
import pairs

WORDS, LABELS = tiny.COMMON['model.vocab_size'], 3
VALUES = {'model.num_labels': 1, 'training.seq_len': 16}


def texts(longest=9):
    draw = random.Random(3)
    return [[draw.randrange(WORDS) for _ in range(draw.randint(1, longest))] for _ in range(60)]


def labelled():
    return pairs.write_documents('labels.bin', [(text, [text[-1] % LABELS]) for text in texts()], WORDS, 1)


def numbered():
    return pairs.write_values('numbers.bin', texts(), [text[-1] / WORDS for text in texts()], WORDS)


def several():
    return pairs.write_values('several.bin', texts(), [[text[-1] % 2, 0.25, float(text[0] % 3 == 0)] for text in texts()], WORDS)


def scored():
    return pairs.write_values('scored.bin', texts(7), [0.1 * (i % 4) for i in range(60)], WORDS, pairs=True)


def answered():
    return pairs.write_answers('answers.bin', pairs.draw_answers(4, 60, WORDS), WORDS)


def own(name):
    """A loss of a plug-in, compiled."""
    top = pathlib.Path(__file__).resolve().parent.parent.parent
    subprocess.run(['cc', '-O1', '-shared', '-fPIC', f'-I{top}/include', '-o', f'{name}.so', top / f'examples/plugins/{name}.c', '-lm'],
                   check=True)
    return {'plugin.files': str(pathlib.Path(f'{name}.so').absolute()), 'objective.plugin': name}


def preferred():
    return pairs.write('pairs.bin', pairs.draw_pairs(1, 90, WORDS), WORDS)


def weighed():
    """The tokens, with weights from 0 to 3."""
    shutil.copy('tokens.bin', 'weighed.bin')
    count = pathlib.Path('weighed.bin').stat().st_size // 2
    pathlib.Path('weighed.bin.weight').write_bytes(struct.pack(f'<{count}e', *(i * 7 % 13 / 4 for i in range(count))))
    return str(pathlib.Path('weighed.bin').absolute())


def taught():
    """The words that a model of the CPU finds likely, in a file."""
    run('teacher', 'llama', CPU)
    job.sherd('eval', '--checkpoint', 'teacher/out', '--data', 'tokens.bin', '--top-k', 7, '-o', 'top.bin', '--training.device=cpu')
    return str(pathlib.Path('top.bin').absolute())


def learns(data, model, mesh, precision, **more):
    return as_on_cpu(model, mesh, precision, {'training.seq_len': 16, **({'training.dataset_path': data()} if data else {}), **more})


def distils(precision, **more):
    more = {'objective.name': 'distillation', 'objective.teacher_path': taught(), 'objective.top_k': 5, 'objective.temperature': 1.7,
            'objective.alpha': 0.8, 'training.mixed_precision_param': precision, **more}
    wrong = as_on_cpu('llama', '1x2', precision, more)
    steps = [job.metrics('cuda'), on_cpu('llama', **more)]
    kl, mass = ([[step['teacher'][key] for step in run] for run in steps] for key in ('kl', 'mass'))
    right = [[step['mean_token_accuracy'] for step in run] for run in steps]
    off = max(abs(a - b) for a, b in zip(*right))
    return (wrong + job.differ('kl', *kl, BOUND[precision]) + job.differ('mass', *mass, 1e-6)
            + ([] if off <= (0 if precision == 'float32' else 0.05) and max(right[1]) > 0 else [f'accuracies: {right}']))


def listed(name):
    """[(words, logarithms)] of each sequence of a teacher's file."""
    data = pathlib.Path(name).read_bytes()
    windows, _, length, k = struct.unpack_from('<QQii', data, 8)
    count, record = length * k, 16 + length * k * 4
    at = [len(data) - windows * record + i * record + 16 for i in range(windows)]
    return [(struct.unpack_from(f'<{count}H', data, i), struct.unpack_from(f'<{count}e', data, i + 2 * count)) for i in at]


def teaches(k, precision):
    """GPUs write what a CPU writes, up to the rounding of logits, which may exchange neighbours; and on any mesh the same."""
    run('teacher', 'llama', CPU, **{'training.mixed_precision_param': precision})
    for name, device, ranks in ('cpu', 'cpu', 0), ('gpu', 'cuda', 0), ('gpus', 'cuda', 3):
        job.sherd('eval', '--checkpoint', 'teacher/out', '--data', 'tokens.bin', '--top-k', k, '-o', f'{name}.top',
                  f'--training.device={device}', f'--training.mixed_precision_param={precision}', ranks=ranks)
    cpu, gpu = listed('cpu.top'), listed('gpu.top')
    wrong = [] if pathlib.Path('gpu.top').read_bytes() == pathlib.Path('gpus.top').read_bytes() else ['3 GPUs write other bytes than one']
    bound, others = {'float32': 2 ** -10, 'bfloat16': 0.05}[precision], 0
    for i, ((words, logs), (found, near)) in enumerate(zip(cpu, gpu)):
        far = [j for j in range(len(words)) if not abs(logs[j] - near[j]) <= bound * max(1, -logs[j])]
        wrong += [f'sequence {i}, place {j}: {near[j]}, not {logs[j]}' for j in far[:1]]
        others += sum(a != b for a, b in zip(words, found))
    most = {'float32': 1e-3, 'bfloat16': 0.05}[precision] * len(cpu) * len(cpu[0][0])
    return wrong + ([] if len(cpu) == len(gpu) and others <= most else [f'{others} words are others, of {len(cpu)} sequences'])


def many_labels():
    """Scores of 257 labels are a CPU's, and GPUs refuse them; those of 256 they write, and they are the CPU's."""
    wrong, most = [], 256
    for labels in (most + 1, most):
        run('labels', 'gpt2', CPU, **{'training.dataset_path': labelled(), 'model.num_labels': labels, 'training.seq_len': 16, 'training.steps': 1})
        words = ('eval', '--checkpoint', 'labels/out', '--data', 'labels.bin', '-o')
        job.sherd(*words, 'cpu.jsonl', '--training.device=cpu')
        try:
            job.sherd(*words, 'gpu.jsonl', '--training.device=cuda')
        except job.Failed as failed:
            refused = f'model.num_labels {most + 1}, and kernels for GPUs list at most {most} logits' in ' '.join(str(failed).split())
            wrong += [f'{labels} labels: {failed}'] * (labels == most or not refused)
            continue
        cpu, gpu = ([x for line in pathlib.Path(f'{name}.jsonl').read_text().splitlines() for x in json.loads(line)['logits']] for name in ('cpu', 'gpu'))
        off = max(abs(a - b) for a, b in zip(cpu, gpu))
        wrong += [f'{labels} labels are not refused'] * (labels > most) + [f'{len(gpu)} scores, {len(cpu)}, {off} off'] * (
            len(cpu) != len(gpu) or len(cpu) % labels or off > BOUND['float32'])
    return wrong


def main():
    job.need_emulated_gpus()
    tiny.write_tokens()
    kto = {'objective.name': 'dpo', 'objective.loss_type': 'kto', 'data.packing': 'bfd'}
    focal = {'objective.name': 'plugin', **own('focal'), 'plugin.numbers': 'focal.gamma=3'}
    tilted = {'objective.name': 'dpo', 'objective.loss_type': 'plugin', **own('tilted_dpo'), 'plugin.numbers': 'tilted_dpo.tilt=0.2'}
    rows = [('labels', labelled, 'gpt2', '1x2', 'float32', {'model.num_labels': LABELS}),
            ('packed labels', labelled, 'llama', '1x1', 'bfloat16', {'model.num_labels': LABELS, 'data.packing': 'bfd'}),
            ('several labels', several, 'gpt2', '1x2', 'float32', {'model.num_labels': LABELS, 'objective.name': 'multi_label'}),
            ('several labels, packed', several, 'llama', '1x1', 'bfloat16',
             {'model.num_labels': LABELS, 'objective.name': 'multi_label', 'data.packing': 'bfd'}),
            ('rewards', scored, 'llama', '1x2', 'float32', {**VALUES, 'objective.name': 'reward'}),
            ('numbers', numbered, 'gpt2', '1x1', 'bfloat16', {**VALUES, 'objective.name': 'regression', 'data.packing': 'bfd'}),
            ('single answers', answered, 'gpt2', '1x2', 'float32', kto),
            ('a loss of one\'s own of targets', None, 'llama', '1x2', 'float32', focal),
            ('a loss of one\'s own of targets', None, 'gpt2', '1x1', 'bfloat16', focal),
            ('a loss of one\'s own of pairs', preferred, 'gpt2', '2x2', 'float32', tilted),
            ('weighed tokens', weighed, 'gpt2', '1x2', 'float32', {'data.token_weight': 'must'}),
            ('weighed tokens and squares', weighed, 'llama', '1x1', 'bfloat16', {'data.token_weight': 'must', 'training.z_loss': 0.05}),
            ('short sequences', None, 'llama', '1x2', 'float32', {'data.length_schedule': '0:4, 1:8'}),
            ('glm4', None, 'llama', '1x2', 'float32', {'model.family': 'glm4', 'model.rotary_dim': 2}),
            ('cohere', None, 'llama', '1x1', 'bfloat16', {'model.family': 'cohere', 'model.tie_word_embeddings': True}),
            ('capped scores', None, 'llama', '1x2', 'float32', {'model.attention_softcap': 0.1}),
            ('capped logits', None, 'gpt2', '1x1', 'bfloat16', {'model.logits_softcap': 1.5, 'model.attention_softcap': 0.1})]
    cases = [(f'{what}, {model} on {mesh} in {precision}', lambda row=row: learns(*row[1:5], **row[5]))
             for row in rows for what, _, model, mesh, precision, _ in [row]]
    cases += [(f'a teacher writes {k} words, in {precision}', teaches, k, precision)
              for k, precision in ((1, 'float32'), (9, 'bfloat16'), (WORDS, 'float32'))]
    cases += [('scores of many labels', many_labels)]
    cases += [('a teacher, in float32', distils, 'float32'), ('a teacher, in bfloat16', distils, 'bfloat16')]
    return job.run_cases(cases)


if __name__ == '__main__':
    sys.exit(main())
