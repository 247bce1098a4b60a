#!/usr/bin/env python3
"""The page of `sherd report` from metrics that are made up, so that every figure on it is known. Prints TAP.

The page is read as XML, which it is as well: an element that is not closed or a name that was not escaped ends the test.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

SEQ_LEN = 100
ARENA, RSS = 3 << 20, 5 << 20
# Of the seconds of a step; what is left is other.
SHARES = {'compute': 0.5, 'exposed_comm': 0.25, 'data': 0.125}
work = pathlib.Path('work').absolute()
STUDY = job.TOP / 'jobscripts/scaling-study'


def config(micro_batch, batch, ranks, **more):
    return {'model.name': 'debug', 'training.dataset_path': 'none.bin', 'training.seq_len': SEQ_LEN,
            'training.local_batch_size': micro_batch, 'training.global_batch_size': batch, 'mesh.ranks': ranks, **more}


def step(number, speed, tokens=1000, loss=2.0):
    seconds = tokens / speed
    return {'step': number, 'loss': loss, 'tokens': tokens, 'tokens_per_second': speed, 'arena_bytes': ARENA,
            'peak_rss_bytes': RSS, 'seconds': {'step': seconds, 'checkpoint': 0,
                                               **{name: share * seconds for name, share in SHARES.items()}}}


def start(done, ranks, shard=1):
    return {'event': 'start', 'time': '2030-01-31T12:00:00Z', 'step': done, 'ranks': ranks,
            'mesh': {'replicate': ranks // shard, 'shard': shard}}


def write_run(name, settings, lines, end=''):
    folder = work / name
    folder.mkdir(parents=True)
    (folder / 'config.yaml').write_text(job.yaml(settings))
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines) + end)


def empty():
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()


def page():
    job.sherd('report', work)
    text = (work / 'report.html').read_text()
    return text, ElementTree.fromstring(text.replace('<!DOCTYPE html>', ''))


def words(element):
    return ' '.join(''.join(element.itertext()).split())


def rows(tree, head):
    """Rows of the table whose first row has this cell, as lists of text."""
    for table in tree.iter('table'):
        found = [[words(cell) for cell in row] for row in table.iter('tr')]
        if head in found[0]:
            return found
    return []


def expect(what, found, right):
    return [] if found == right else [f'{what}: {found}, expected {right}']


def ten_steps(speed):
    """The first one warms up, one is slow: neither may count for the speed."""
    return [step(1, speed / 50), *(step(i, speed) for i in range(2, 10)), step(10, speed / 3)]


def case_efficiency():
    """Weak and strong series are found and told apart, and their efficiency is that of the speeds."""
    empty()
    for ranks, speed in (1, 1000), (2, 1800), (10, 7500):
        write_run(f'weak-n{ranks}', config(2, -1, ranks), ten_steps(speed))
    for ranks, speed in (2, 2000), (4, 2500):
        write_run(f'strong-n{ranks}', config(1, 60, ranks), ten_steps(speed))
    write_run('alone', config(2, 8, 2, **{'parallelism.sharding_strategy': 'no_shard'}), ten_steps(500))
    text, tree = page()
    sections = [words(title) for title in tree.iter('h2')]
    found = [row[1:] for row in rows(tree, 'efficiency')[1:]]
    wrong = expect('weak', found, [['1', '2', '1,000', '1,000', '100.0 %'], ['2', '4', '1,800', '900', '90.0 %'],
                                   ['10', '20', '7,500', '750', '75.0 %']])
    second = ElementTree.fromstring('<x>' + text[text.index('<h2>Strong'):text.index('<h2>Loss')] + '</x>')
    found = [row[1:] for row in rows(second, 'efficiency')[1:]]
    wrong += expect('strong', found, [['2', '60', '2,000', '1,000', '100.0 %'], ['4', '60', '2,500', '625', '62.5 %']])
    wrong += expect('sections', sections, ['Runs', 'Weak scaling', 'Strong scaling', 'Loss', 'Where the time goes',
                                           'Memory of a rank', 'Configurations'])
    return wrong + expect('order of the runs', [row[0] for row in rows(tree, 'strategy')[1:]],
                          ['alone', 'strong-n2', 'strong-n4', 'weak-n1', 'weak-n2', 'weak-n10'])


def case_mfu():
    """Tokens per second times FLOPs over what the ranks could do; a run of an older version has no figure."""
    empty()
    write_run('old', config(1, 4, 4), [start(0, 4), *ten_steps(100)])
    _, tree = page()
    wrong = expect('no column', 'MFU' in rows(tree, 'strategy')[0], False)
    write_run('new', config(1, 4, 4), [{**start(0, 4), 'peak_tflops': 0.5, 'flops_per_token_causal': 1e9},
                                       *ten_steps(1500)])
    write_run('older', config(1, 4, 4), [{**start(0, 4), 'peak_tflops': 0.5},
                                         *({**line, 'flops_per_token_causal': 1e9} for line in ten_steps(1500))])
    _, tree = page()
    found = rows(tree, 'strategy')
    at = found[0].index('MFU')
    return wrong + expect('MFU', {row[0]: row[at] for row in found[1:]}, {'old': '–', 'new': '75.0 %', 'older': '75.0 %'})


def case_time():
    """Shares of the time: the stall of a save is told in a line of its own, the last one after the last step."""
    empty()
    lines = [step(1, 10), step(2, 1000), {'step': 2, 'checkpoint': 'x', 'bytes': 1, 'seconds': 9, 'stall_seconds': 0.25},
             step(3, 1000), {'step': 3, 'checkpoint': 'y', 'bytes': 1, 'seconds': 9, 'stall_seconds': 0.25}]
    write_run('a', config(1, 4, 4), lines)
    _, tree = page()
    wrong = expect('time', rows(tree, 'compute')[1][2:], ['40.0 %', '20.0 %', '10.0 %', '20.0 %', '10.0 %', '1.25 s'])
    wrong += expect('memory', rows(tree, 'planned')[1][2:], ['3.0 MiB', '5.0 MiB'])
    widths = [float(rect.get('width')) for rect in list(tree.iter('table'))[1].findall('.//td//rect')]
    return wrong + expect('widths of the bar', widths, [160.0, 80.0, 40.0, 80.0, 40.0])


def case_history():
    """What was given up is gone; the speed is that of the newest ranks; cut-off lines are passed over and told."""
    empty()
    old = [start(0, 2), *(step(i, 100, loss=9.0) for i in range(1, 8)), {'step': 6, 'validation_loss': 8.0}]
    new = [start(4, 4, shard=2), *(step(i, 400 + i, loss=3.0) for i in range(5, 8)),
           {'step': 7, 'validation_loss': 2.5, 'tokens': 1, 'seconds': 1},
           {'event': 'checkpoint_failed', 'time': 'x', 'step': 7, 'failures': 1, 'reason': 'disk'}]
    write_run('resumed', config(1, -1, 0), [*old, *new], '{"step": 8, "lo')
    write_run('torn', config(1, 4, 4), [step(1, 100)], '{"step": 2, "l{"step": 2}\n' + json.dumps(step(3, 100)) + '\n')
    write_run('back', config(1, 4, 4), [step(1, 100), step(2, 100), {'step': 1, 'rollback_from': 2}, step(2, 100, loss=None)])
    text, tree = page()
    found = {row[0]: row[2:] for row in rows(tree, 'strategy')[1:]}
    wrong = expect('resumed', found['resumed'], ['4', '2 × 2', '1', '4', '7', '406', '3.0000', '2.5000'])
    wrong += expect('torn', found['torn'], ['4', '?', '1', '4', '3', '100', '2.0000', '–'])
    wrong += expect('back', found['back'], ['4', '?', '1', '4', '2', '100', '–', '–'])
    notes = [words(note) for note in tree.find('.//div[@class="notes"]').iter('li')]
    wrong += expect('notes', [note.split()[0] for note in notes if 'cut off' in note], ['resumed', 'torn'])
    return wrong + expect('numbers in the drawings', re.findall(r'="[^"]*\b(?:nan|inf)\b[^"]*"', text), [])


def case_text():
    """Names are text, whatever they hold, and nothing is fetched from anywhere."""
    empty()
    name = 'a<b>&"\'</title>'.replace('/', '')
    settings = config(1, 4, 4, **{'job.description': '<script>alert(1)</script> & more'})
    write_run(name, settings, [step(1, 100), step(2, 100)])
    write_run('other', config(1, 4, 0, **{'job.description': ']]>'}), [step(1, 100), step(2, 100)])
    (work / 'empty-folder').mkdir()
    text, tree = page()
    wrong = expect('names', [row[0] for row in rows(tree, 'strategy')[1:]], [name, 'other'])
    wrong += [f'the page has {word}' for word in ('<script', 'src=', 'href=', 'url(', '@import', 'http') if word in text]
    notes = words(tree.find('.//div[@class="notes"]'))
    return wrong + ([] if 'other does not say on how many ranks' in notes else [f'notes: {notes}'])


def refused(status, said, where=work):
    done = subprocess.run([os.environ['SHERD'], 'report', str(where)], capture_output=True, text=True)
    wrong = expect('exit status', done.returncode, status) + expect('lines', done.stderr.count('\n'), 1)
    wrong += [] if said in done.stderr else [f'"{said}" is not in: {done.stderr}']
    return wrong + (['a page was written'] if (work / 'report.html').exists() else [])


def case_refusals():
    """What is no run is refused with its place."""
    empty()
    wrong = refused(3, f'{work}: no run in it or below it') + refused(3, '/nowhere: No such file', '/nowhere')
    write_run('bad', config(1, 4, 4), [step(1, 100)], 'loss 3.2\n')
    wrong += refused(3, f'{work}/bad/metrics.jsonl:2: not a line of metrics')
    (work / 'bad/config.yaml').write_text('training:\n  stepps: 3\n')
    wrong += refused(2, f'{work}/bad/config.yaml:2: ')
    (work / 'bad/config.yaml').unlink()
    return wrong + refused(3, f'{work}/bad: metrics.jsonl without the config.yaml')


def case_absurd():
    """Numbers that no run has neither hang nor break the page."""
    empty()
    values = 0, -1, 1e-320, 1e-300, 1e300, 2**62, -2**62, 'x', None, [], True
    for number, value in enumerate(values, 1):
        lines = [{**start(0, number), 'mesh': {'shard': value}}]
        for i in range(3):
            line = {**step(i, 100), 'tokens_per_second': value, 'loss': value, 'arena_bytes': value}
            line['seconds'] = dict.fromkeys(line['seconds'], value)
            lines += [line, {**line, 'step': value}]
        write_run(f'r{number}', config(1, -1, 0), lines)
    text, tree = page()
    wrong = expect('rows', len(rows(tree, 'strategy')), len(values) + 1)
    return wrong + expect('numbers in the drawings', re.findall(r'="[^"]*\b(?:nan|inf)\b[^"]*"', text), [])


def case_short():
    """A run that has just begun has its row, and a note instead of figures."""
    empty()
    write_run('begun', config(1, 4, 4), [])
    write_run('one', config(1, 8, 8), [step(1, 100)])
    _, tree = page()
    notes = words(tree.find('.//div[@class="notes"]'))
    wrong = [f'notes: {notes}'] if 'begun has done no step yet' not in notes or 'one is too short' not in notes else []
    return wrong + expect('speeds', [row[7] for row in rows(tree, 'strategy')[1:]], ['–', '–'])


def case_failed():
    """A run that ended before its first step says why: itself, its job script, or the log beside it."""
    empty()
    for name in 'by-itself', 'by-script', 'by-both', 'by-slurm', 'waits', 'ran':
        write_run(name, config(1, 4, 4), [step(1, 100), step(2, 100)] if name == 'ran' else [])
    (work / 'by-itself/progress.json').write_text(json.dumps({'exit_status': 3, 'reason': 'open <x>: gone'}))
    (work / 'by-itself.out').write_text('sherd: error: not this one\n')
    for name in 'by-script', 'by-both', 'ran':
        (work / name / 'chain').write_text('chain=7 at=-1 starts=1 stopped=a file cannot be used (exit status 3)\n')
    (work / 'by-both.out').write_text('sherd: rank 3: error: no file\nsrun: error: n2: task 3: Exited\nsherd: stopped: so\n')
    (work / 'by-slurm.out').write_text('srun: error: first\nsrun: error: Node failure on n2\nsherd: queued again\n')
    (work / 'waits/progress.json').write_text(json.dumps({'exit_status': None, 'reason': None}))
    (work / 'waits/chain').write_text('chain=7 at=-1 starts=1 stopped=\n')
    _, tree = page()
    notes = [words(note).split()[0] for note in tree.find('.//div[@class="notes"]').iter('li')]
    wrong = expect('notes', notes, ['waits', 'by-both', 'by-itself', 'by-script', 'by-slurm'])
    found = {row[0]: row[7:] for row in rows(tree, 'strategy')[1:]}
    return wrong + expect('rows', found, {
        'by-itself': ['failed: exit status 3: open <x>: gone'],
        'by-script': ['failed: a file cannot be used (exit status 3)'],
        'by-both': ['failed: a file cannot be used (exit status 3): no file'],
        'by-slurm': ['failed: Node failure on n2'],
        'waits': ['–', '–', '–'], 'ran': ['100', '2.0000', '–']})


def study(*arguments, dry='--dry-run', path=''):
    settings = config(1, -1, 0, **{'lr_scheduler.warmup_steps': 1})
    for key in ('mesh.ranks', 'training.global_batch_size'):
        del settings[key]
    (work / 'c.yaml').write_text(job.yaml(settings))
    return subprocess.run([STUDY, *dry.split(), *arguments, 'c.yaml'], capture_output=True, text=True, cwd=work,
                          env={**os.environ, 'PATH': f'{path}:{os.environ["PATH"]}',
                               'SHERD': os.path.abspath(os.environ['SHERD'])})


def case_study():
    """The matrix, the batch of each point, and what the plan refuses, without a Slurm."""
    empty()
    done = study('--nodes=1,2', '--ranks-per-node=4', '--strategies=full_shard,no_shard', '--micro-batches=1,2', '--steps=9')
    lines = done.stdout.splitlines()
    batches = [re.search(r'global_batch_size=(\d+)', line).group(1) for line in lines[:-1]]
    wrong = expect('batches', batches, ['4', '8', '8', '16'] * 2) + expect('exit status', done.returncode, 0)
    wrong += [] if len(lines) == 9 and ' SHERD_STUDY=scaling sbatch ' in lines[8] and 'afterany' in lines[8] else [done.stdout]
    wrong += expect('points', [re.search(r'job-name=(\S+)', line).group(1) for line in lines[:2]],
                    ['weak-full_shard-b1-n1', 'weak-full_shard-b1-n2'])
    done = study('--nodes=1,3', '--scaling=strong', '--batch=4')
    wrong += expect('strong points', done.stdout.count('strong-full_shard-b1-n'), 3)  # two words of one line, and its log
    wrong += [] if 'strong-full_shard-b1-n3 is left out: training.global_batch_size' in done.stderr else [done.stderr]
    for option in '--nodes=0', '--batch=1,2', '--scaling=both', '--frob', '--training.steps=3':
        done = study(option)
        wrong += expect(option, (done.returncode, done.stdout, done.stderr.count('\n')), (2, '', 1))
    return wrong + (['something was written'] if (work / 'scaling').exists() else [])


def case_announced():
    """A point has its row from when it is submitted: a job that dies at once leaves nothing else."""
    empty()
    (work / 'bin').mkdir()
    (work / 'bin/sbatch').write_text('#!/bin/sh\necho 7\n')
    (work / 'bin/sbatch').chmod(0o755)
    done = study('--nodes=1,2', '--ranks-per-node=2', dry='', path=work / 'bin')
    _, tree = page()
    found = [row[:7] for row in rows(tree, 'strategy')[1:]]
    right = [[f'scaling/weak-full_shard-b1-n{n}', 'full_shard', str(2 * n), '?', '1', str(2 * n), '?'] for n in (1, 2)]
    return expect('rows', found, right) + expect('exit status', done.returncode, 0)


CASES = [
    ('efficiency, weak and strong', case_efficiency),
    ('model FLOPs utilization', case_mfu),
    ('where time and memory go', case_time),
    ('starts, going back, and lines that were cut off', case_history),
    ('names are text, and nothing is fetched', case_text),
    ('refusals', case_refusals),
    ('numbers that no run has', case_absurd),
    ('runs that have just begun', case_short),
    ('runs that have failed before their first step', case_failed),
    ('scaling-study --dry-run', case_study),
    ('scaling-study: each point has a row', case_announced),
]

if __name__ == '__main__':
    sys.exit(job.run_cases(CASES))
