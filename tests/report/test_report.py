#!/usr/bin/env python3
"""The page of `sherd report` from invented metrics, so that every figure on it is known. Prints TAP.

The page is parsed as XML, which it also is: an unclosed element or an unescaped name ends the test.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

SEQ_LEN = 100
STEPS = 10
ARENA, RSS = 3 << 20, 5 << 20
# Shares of the seconds of a step; the rest is other.
SHARES = {'compute': 0.5, 'exposed_comm': 0.25, 'data': 0.125}
work = pathlib.Path('work').absolute()
STUDY = job.TOP / 'jobscripts/scaling-study'


def config(micro_batch, batch, ranks, **more):
    return {'model.name': 'debug', 'training.dataset_path': 'none.bin', 'training.seq_len': SEQ_LEN,
            'training.local_batch_size': micro_batch, 'training.global_batch_size': batch, 'training.steps': STEPS,
            'mesh.ranks': ranks, **more}


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
    """The first step is a warm-up, one is slow: neither may count for the speed."""
    return [step(1, speed / 50), *(step(i, speed) for i in range(2, 10)), step(10, speed / 3)]


def case_efficiency():
    """Weak and strong series are found and told apart, and their efficiency follows from the speeds."""
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
    second = ElementTree.fromstring('<x>' + text[text.index('<h2>Strong'):text.index('<h2>Time to a loss')] + '</x>')
    found = [row[1:] for row in rows(second, 'efficiency')[1:]]
    wrong += expect('strong', found, [['2', '60', '2,000', '1,000', '100.0 %'], ['4', '60', '2,500', '625', '62.5 %']])
    wrong += expect('sections', sections, ['Runs', 'Weak scaling', 'Strong scaling', 'Time to a loss', 'Where the time goes',
                                           'Memory of a rank', 'Configurations'])
    return wrong + expect('order of the runs', [row[0] for row in rows(tree, 'strategy')[1:]],
                          ['alone', 'strong-n2', 'strong-n4', 'weak-n1', 'weak-n2', 'weak-n10'])


def case_mfu():
    """Tokens per second times FLOPs over the peak of the ranks; a run of an older version has no figure."""
    empty()
    write_run('old', config(1, 4, 4), [start(0, 4), *ten_steps(100)])
    _, tree = page()
    wrong = expect('no column', 'MFU' in rows(tree, 'strategy')[0], False)
    write_run('new', config(1, 4, 4), [{**start(0, 4), 'peak_tflops': 0.5, 'flops_per_token_causal': 1e9},
                                       *ten_steps(1500)])
    _, tree = page()
    found = rows(tree, 'strategy')
    at = found[0].index('MFU')
    return wrong + expect('MFU', {row[0]: row[at] for row in found[1:]}, {'old': '–', 'new': '75.0 %'})


def case_time():
    """Shares of the time: the stall of a save has its own line, the last one after the last step."""
    empty()
    lines = [step(1, 10), step(2, 1000), {'step': 2, 'checkpoint': 'x', 'bytes': 1, 'seconds': 9, 'stall_seconds': 0.25},
             step(3, 1000), {'step': 3, 'checkpoint': 'y', 'bytes': 1, 'seconds': 9, 'stall_seconds': 0.25}]
    write_run('a', config(1, 4, 4), lines)
    _, tree = page()
    wrong = expect('time', rows(tree, 'compute')[1][2:], ['40.0 %', '20.0 %', '10.0 %', '20.0 %', '10.0 %', '1.25 s'])
    wrong += expect('memory', rows(tree, 'planned')[1][2:], ['3.0 MiB', '5.0 MiB'])
    widths = [float(rect.get('width')) for rect in list(tree.iter('table'))[1].findall('.//td//rect')]
    return wrong + expect('widths of the bar', widths, [160.0, 80.0, 40.0, 80.0, 40.0])


def case_offload():
    """The wait for a scratch file has a column if a run has such waits."""
    empty()
    waited = {**step(2, 1000), 'offload_read_bytes': 5, 'offload_written_bytes': 5}
    waited['seconds'] = {**waited['seconds'], 'exposed_offload': 0.0625}
    write_run('a', config(1, 4, 4), [step(1, 10), waited])
    write_run('b', config(1, 4, 4), [step(1, 10), step(2, 1000)])
    _, tree = page()
    head, *found = rows(tree, 'compute')
    wrong = expect('columns', head[2:8], ['compute', 'communication', 'offload', 'data', 'checkpoint', 'other'])
    return wrong + expect('shares', [row[2:8] for row in found],
                          [['50.0 %', '25.0 %', '6.2 %', '12.5 %', '0.0 %', '6.2 %'],
                           ['50.0 %', '25.0 %', '0.0 %', '12.5 %', '0.0 %', '12.5 %']])


def case_history():
    """Discarded steps are gone; the speed is that of the newest ranks; truncated lines are skipped and reported."""
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
    wrong = expect('resumed', found['resumed'], ['4', '2 × 2', '4', '7 of 10', '1 m 18 s', '406', '3.0000', '2.5000', '12.2',
                                                   '2.5000 (step 7)'])
    wrong += expect('torn', found['torn'], ['4', '?', '4', '3 of 10', '20 s', '100', '2.0000', '–', '–', '–'])
    wrong += expect('back', found['back'], ['4', '?', '4', '2 of 10', '30 s', '100', '–', '–', '–', '–'])
    notes = [words(note) for note in tree.find('.//div[@class="notes"]').iter('li')]
    wrong += expect('notes', [note.split()[0] for note in notes if 'cut off' in note], ['resumed', 'torn'])
    return wrong + expect('numbers in the drawings', re.findall(r'="[^"]*\b(?:nan|inf)\b[^"]*"', text), [])


def sentences(tree, name):
    return [words(item) for item in tree.find(f'.//ul[@class="{name}"]').iter('li')]


def case_identity():
    """One line for each run at the top: what was trained, on what, how far it came, and when."""
    empty()
    begin = {**start(0, 2), 'device': 'cpu', 'version': '1.1', 'parameters': 1234567, 'hosts': ['n1', 'n2', 'n3']}
    done = [{**step(i, 500), 'tokens_seen': 1000 * i} for i in range(1, 11)]
    saved = {'step': 10, 'checkpoint': 'x', 'bytes': 1, 'seconds': 9, 'stall_seconds': 4}
    write_run('whole', config(1, 2, 2), [begin, *done, saved, {**start(10, 2), 'time': '2031-01-01T00:00:00Z'}])
    write_run('half', config(1, 2, 2), [begin, *done[:6]])
    (work / 'half/progress.json').write_text(json.dumps({'exit_status': 75, 'reason': 'received <SIGTERM>'}))
    (work / 'whole/progress.json').write_text(json.dumps({'exit_status': 0, 'finished': True}))
    write_run('other', config(1, 4, 4), [])
    (work / 'other/progress.json').write_text(json.dumps({'exit_status': 3, 'reason': 'gone'}))
    _, tree = page()
    return expect('lines', sentences(tree, 'runs'), [
        'half: debug (1.23 M parameters), 6.00 K tokens in 12 s; stopped at step 6 of 10: exit status 75: received <SIGTERM>; '
        'started 2030-01-31 12:00 UTC on n1 and 2 more, cpu, Sherd 1.1; data none.bin.',
        'other: debug; failed before its first step; data none.bin.',
        'whole: debug (1.23 M parameters), 10.00 K tokens in 24 s; finished; started 2030-01-31 12:00 UTC on n1 and 2 more, cpu, Sherd 1.1; data none.bin.'])


def case_restarts():
    """What restarts cost a job over all of its starts, and where the time of the newest start went."""
    phases = 'launch', 'mpi', 'plan', 'mesh', 'memory', 'data', 'load', 'first_step'
    def begun(at, resumed, seconds, first, last):
        lines = [step(i, 500) for i in range(first, last + 1)]
        lines[0]['start_seconds'] = dict(zip(phases, seconds))
        return [{**start(first - 1, 2), 'time': f'2030-01-31T12:{at}Z', 'resumed_from': resumed}, *lines]
    empty()
    lines = begun('00:00', None, [1, 2, 0.5, 0.25, 0.25, 1, 1, 2], 1, 5) + begun('00:20', 'near checkpoint', [0.5, 1.5, 0, 1, 0, 0, 0.25, 2], 5, 7)
    # Done anew: a start that did nothing, and one from a file.
    lines += [{**start(7, 2), 'time': '2030-01-31T12:00:40Z'}] + begun('01:00', 'step-4.h5', [1, 1, 1, 1, 1, 1, 1, 2], 5, 10)
    write_run('a', config(1, 2, 2), lines[:10])
    said, = sentences(page()[1], 'runs')
    phases = '5.2 s from the launch to the first step: launch 0.5, MPI 1.5, plan 0.0, mesh 1.0, memory 0.0, data 0.0, load 0.2, first step 2.0'
    wrong = expect('once', said.split('; ')[2:5], ['1 restart, from memory, repeated 1 step', 'goodput 43.8 %', phases])  # 14 of 6 + 26 s
    write_run('b', config(1, 2, 2), lines)
    said = sentences(page()[1], 'runs')[1].split('; ')[2:4]
    return wrong + expect('twice', said, ['2 restarts, 1 of them from memory, repeated 4 steps', 'goodput 25.6 %'])  # 20 of 6 + 72 s


def figures_of(tree):
    """{name: (value, note)} of the large figures at the top."""
    found = tree.find('.//dl[@class="figures"]')
    return {} if found is None else {words(div.find('dt')): (words(div.find('.//b')), words(div.find('.//small'))) for div in found}


def validations(**losses):
    return [{'step': int(at[1:]), 'validation_loss': loss, 'tokens': 1, 'seconds': 0} for at, loss in losses.items()]


def case_figures():
    """Four figures come first: of one run its end, of several the best and the sums."""
    empty()
    lines = [{**step(i, 500, loss=6.0 - i / 2), 'tokens_seen': 1000 * i} for i in range(1, 11)]
    write_run('a', config(1, 4, 4), [*lines, *validations(s3=4.0, s6=2.0, s10=2.5)])
    text, tree = page()
    wrong = expect('one run', figures_of(tree), {
        'loss': ('1.0000', 'from 5.5000 at step 1'), 'validation': ('2.5000', '+0.5000 since step 6; perplexity 12.2; best 2.0000 at step 6'),
        'tokens': ('10.00 K', '500 per second'), 'time': ('20 s', 'at step 10 of 10')})
    wrong += [] if text.index('class="figures"') < text.index('<figure') < text.index('<table') else ['figures, curves, tables: another order']
    write_run('b', config(1, 4, 4), [{**line, 'loss': 3.0} for line in lines])
    write_run('c', config(1, 4, 4), [])
    _, tree = page()
    wrong += expect('three runs', figures_of(tree), {
        'lowest loss': ('1.0000', 'a, step 10'), 'lowest validation': ('2.0000', 'a, step 6'), 'tokens': ('20.00 K', 'all runs'),
        'time': ('40 s', 'all runs; 2 of 3 are done')})
    empty()
    write_run('c', config(1, 4, 4), [])
    return wrong + expect('no step', figures_of(page()[1]), {})


def case_state():
    """A run is finished if its progress.json says so: the last step may be done, and lost with its process."""
    wrong = []
    here = process(dead())
    for record, state in ((dict(exit_status=0, finished=True), 'finished'),
                          (dict(exit_status=None, finished=False, starts_without_checkpoint=1, **here),
                           f'stopped at step 10 of 10: process {here["pid"]} on {here["host"]} is gone'),
                          (dict(exit_status=None, finished=False, starts_without_checkpoint=1, **process(os.getpid())),
                           'running, at step 10 of 10'),
                          (dict(exit_status=5, finished=False, reason='no room in /some/where/else: full'),
                           'stopped at step 10 of 10: exit status 5: no room in …/else: full'),
                          (None, 'at step 10 of 10')):
        empty()
        write_run('a', config(1, 4, 4), ten_steps(1000))
        if record:
            (work / 'a/progress.json').write_text(json.dumps(record))
        wrong += expect('state', figures_of(page()[1])['time'][1], state)
    return wrong


def case_names():
    """A run has the last part of its path as name, or as many as tell it from others; no path of the machine is shown."""
    empty()
    for name in 'x/outputs', 'y/outputs', 'z/same/outputs', 'w/same/outputs', 'plain':
        write_run(name, config(1, 4, 4, **{'training.dataset_path': f'{work}/data/t.bin', 'data.shuffle': name == 'plain',
                                           'job.dump_folder': f'{work}/{name}'}), ten_steps(1000))
    text, tree = page()
    found = sorted(row[0] for row in rows(tree, 'strategy')[1:])
    wrong = expect('names', found, ['plain', 'w/same/outputs', 'x/outputs', 'y/outputs', 'z/same/outputs'])
    wrong += expect('title', words(tree.find('.//h1')), 'work')
    wrong += ['an absolute path is shown'] if str(work.parent) in text else []
    wrong += [] if '…/t.bin' in text else ['the file of tokens is not named']
    subprocess.run([os.path.abspath(os.environ['SHERD']), 'report', '.'], cwd=work / 'plain', check=True, capture_output=True)
    text = (work / 'plain/report.html').read_text()
    return wrong + expect('title of "."', re.search('<h1>(.*)</h1>', text)[1], 'plain')


def heights(drawing, number=0):
    return [float(y) for y in re.findall(r'[ML][\d.]+ ([\d.]+)', lines_of(drawing)[number].get('d'))]


def case_cut():
    """The first steps do not flatten the rest of a curve: the axis ends at a quantile, and the figure says so."""
    empty()
    lines = [step(i, 100, loss=12.0 if i <= 2 else 3.0 - i / 200) for i in range(1, 201)]
    write_run('a', config(1, 4, 4, **{'training.steps': 200}), lines)
    _, tree = page()
    drawing = curve(tree, 'Loss against')
    ticks = [float(words(text)) for text in drawing.iter('text') if text.get('class') == 'tick' and text.get('text-anchor') == 'end']
    wrong = expect('highest tick', max(ticks), 3.0)
    said = [words(caption) for caption in tree.iter('figcaption') if 'quantile' in words(caption)]
    wrong += expect('said', said, ['Loss against steps The axis ends at the 98 % quantile; the highest value is 12.'] * 2)
    wrong += [] if min(heights(drawing)) == 24 else [f'the line ends at {min(heights(drawing))}, not at the top']
    empty()
    write_run('a', config(1, 4, 4, **{'training.steps': 200}), [{**line, 'loss': 3.0 - line['step'] / 200} for line in lines])
    return wrong + expect('nothing cut', [words(c) for c in page()[1].iter('figcaption') if 'quantile' in words(c)], [])


def case_starts():
    """A thin line at each start, with its mesh; a start whose steps were discarded has none. Among several runs it has
    the colour of its run."""
    empty()
    lines = [start(0, 4, shard=2), *(step(i, 100) for i in range(1, 5)), start(4, 8), step(5, 100), start(2, 2, shard=2),
             *(step(i, 100) for i in range(3, 11))]
    write_run('a', config(1, -1, 0), lines)
    _, tree = page()
    drawing = curve(tree, 'Loss against')
    found = [words(path) for path in drawing.iter('path') if path.get('class') == 'start']
    wrong = expect('starts', found, ['a: started on 4 ranks after step 0', 'a: started on 2 ranks after step 2'])
    labels = [words(text) for text in drawing.iter('text')]
    wrong += [f'no label {label}: {labels}' for label in ('2 × 2 ranks', '1 × 2 ranks') if label not in labels]
    write_run('0', config(1, -1, 0), lines[:5])
    found = [(words(path), path.get('class')) for path in curve(page()[1], 'Loss against').iter('path')
             if path.get('class').startswith('start')]
    return wrong + expect('among several', found, [('a: started on 2 ranks after step 2', 'start k1')])


def case_median():
    """Speed is the median of 20 steps, so that every other step being slow is no comb, with a band around it."""
    empty()
    write_run('a', config(1, 4, 4, **{'training.steps': 200}), [step(i, 1000 if i % 2 else 500) for i in range(1, 201)])
    drawing = curve(page()[1], 'Speed against')
    wrong = expect('points', len(heights(drawing)), 10) + expect('heights', len(set(heights(drawing)[1:])), 1)
    return wrong + expect('bands', len([path for path in drawing.iter('path') if path.get('class') == 'band f0']), 1)


def case_doubt():
    """An efficiency far above 100 % is doubted in words."""
    empty()
    write_run('n1', config(2, -1, 1), [step(1, 10), *(step(i, 1000 if i % 2 else 100) for i in range(2, 22))])
    write_run('n2', config(2, -1, 2), [step(i, 4000) for i in range(1, 11)])
    series = 'full_shard; 2 sequences per step and rank on 2 ranks has an efficiency of '
    wrong = expect('disturbed', flags(), [f'{series}364 %, which is doubtful: the base run was disturbed: the step times of n1 vary by a factor of 10.'])
    empty()
    for ranks, speed in (1, 1000), (2, 4000):
        write_run(f'n{ranks}', config(2, -1, ranks), [step(i, speed) for i in range(1, 11)])
    return wrong + expect('slow', flags(), [f'{series}200 %, which is doubtful: the base run was slow throughout; repeat n1.'])


def case_sample():
    """A text that the model wrote is on the page if it is asked for."""
    empty()
    write_run('a', config(1, 4, 4), ten_steps(1000))
    (work / 'sample.txt').write_text('Once <upon>\n  a\ttime, /in/a/land\x07')
    job.sherd('report', '--sample', work / 'sample.txt', work)
    tree = ElementTree.fromstring((work / 'report.html').read_text().replace('<!DOCTYPE html>', ''))
    found = [''.join(pre.itertext()) for pre in tree.iter('pre') if pre.get('class') == 'sample']
    wrong = expect('sample', found, ['Once <upon>\n  a\ttime, /in/a/land?'])
    wrong += expect('sections', [words(title) for title in tree.iter('h2')][0], 'Sample')
    _, tree = page()
    wrong += expect('not asked for', 'Sample' in [words(title) for title in tree.iter('h2')], False)
    (work / 'large').write_bytes(b'x' * 70000)
    for words_, status in (['--sample', work / 'none'], 3), (['--sample', work / 'large'], 3), (['--sample', work / 'sample.txt', '--mllog'], 2):
        done = subprocess.run([os.environ['SHERD'], 'report', *words_, work / 'a'], capture_output=True, text=True)
        wrong += expect(words_, (done.returncode, done.stderr.count('\n')), (status, 1))
    return wrong


def case_best():
    """The best validation and its step, which need not be the last; perplexity comes from the last."""
    empty()
    losses = {3: 2.0, 6: 1.0, 8: 1.0, 9: None, 10: 1.5}
    write_run('a', config(1, 4, 4), [*ten_steps(1000), *({'step': at, 'validation_loss': loss, 'tokens': 1, 'seconds': 2}
                                                         for at, loss in losses.items())])
    _, tree = page()
    return expect('row', rows(tree, 'strategy')[1][5:], ['10', '1 m 11 s', '1,000', '2.0000', '1.5000', '4.48', '1.0000 (step 6)'])


def curve(tree, title):
    """The drawing with this title, and the widths, dashes and marks in it."""
    for figure in tree.iter('figure'):
        if words(figure.find('figcaption')).startswith(title):
            return figure.find('svg')
    return None


def lines_of(drawing):
    return [path for path in drawing.iter('path') if path.get('class').split()[0] == 'l']


def marks_of(drawing):
    return [words(path) for path in drawing.iter('path') if path.get('class').split()[0] == 'm']


REWARDS = 'Rewards of chosen answers', 'Margins of rewards'
TEACHER = 'Divergence from the teacher', 'What the teacher stored', 'Accuracy of tokens'
OF_A_HEAD = 'Margins of rewards', 'Mean rewards', 'Smallest rewards', 'Largest rewards'


def case_curves():
    """Losses, gradient norms, speeds, learning rates and rewards against steps; events of a step are marked there."""
    empty()
    lines = [{**step(i, 100 * i), 'grad_norm': 1.0 + i, 'lr': 1e-4 * i, 'loss_scale': 1024.0 + i,
              'pairs': 8, 'rewards': {'chosen': 0.1 * i, 'rejected': -0.1 * i, 'margins': 0.2 * i, 'accuracies': 1},
              'teacher': {'kl': 0.1 * i, 'mass': 0.05 * i}, 'mean_token_accuracy': 0.02 * i,
              'expert_load': {'max': 1 + 0.1 * i}, 'expert_waves': {'max': 3, 'mean': 1 + 0.2 * i}} for i in range(1, 11)]
    lines[4]['skipped'] = 'loss is not finite'
    stalls = [{'step': 6, 'checkpoint': 'x', 'bytes': 1, 'seconds': 9, 'stall_seconds': 7.5},
              {'step': 7, 'checkpoint': 'x', 'bytes': 1, 'seconds': 9, 'stall_seconds': 0.5}]
    write_run('a', config(1, 4, 4), [*lines, *stalls, {'step': 10, 'validation_loss': 2.0, 'tokens': 1, 'seconds': 1}])
    _, tree = page()
    found = {title: curve(tree, title) for title in ('Loss against', 'Gradient norm', 'Speed', 'Learning rate', 'Loss scale',
                                                'Load of experts', 'Waves of rows', *REWARDS, *TEACHER)}
    if None in found.values():
        return [f'missing: {found}']
    wrong = expect('marks', [marks_of(drawing) for drawing in found.values()],
                   [['step 10: validation loss 2.0000'], ['step 5: update skipped'], ['step 6: paused 7.5 s to save'], [],
                    ['step 5: update skipped'], [], [], *[[]] * len(REWARDS + TEACHER)])
    heights = {title: [float(y) for y in re.findall(r'[ML][\d.]+ ([\d.]+)', lines_of(drawing)[0].get('d'))]
               for title, drawing in found.items()}
    wrong += expect('points', [len(points) for points in heights.values()], [10, 10, 9, *[10] * (len(found) - 3)])
    wrong += [f'{title} does not rise: {points}' for title, points in heights.items()
              if title != 'Loss against' and points != sorted(points, reverse=True)]
    shutil.rmtree(work / 'a')
    write_run('head', config(1, 4, 4), [{**line, 'pairs': 8, 'mean_reward': 0.1, 'min_reward': -1, 'max_reward': 2, 'margin': 0.3,
                                         'accuracy': 1} for line in ten_steps(100)])
    _, tree = page()
    wrong += expect('of a head', [curve(tree, title) is not None for title in (*OF_A_HEAD, REWARDS[0], TEACHER[0])], [True] * 4 + [False] * 2)
    shutil.rmtree(work / 'head')
    write_run('old', config(1, 4, 4), ten_steps(100))
    _, tree = page()
    return wrong + expect('of an older version', [curve(tree, title) is not None for title in found],
                          [True, False, True, *[False] * (len(found) - 3)])


def case_same_curves():
    """Curves that coincide are reported with their largest difference, and the lower one is drawn wider."""
    empty()
    loss = {i: 4.0 - 0.1 * i for i in range(1, 11)}
    for name, more in ('r1', {}), ('r2', {}), ('r3', {7: 1e-4, 8: 2e-5}), ('r4', {2: 0.5}), ('r5', {3: 1e-5}):
        write_run(name, config(1, 4, 4), [step(i, 100, loss=round(loss[i] + more.get(i, 0), 6)) for i in loss])
    _, tree = page()
    wrong = expect('said', sentences(tree, 'said'), ['r2 has the same losses as r1 at every step.',
                                                     'r3, r5 lie on r1; largest difference: 0.0001 at step 7 of r3.'])
    found = [path.get('class').split()[1] for path in lines_of(curve(tree, 'Loss'))]
    wrong += expect('widths', found, ['w2', 'w2', 'w1', 'k3', 'k4'])
    dashes = [path.get('stroke-dasharray') for path in lines_of(curve(tree, 'Loss'))]
    return wrong + ([] if dashes[0] is None and len(set(dashes)) == 5 else [f'dashes: {dashes}'])


def case_narrow():
    """On a narrow screen a row is a list of values with their names, and text in drawings is larger."""
    empty()
    write_run('a', config(1, 4, 4), ten_steps(1000))
    text, tree = page()
    found = [[cell.get('data-of') for cell in table.findall('.//td')] for table in tree.iter('table')]
    wrong = expect('names', found[1:], [[None, None, 'compute', 'communication', 'data', 'checkpoint', 'other', 'a step'],
                                        [None, None, 'planned', 'used']])
    wrong += expect('without names', found[0].count(None), 1)
    sizes = {where: re.search(r'svg text\{font-size:(\d+)px', text[text.index(where):]).group(1)
             for where in ('<style>', '(max-width:600px)')}
    return wrong + expect('sizes', sizes, {'<style>': '12', '(max-width:600px)': '19'})


def case_many():
    """Hundreds of runs (2,048 in the long tests): a page of a few MB, with long legends folded."""
    most = 2048 if os.environ.get('SHERD_LONG') else 256
    empty()
    write_run('r0', config(1, -1, 1), ten_steps(1000))
    text = (work / 'r0/metrics.jsonl').read_text()
    settings = (work / 'r0/config.yaml').read_text()
    for ranks in range(2, most + 1):
        folder = work / f'r{ranks}'
        folder.mkdir()
        (folder / 'config.yaml').write_text(settings.replace('ranks: 1\n', f'ranks: {ranks}\n'))
        (folder / 'metrics.jsonl').write_text(text)
    text, tree = page()
    wrong = expect('runs', len(rows(tree, 'strategy')), most + 1)
    folded = [words(item) for item in tree.iter('summary')]
    wrong += expect('folded', folded, ['Which line is which run', 'About the runs', *[f'The table: {most} rows'] * 5,
                                       'What all runs have in common'])
    return wrong + ([] if len(text) < 8 << 20 else [f'{len(text)} bytes'])


def case_text():
    """Names are text, whatever they contain, and the page fetches nothing from anywhere."""
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
    """Input that is not a run is refused, and the message says where it is."""
    empty()
    wrong = refused(3, f'{work}: no run in it or below it') + refused(3, '/nowhere: No such file', '/nowhere')
    write_run('bad', config(1, 4, 4), [step(1, 100)], 'loss 3.2\n')
    wrong += refused(3, f'{work}/bad/metrics.jsonl:2: not a line of metrics')
    (work / 'bad/config.yaml').write_text('training:\n  stepps: 3\n')
    wrong += refused(2, f'{work}/bad/config.yaml:2: ')
    (work / 'bad/config.yaml').unlink()
    return wrong + refused(3, f'{work}/bad: metrics.jsonl without the config.yaml')


def case_absurd():
    """Impossible numbers neither hang nor break the page."""
    empty()
    values = 0, -1, 1e-320, 1e-300, 1e300, 2**62, -2**62, 'x', None, [], True
    wrong = []
    for number, value in enumerate(values, 1):
        lines = [{**start(0, number), 'mesh': {'shard': value}}]
        for i in range(3):
            line = {**step(i, 100), 'tokens_per_second': value, 'loss': value, 'arena_bytes': value}
            line['seconds'] = dict.fromkeys(line['seconds'], value)
            lines += [line, {**line, 'step': value}]
        write_run(f'r{number}', config(1, -1, 0), lines)
        if value in (2**62, 1e300):
            lines += [{'step': 7, 'validation_loss': 1.0, 'seconds': 1e29}, {**step(8, 1), 'seconds': {'step': 1e29}}]
            (work / f'r{number}/metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
        job.sherd('report', '--mllog', '-o', work / 'mllog.txt', work / f'r{number}')
        found = [json.loads(line.removeprefix(':::MLLOG ')) for line in (work / 'mllog.txt').read_text().splitlines()]
        wrong += [f'{line}' for line in found if abs(line['time_ms']) > 1e15 or
                  0 < line['metadata'].get('step', 0) and line['metadata']['samples_count'] < line['metadata']['step']]
    text, tree = page()
    wrong += expect('rows', len(rows(tree, 'strategy')), len(values) + 1)
    return wrong + expect('numbers in the drawings', re.findall(r'="[^"]*\b(?:nan|inf)\b[^"]*"', text), [])


def case_short():
    """A run that has just started has its row, and a note instead of figures."""
    empty()
    write_run('begun', config(1, 4, 4), [])
    write_run('one', config(1, 8, 8), [step(1, 100)])
    _, tree = page()
    notes = words(tree.find('.//div[@class="notes"]'))
    wrong = [f'notes: {notes}'] if 'begun has done no step yet' not in notes or 'one is too short' not in notes else []
    return wrong + expect('speeds', [row[7] for row in rows(tree, 'strategy')[1:]], ['–', '–'])


def case_failed():
    """If a run ended before its first step, the page says why: from the run, its job script, or the log next to it."""
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
    found = {row[0]: row[6:] for row in rows(tree, 'strategy')[1:]}
    return wrong + expect('rows', found, {
        'by-itself': ['failed: exit status 3: open <x>: gone'],
        'by-script': ['failed: a file cannot be used (exit status 3)'],
        'by-both': ['failed: a file cannot be used (exit status 3): no file'],
        'by-slurm': ['failed: Node failure on n2'],
        'waits': ['–'] * 3, 'ran': ['20 s', '100', '2.0000']})


def prediction(ranks, speed, **more):
    """A prediction as `sherd plan --json` writes it: 0.6 s of products, and 0.1 s of each other part."""
    def part(alone, slowed=0.0, exposed=0.0):
        return {'alone': alone, 'slowed': slowed, 'exposed': exposed}

    return {'model': 'debug', 'ranks': ranks, 'tokens_per_second': speed, 'mfu_causal': 0.5, 'fits': True,
            'step': {'seconds': 1.0, 'spread': 0.03, 'host': 0.02,
                     'split': {'products': part(0.6, 0.05), 'attention': part(0.1, 0.02), 'other': part(0.1, 0.03),
                               'all_gather': part(0.2, 0, 0.04), 'reduce_scatter': part(0.1, 0, 0.01), 'all_reduce': part(0)}},
            'failures': {'seconds_between_failures': 0, 'goodput': 1.0}, 'limits': [],
            'machine': {'name': 'm', 'figures': {'node.price_per_device_hour': {'value': 0.0, 'from': 'preset'}}}, **more}


def write_point(name, ranks, speed, guess, lines=None, **more):
    """A predicted run; speed None: nothing has been measured yet."""
    write_run(name, config(2, -1, ranks), lines or (ten_steps(speed) if speed else []))
    (work / name / 'predicted.json').write_text(json.dumps(prediction(ranks, guess, **more)))


def case_predicted():
    """Predictions next to measurements: speeds, efficiencies, the parts of a step, what limits it, cost and goodput."""
    empty()
    limits = [{'part': 'latency', 'gain': 0.5, 'remedy': 'x'}, {'part': 'network', 'gain': 0.25, 'remedy': 'y'}]
    price = {'name': 'm', 'figures': {'node.price_per_device_hour': {'value': 3.6, 'from': 'file'}}}
    write_point('n1', 1, 1000, 1250)
    write_point('n2', 2, 1800, 2000, limits=limits, machine=price, failures={'seconds_between_failures': 9, 'goodput': 0.5})
    write_point('n4', 4, None, 4000, fits=False)
    _, tree = page()
    found = [row[1:] for row in rows(tree, 'predicted tokens/s')[1:]]
    wrong = expect('scaling', found, [['1', '2', '1,000', '1,000', '100.0 %', '1,250', '100.0 %', '80.0 %'],
                                      ['2', '4', '1,800', '900', '90.0 %', '2,000', '80.0 %', '90.0 %'],
                                      ['4', '8', '–', '–', '–', '4,000', '80.0 %', '–']])
    found = rows(tree, 'parts of a step')
    # 2 ranks x 3.6 / 3600 s x 10^9 / 2,000 tokens/s, of which half is progress.
    wrong += expect('parts', [[row[0], *row[2:]] for row in found[1:]], [
        ['n1', '1 s', '1.22 s', '80.0 %', '50.0 %', '–', '–', '–', '–', '–'],
        ['n2', '1 s', '0.679 s', '90.0 %', '50.0 %', 'latency (50 %)', 'network (25 %)', '50.0 %', '2000', '2222'],
        ["n4 (does not fit the machine's memory)", '1 s', '–', '–', '50.0 %', '–', '–', '–', '–', '–']])
    bars = [svg for svg in tree.iter('svg') if svg.get('aria-label') == 'seconds of a step']
    found = [words(rect) for rect in bars[2].iter('rect')]
    wrong += expect('predicted parts', found, ['products 0.6 s', 'attention 0.1 s', 'other operations 0.1 s', 'slowed 0.1 s',
                                               'exposed 0.05 s', 'host and spread 0.05 s'])
    wrong += expect('measured parts', [words(rect).split()[0] for rect in bars[0].iter('rect')][6:],
                    ['compute', 'exposed', 'data', 'checkpoint', 'rest'])
    guesses = [path for path in curve(tree, 'Tokens per second against').iter('path') if path.get('class') == 'guess']
    wrong += expect('predicted lines', len(guesses), 2)
    (work / 'n1/predicted.json').write_text('{"ranks": 1}')
    (work / 'report.html').unlink()
    return wrong + refused(3, f'{work}/n1/predicted.json: not a prediction')


def case_ticks():
    """Numbers of ranks are labelled unabridged if there is room for them."""
    empty()
    for ranks in (8192, 10000, 16384):
        write_point(f'n{ranks}', ranks, None, 1000 * ranks)
    _, tree = page()
    drawing = curve(tree, 'Efficiency')
    found = [words(text) for text in drawing.iter('text') if text.get('class') == 'tick' and '%' not in words(text)]
    return expect('ticks', found, ['8192', '10000', '16384'])


def case_equal():
    """Strategies at equal ranks and batch; other runs are not compared."""
    empty()
    for strategy, factor in ('full_shard', 1.0), ('hybrid_shard', 1.1), ('no_shard', 0.5):
        for ranks in (1, 2) if strategy != 'no_shard' else (2, 4):
            write_run(f'{strategy}-{ranks}', config(2, -1, ranks, **{'parallelism.sharding_strategy': strategy}),
                      ten_steps(1000 * ranks * factor))
    for ranks in 1, 2:
        write_run(f'longer-{ranks}', config(2, -1, ranks, **{'training.seq_len': 50}), ten_steps(1000 * ranks))
    _, tree = page()
    found = [(row[0].split(',')[0].split(';')[0], *row[1:]) for row in rows(tree, 'difference')[1:]]
    return expect('rows', found, [('full_shard', '1', '2', '1,000', '+0.0 %'), ('hybrid_shard', '1', '2', '1,100', '+10.0 %'),
                                  ('full_shard', '2', '4', '2,000', '+0.0 %'), ('hybrid_shard', '2', '4', '2,200', '+10.0 %'),
                                  ('no_shard', '2', '4', '1,000', '-50.0 %')])


def case_reach():
    """The time to the lowest loss that all runs have reached; the validation loss, if all have one."""
    empty()
    for name, ranks, speed, last in ('fast', 4, 1000, 1.0), ('slow', 1, 250, 2.0):
        write_run(name, config(1, 4, ranks), [step(i, speed, loss=last + 10 - i) for i in range(1, 11)])
    _, tree = page()
    found = rows(tree, 'rank-hours')
    wrong = expect('training', found, [['run', 'ranks', 'time to loss 2.0000', 'rank-hours'], ['fast', '4', '9 s', '0.01'],
                                       ['slow', '1', '40 s', '0.0111']])
    for name, losses in ('fast', (5, 3, 4)), ('slow', (6, 4, 2)):
        with open(work / name / 'metrics.jsonl', 'a') as more:
            more.write(''.join(json.dumps({'step': at, 'validation_loss': loss, 'tokens': 1, 'seconds': 0.5}) + '\n'
                               for at, loss in zip((2, 4, 10), losses)))
    _, tree = page()
    found = rows(tree, 'rank-hours')
    wrong += expect('validation', [row[2] for row in found], ['time to loss 3.0000', '5 s', '42 s'])
    drawn = lines_of(curve(tree, 'Loss against time'))
    shutil.rmtree(work / 'slow')
    _, tree = page()
    return wrong + expect('curves', len(drawn), 2) + expect('one run', rows(tree, 'rank-hours'), [])


def flags(*words):
    job.sherd('report', work, *words)
    tree = ElementTree.fromstring((work / 'report.html').read_text().replace('<!DOCTYPE html>', ''))
    return sentences(tree, 'flags') if tree.find('.//ul[@class="flags"]') is not None else []


def paced(speed, rank):
    """Steps whose pace was gathered, each with its slowest rank."""
    return [{**step(i, speed), 'rank_seconds': {'min': 1, 'median': 1.0, 'max': 1.3, 'slowest_rank': rank(i),
                                                'slowest_node': f'node{rank(i)}'}} for i in range(1, 11)]


def case_flags():
    """Each flag is a sentence, and appears only when it should."""
    empty()
    write_point('n1', 1, 1000, 1000)
    write_point('n2', 2, 1960, 2000)
    write_point('n4', 4, None, 4000, lines=paced(3400, lambda i: 3))
    series = 'full_shard; 2 sequences per step and rank'
    wrong = expect('behind', flags(), [
        f'{series} on 4 ranks is 15 % slower than predicted, the other points are within 5 %; the slowest is rank 3 on node3.',
        'n4: rank 3 on node3 is always last, by more than a tenth.'])
    write_run('s2', config(2, 8, 2), ten_steps(2000))
    (work / 's2/predicted.json').write_text(json.dumps(prediction(2, 2000)))
    wrong += expect('once, in weak and in strong scaling', len(flags()), 2)
    shutil.rmtree(work / 's2')
    write_point('n8', 8, 4000, 8000)
    wrong += expect('the prediction is wrong', flags(), ['n4: rank 3 on node3 is always last, by more than a tenth.'])
    empty()
    write_run('n1', config(2, -1, 1), ten_steps(1000))
    write_point('n2', 2, 1500, 2000)
    wrong += expect('nothing else was predicted', flags(), [])
    empty()
    for name, speed in ('r1', 1000), ('r2', 1040), ('r3', 1060):
        write_run(f'n1-{name}', config(2, -1, 1), ten_steps(speed))
    write_run('n2', config(2, -1, 2), paced(1800, lambda i: i % 2))
    wrong += expect('repeats', flags(), [f'{series} on 1 rank varies by 6 % over 3 repeats.'])
    _, tree = page()
    wrong += expect('row', rows(tree, 'least to most (repeats)')[1][1:], ['1', '2', '1,040', '1,040', '100.0 %', '1,000 to 1,060 (3)'])
    spreads = [path for path in curve(tree, 'Tokens per second against').iter('path') if 'spread' in path.get('class')]
    return wrong + expect('bars of repeats', len(spreads), 1)


def gpu(**more):
    return {'told': 4, 'held': 2, 'held_by': ['power', 'heat'], 'clock_mhz': 1200.0, 'highest_clock_mhz': 1980.0, 'celsius': 81.0,
            'slowest_rank': 3, 'slowest_node': 'n<1>', 'limit_watts': 500.0, 'default_limit_watts': 700.0, **more}


def held(*lines):
    empty()
    write_run('n', config(2, -1, 4), [{**step(i, 1000), **({'gpu': line} if line is not None else {})}
                                      for i, line in enumerate(lines, 1)])
    return flags()


def case_gpus():
    """Throttled clocks explain more than any network; data that are missing are not mentioned."""
    free = gpu(held=0, held_by=[], clock_mhz=1900.0, limit_watts=700.0)
    wrong = expect('free', held(*[free] * 10), [])
    wrong += expect('held', held(None, gpu(), free, gpu(clock_mhz=900.0, slowest_rank=1, limit_watts=700.0), free), [
        'n: GPU clocks were throttled in 50 % of the readings by the power limit and heat; the lowest was 900 of 1980 MHz, '
        'of rank 1 on n<1>; the hottest GPU reached 81 \u00b0C.',
        "n: a GPU's power limit is 500 W, below its default of 700 W, which lowers its clock."])
    small = dict(limit_watts=350.0, default_limit_watts=350.0)
    wrong += expect('GPUs of two kinds, none capped', held({**free, **small}, free), [])
    wrong += expect('GPUs of two kinds, one capped', held({**free, **small}, {**free, 'limit_watts': 400.0}), [
        "n: a GPU's power limit is 400 W, below its default of 700 W, which lowers its clock."])
    wrong += expect('rarely', held(*[free] * 10, gpu(limit_watts=690.0)), [])
    wrong += expect('a tenth', len(held(*[free] * 9, gpu(limit_watts=690.0))), 1)
    return wrong + expect('little is told', held({'told': 1, 'held': 1, 'held_by': ['brake', 'new', 3]}), [
        "n: GPU clocks were throttled in 100 % of the readings by the node's power supply."])


def crowded(ranks, threads, cores, hosts):
    """What stands out in a run whose nodes have these values."""
    empty()
    write_run('n', config(2, -1, ranks), [{**start(0, ranks), 'threads': threads, 'cores': cores,
                                           'hosts': [f'h{i}' for i in range(hosts)]}, *ten_steps(1000)])
    return flags()


def case_alike():
    """A remark that holds for many runs appears once; remarks that differ for each run are folded beyond some
    number."""
    empty()
    for number in range(5):
        write_run(f'n{number}', config(2, -1, 1), [{**step(i, 1000), 'gpu': gpu(held=0)} for i in range(1, 5)])
    wrong = expect('alike', flags(), ["n0, n1, n2 and 2 more: a GPU's power limit is 500 W, below its default of 700 W, which lowers its clock."])
    for number in range(30):
        write_run(f'm{number}', config(2, -1, 1), [{**step(i, 1000), 'gpu': gpu(held=0, limit_watts=300.0 + number)} for i in range(1, 5)])
    _, tree = page()
    lists = [len(list(found.iter('li'))) for found in tree.iter('ul') if found.get('class') == 'flags']
    return wrong + expect('folded', (lists, [words(s) for s in tree.iter('summary')][:2]), ([24, 7], ['More', 'About the runs']))


def case_crowded():
    """More ranks x threads on a node than it has cores; hosts count, and a line of an older version says nothing."""
    told = ': more threads than cores on a node: {} take turns on {}.'
    wrong = expect('4 ranks on 2 cores', crowded(4, 1, 2, 1), ['n' + told.format('4 threads of 4 ranks', '2 cores')])
    wrong += expect('1 rank', crowded(1, 2, 1, 1), ['n' + told.format('2 threads of 1 rank', '1 core')])
    wrong += expect('5 ranks, 2 nodes', crowded(5, 2, 5, 2), ['n' + told.format('6 threads of 3 ranks', '5 cores')])
    for ranks, threads, cores, hosts in ((4, 1, 4, 1), (8, 2, 8, 2), (4, 1, None, 1), (4, None, 2, 1), (4, 1, 2, 0)):
        wrong += expect(f'{ranks} x {threads} on {hosts} x {cores}', crowded(ranks, threads, cores, hosts), [])
    return wrong


def case_hostile():
    """Predictions and studies with any content: a page, or one line that names the file."""
    empty()
    values = 0, -1, 1e-320, 1e300, 2**62, 'x', None, [], {}, True, '<script>'
    for number, value in enumerate(values, 1):
        lines = [{**start(0, number), 'hosts': value, 'device': value, 'version': value, 'parameters': value},
                 {**start(0, number), 'hosts': ['h'], 'threads': value, 'cores': 1},
                 {**step(1, 100), 'rank_seconds': value},
                 {**step(2, 100), 'rank_seconds': {'median': value, 'max': value, 'slowest_rank': value, 'slowest_node': value}},
                 {**step(3, 100), 'gpu': value},
                 {**step(4, 100), 'gpu': {name: value for name in gpu()}},
                 {**step(5, 100), 'gpu': gpu(clock_mhz=value, celsius=value, limit_watts=value, held_by=[value])}]
        write_point(f'r{number}', number, None, value, lines=lines, limits=[{'part': value, 'gain': value}, value],
                    machine={'name': value, 'figures': value}, failures={'seconds_between_failures': value, 'goodput': value},
                    mfu_causal=value, step={'seconds': value, 'spread': value, 'split': {'products': value}})
    for text in ('', 'study:', 'study:\n  warm_up: 99999999999999999999\n  name: "', 'study:\n  name: <script>\n', '\0\xff' * 99,
                 'points:\n  warm_up: 5\n'):
        (work / 'study.yaml').write_bytes(text.encode('latin-1'))
        text, _ = page()
    wrong = expect('numbers in the drawings', re.findall(r'="[^"]*\b(?:nan|inf)\b[^"]*"', text), [])
    wrong += ['a script'] if '<script' in text else []
    (work / 'report.html').unlink()
    for text in '', '{', '[]', '3', '{"tokens_per_second"':
        (work / 'r1/predicted.json').write_text(text)
        wrong += refused(3, f'{work}/r1/predicted.json: not a prediction')
    (work / 'r1/predicted.json').unlink()
    os.mkfifo(work / 'r1/predicted.json')
    wrong += refused(3, f'{work}/r1/predicted.json')
    (work / 'r1/predicted.json').unlink()
    (work / 'study.yaml').unlink()
    (work / 'study.yaml').mkdir()
    return wrong + refused(3, f'{work}/study.yaml')


def case_against():
    """Slower than an older study, beyond the spread of both; the configuration identifies equal work, not the names."""
    global work
    new, old = work, work.parent / 'older'
    work = old
    empty()
    for name, ranks, speed in ('a', 1, 1000), ('b', 1, 1020), ('c', 2, 2000), ('d', 4, 4000):
        write_run(name, config(2, -1, ranks), ten_steps(speed))
    work = new
    empty()
    for name, ranks, speed in ('a', 1, 1000), ('b', 1, 1010), ('n2', 2, 1800), ('n4', 4, 3990):
        write_run(name, config(2, -1, ranks), ten_steps(speed))
    found = flags('--against', str(old))
    wrong = expect('against', found, ['full_shard; 2 sequences per step and rank on 2 ranks is 10 % slower than in '
                                      'older, beyond the spread of both.'])
    wrong += expect('without', flags(), [])
    (work / 'report.html').unlink()
    done = subprocess.run([os.environ['SHERD'], 'report', '--against', '/nowhere', str(work)], capture_output=True, text=True)
    return wrong + expect('no older one', (done.returncode, '/nowhere' in done.stderr), (3, True))


def case_warm_up():
    """study.yaml: this many steps of each start are not measured, and the description of the study is at the top."""
    empty()
    write_run('n1', config(1, 4, 4), [step(i, 100 if i <= 3 else 1000) for i in range(1, 6)])
    _, tree = page()
    wrong = expect('without', rows(tree, 'strategy')[1][7], '550')
    (work / 'study.yaml').write_text('study:\n  name: "a <study>"\n  machine: m\n  warm_up: 3\n  submitted: 2030-01-31\npoints:\n'
                                     '  - {name: "x", warm_up: 1}\n')
    _, tree = page()
    wrong += expect('with', rows(tree, 'strategy')[1][7], '1,000')
    paragraphs = [words(p) for p in tree.iter('p')]
    return wrong + ([] if 'Study a <study> on m, submitted 2030-01-31.' in paragraphs else [f'{paragraphs[:4]}'])


def case_mllog():
    """A run in MLPerf's format: times are the start plus the elapsed time, values are those of the run."""
    empty()
    lines = [start(0, 2), *(step(i, 500, loss=5.0 - i) for i in range(1, 4)), {'step': 3, 'validation_loss': 2.5, 'tokens': 1,
                                                                              'seconds': 1.5}]
    write_run('a', config(1, 8, 2, **{'training.steps': 4}), lines)
    job.sherd('report', '--mllog', work / 'a')
    text = (work / 'a/mllog.txt').read_text()
    golden = pathlib.Path(__file__).resolve().parent / 'mllog.txt'
    if os.environ.get('SHERD_RENEW'):
        golden.write_text(text)
    wrong = [] if text == golden.read_text() else ['not as in mllog.txt:', *text.splitlines()]
    wrong += [f'no line: {line}' for line in text.splitlines() if not line.startswith(':::MLLOG {')]
    found = [json.loads(line.removeprefix(':::MLLOG ')) for line in text.splitlines()]
    zero = 1896091200000  # 2030-01-31T12:00:00Z
    times = {(line['key'], line['metadata'].get('step')): line['time_ms'] - zero for line in found}
    wrong += expect('times', [times[key] for key in (('run_start', None), ('train_loss', 1), ('train_loss', 3), ('eval_start', 3),
                                                     ('eval_accuracy', 3), ('run_stop', None))], [0, 2000, 6000, 6000, 7500, 7500])
    wrong += expect('ascending', [line['time_ms'] for line in found], sorted(line['time_ms'] for line in found))
    wrong += expect('end', found[-1]['metadata'], {'status': 'aborted'})
    write_run('b', config(1, 8, 2), ten_steps(100))
    job.sherd('report', '--mllog', '-o', work / 'b.txt', work / 'b')
    wrong += expect('end', '"status": "success"' in (work / 'b.txt').read_text().splitlines()[-1], True)
    wrong += [] if not (work / 'b/mllog.txt').exists() and not (work / 'a/report.html').exists() else ['written elsewhere']
    for words in (['--mllog', work], ['--mllog', '--follow', work / 'a']):
        done = subprocess.run([os.environ['SHERD'], 'report', *words], capture_output=True, text=True)
        wrong += expect(words[1], (done.returncode, done.stderr.count('\n')), (2, 1))
    return wrong


REFRESH = '<meta http-equiv="refresh" content="10"/>'


def wait_for(what, done):
    end = time.monotonic() + job.SECONDS
    while not done():
        if time.monotonic() > end:
            raise job.Failed(f'waited in vain for {what}')
        time.sleep(0.1)


def case_follow():
    """The page is written again while runs continue, and reloads itself until they are finished or it is
    interrupted."""
    empty()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and so would its children
    write_run('a', config(1, 4, 4), ten_steps(1000)[:3])
    path = work / 'report.html'
    follow = [os.environ['SHERD'], 'report', '--follow', str(work)]
    running = subprocess.Popen(follow, stderr=subprocess.PIPE, text=True)
    wait_for('the first page', path.exists)
    wrong = [] if REFRESH in path.read_text() and '3 of 10' in path.read_text() else ['the first page does not reload itself']
    with open(work / 'a/metrics.jsonl', 'a') as more:
        more.write(''.join(json.dumps(line) + '\n' for line in ten_steps(1000)[3:]))
    _, said = running.communicate(timeout=job.SECONDS)
    wrong += expect('exit status', running.returncode, 0) + expect('lines', said.count('\n'), 1)
    wrong += [] if REFRESH not in path.read_text() and '3 of 10' not in path.read_text() else ['the last page is not the last']
    write_run('b', config(1, 4, 4), ten_steps(1000)[:3])
    path.unlink()
    running = subprocess.Popen(follow, stderr=subprocess.PIPE, text=True)
    wait_for('a page', path.exists)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=job.SECONDS)
    wrong += expect('exit status after Ctrl-C', running.returncode, 0)
    job.sherd('report', '-o', work / 'once.html', work)
    return wrong + expect('pages that reload', [REFRESH in (work / name).read_text() for name in ('report.html', 'once.html')],
                          [False, False])


def write_record(name, status, reason='', **process):
    """progress.json as a run writes it; its process is on another machine unless one is given."""
    record = {'steps': 10, 'step': 3, 'starts_without_checkpoint': 1, 'exit_status': status, 'reason': reason,
              'host': 'elsewhere', 'pid': 1, 'pid_space': 1, **process}
    (work / name / 'progress.json').write_text(json.dumps(record) + '\n')


def begin_run(name, record=None, chain=None, age=0, seconds=1):
    """Three of ten steps, with a record (status, reason, process), a job script's line, and files of a given age."""
    lines = [{**line, 'seconds': {**line['seconds'], 'step': seconds}} for line in ten_steps(1000)[:3]]
    write_run(name, config(1, 4, 4), lines)
    if record:
        write_record(name, record[0], record[1], **record[2])
    if chain is not None:
        (work / name / 'chain').write_text(f'chain=7 at=3 starts=1 stopped={chain}\n')
    for path in (work / name).iterdir():
        os.utime(path, (time.time() - age,) * 2)


def process(pid):
    return {'host': socket.gethostname(), 'pid': pid, 'pid_space': os.stat('/proc/self/ns/pid').st_ino}


def dead():
    child = subprocess.Popen(['true'])
    child.wait()
    return child.pid


def follow_until(done):
    running = subprocess.Popen([os.environ['SHERD'], 'report', '--follow', str(work)], stderr=subprocess.PIPE, text=True)
    wait_for('a page', (work / 'report.html').exists)
    if not done:
        running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=job.SECONDS)
    return running.returncode, said


def case_follow_over():
    """A run that will do no more steps is not waited for, and the last line says why; a run that may continue is waited
    for."""
    empty()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    write_run('done', config(1, 4, 4), ten_steps(1000))
    begin_run('failed', (6, 'loss is NaN', {}))
    begin_run('given-up', (5, 'a rank was lost', {}), chain='2 starts saved nothing')
    begin_run('killed', (None, '', process(dead())))
    begin_run('silent', (None, '', {}), age=3660)
    status, said = follow_until(done=True)
    wrong = expect('exit status', status, 0)
    wrong += expect('lines', [line.split('no longer followed ')[1] for line in said.splitlines()],
                    ['at step 3 of 10: exit status 6: loss is NaN', 'at step 3 of 10: 2 starts saved nothing',
                     f'at step 3 of 10: process {json.loads((work / "killed/progress.json").read_text())["pid"]} on '
                     f'{socket.gethostname()} is gone', 'at step 3 of 10: nothing written for 1 h 1 m'])
    wrong += expect('the last page reloads', REFRESH in (work / 'report.html').read_text(), False)
    waiting = {'alive': dict(record=(None, '', process(os.getpid()))), 'elsewhere': dict(record=(None, '', {}), age=600),
               'begun': {}, 'slow': dict(record=(None, '', {}), age=3600, seconds=400),
               'stopped to start again': dict(record=(75, 'SIGTERM', {}), chain='', age=3600)}
    for name, how in waiting.items():
        empty()
        begin_run(name, **how)
        _, said = follow_until(done=False)
        wrong += expect(f'{name} is followed', 'not followed' in said, False)
    return wrong


def study(*arguments, dry='--dry-run', path=''):
    settings = config(1, -1, 0, **{'lr_scheduler.warmup_steps': 1})
    for key in ('mesh.ranks', 'training.global_batch_size'):
        del settings[key]
    (work / 'c.yaml').write_text(job.yaml(settings))
    return subprocess.run([STUDY, *dry.split(), *arguments, 'c.yaml'], capture_output=True, text=True, cwd=work,
                          env={**os.environ, 'PATH': f'{path}:{os.environ["PATH"]}',
                               'SHERD': os.path.abspath(os.environ['SHERD'])})


def case_study():
    """The matrix, the batch of each point, and the points that the plan refuses, without Slurm."""
    empty()
    done = study('--nodes=1,2', '--ranks-per-node=4', '--strategies=full_shard,no_shard', '--micro-batches=1,2', '--steps=9')
    lines = done.stdout.splitlines()
    points = [line.split()[1].rstrip(':') for line in lines if line.startswith('# ')]
    batches = [re.search(r'global_batch_size=(\d+)', line).group(1) for line in lines if line.startswith('# ')]
    wrong = expect('batches', batches, ['4', '8', '8', '16'] * 2) + expect('exit status', done.returncode, 0)
    wrong += expect('points', points[:2], ['weak-full_shard-b1-n1', 'weak-full_shard-b1-n2'])
    wrong += [] if ' SHERD_STUDY=scaling sbatch ' in lines[-1] and 'afterany' in lines[-1] else [done.stdout]
    arrays = [' '.join(re.findall(r'--(?:array|nodes|ntasks-per-node)=\S+', line)) for line in lines[8:-1]]
    wrong += expect('arrays', sorted(arrays), [f'--array=1-4 --nodes={n} --ntasks-per-node=4' for n in (1, 2)])
    done = study('--nodes=1,3', '--scaling=strong', '--batch=4', '--repeats=2')
    wrong += expect('strong points', re.findall(r'# (\S+):', done.stdout), ['strong-full_shard-b1-n1-r1', 'strong-full_shard-b1-n1-r2'])
    wrong += [] if 'strong-full_shard-b1-n3 is left out: training.global_batch_size' in done.stderr else [done.stderr]
    done = study('--nodes=4', '--strategies=hybrid_shard:2')
    wrong += expect('shards', re.findall(r'# (\S+):|--mesh.shard=(\d+)', done.stdout), [('weak-hybrid_shard2-b1-n4', ''), ('', '2')])
    for option in ('--nodes=0', '--batch=1,2', '--scaling=both', '--frob', '--training.steps=3', '--paper', '--repeats=0',
                   '--warm-up=50', '--machine='):
        done = study(option)
        wrong += expect(option, (done.returncode, done.stdout, done.stderr.count('\n')), (2, '', 1))
    done = study('--nodes=1', '--machine=h100-0')
    wrong += expect('no such machine', (done.returncode, 'weak-full_shard-b1-n1 is left out: h100-0' in done.stderr), (2, True))
    return wrong + (['something was written'] if (work / 'scaling').exists() else [])


def case_announced():
    """A point has its row from its submission on: a job that dies immediately leaves nothing else."""
    empty()
    (work / 'bin').mkdir()
    (work / 'bin/sbatch').write_text('#!/bin/sh\necho 7\n')
    (work / 'bin/sbatch').chmod(0o755)
    done = study('--nodes=1,2', '--ranks-per-node=2', dry='', path=work / 'bin')
    _, tree = page()
    found = [row[:6] for row in rows(tree, 'strategy')[1:]]
    right = [[f'weak-full_shard-b1-n{n}', 'full_shard', str(2 * n), '?', str(2 * n), '?'] for n in (1, 2)]
    return expect('rows', found, right) + expect('exit status', done.returncode, 0)


def case_repeats():
    """study.yaml has every point with its job, arguments and prediction; arrays are in a different order each time."""
    orders, wrong = set(), []
    for _ in range(3):
        empty()
        (work / 'bin').mkdir()
        (work / 'bin/sbatch').write_text('#!/bin/sh\necho 7\n')
        (work / 'bin/sbatch').chmod(0o755)
        done = study('--nodes=1,2', '--micro-batches=1,2', '--repeats=3', '--warm-up=4', '--machine=h100-80x1-ndr400', dry='', path=work / 'bin')
        orders.add((work / 'scaling/points-n1').read_text())
        if len(orders) > 1:
            break
    wrong = expect('exit status', done.returncode, 0) + ([done.stderr] if done.returncode else [])
    wrong += expect('orders differ', len(orders), 2)
    text = (work / 'scaling/study.yaml').read_text()
    for line in 'machine: "h100-80x1-ndr400"', 'warm_up: 4', 'repeats: 3', 'steps: 50', 'scaling: weak':
        wrong += [] if f'  {line}\n' in text else [f'no {line}: {text}']
    names = (work / 'scaling/points-n1').read_text().split()
    listed = dict(re.findall(r'- {name: (\S+), nodes: 1, .*job: "7_(\d+)"', text))
    wrong += expect('jobs', listed, {name: str(task) for task, name in enumerate(names, 1)})
    wrong += expect('names', sorted(names), [f'weak-full_shard-b{b}-n1-r{r}' for b in (1, 2) for r in (1, 2, 3)])
    folder = work / 'scaling/weak-full_shard-b2-n1-r3'
    told = json.loads((folder / 'predicted.json').read_text())['tokens_per_second']
    found = re.search(r'name: weak-full_shard-b2-n1-r3, .*repeat: 3, .*predicted_tokens_per_second: ([\d.e+]+), arguments: (\[.*\])}', text)
    wrong += [] if abs(float(found[1]) - told) < 1e-6 * told else [f'predicted {found[1]}, {told}']
    return wrong + expect('arguments', json.loads(found[2]), (folder / 'arguments').read_text().splitlines())


def case_later():
    """A second call for the same folder adds its points and its machine to the first's, whose jobs may still wait."""
    empty()
    (work / 'bin').mkdir()
    (work / 'bin/sbatch').write_text('#!/bin/sh\necho 7\n')
    (work / 'bin/sbatch').chmod(0o755)
    (work / 'a.yaml').write_text('device: {kind: h100-80}\n')
    (work / 'b.yaml').write_text('device: {kind: a100-40}\n')
    calls = [study('--nodes=1', f'--machine={name}', f'--scaling={scaling}', '--batch=2', dry='', path=work / 'bin')
             for name, scaling in (('a.yaml', 'weak'), ('b.yaml', 'strong'), ('b.yaml', 'strong'))]
    wrong = [call.stderr for call in calls if call.returncode]
    text = (work / 'scaling/study.yaml').read_text()
    wrong += expect('points', re.findall(r'- {name: (\S+), .* machine: "(\S+)", ', text),
                    [('weak-full_shard-b1-n1', 'a.yaml'), ('strong-full_shard-b1-n1', 'b.yaml')])
    wrong += expect('machines', re.findall(r'^  machine: (.*)$', text, re.M), ['"a.yaml, b.yaml"'])
    wrong += expect('lists', [(work / f'scaling/points-n1{end}').read_text() for end in ('', '-2', '-3')],
                    ['weak-full_shard-b1-n1\n', *['strong-full_shard-b1-n1\n'] * 2])
    wrong += expect('machines as they were', [(work / f'scaling/machine-{name}.yaml').read_text() for name in 'ab'],
                    [(work / f'{name}.yaml').read_text() for name in 'ab'])
    done = study('--nodes=1', '--warm-up=2', dry='', path=work / 'bin')
    return wrong + expect('another warm-up', (done.returncode, 'study.yaml has --warm-up=1, not 2' in done.stderr), (2, True))


def case_paper():
    """A study that runs nothing: predictions, and the page."""
    empty()
    done = study('--nodes=1,2', '--paper', '--machine=h100-80x8-ndr400', '--ranks-per-node=8', '--folder=scaling/', dry='')
    tree = ElementTree.parse(work / 'scaling/report.html') if done.returncode == 0 else None
    if tree is None:
        return [done.stderr]
    paragraphs = [words(p) for p in tree.iter('p')]
    wrong = [] if any(re.fullmatch('Study scaling on h100-80x8-ndr400, predicted .*; nothing was run.', p) for p in paragraphs) else paragraphs
    wrong += expect('rows', [row[1] for row in rows(tree, 'predicted tokens/s')[1:]], ['8', '16'])
    wrong += expect('runs', {line.split('; ')[1] for line in sentences(tree, 'runs')}, {'no step yet'})
    return wrong + expect('notes', tree.find('.//div[@class="notes"]'), None)


CASES = [
    ('efficiency, weak and strong', case_efficiency),
    ('model FLOPs utilization', case_mfu),
    ('where time and memory go', case_time),
    ('what was waited for a file', case_offload),
    ('a line for each run', case_identity),
    ('what restarts cost', case_restarts),
    ('four figures first', case_figures),
    ('finished, stopped, running', case_state),
    ('names and paths', case_names),
    ('an axis that ends at a quantile', case_cut),
    ('starts of a run', case_starts),
    ('speed as a median', case_median),
    ('an efficiency above 100 %', case_doubt),
    ('a sample', case_sample),
    ('the best validation', case_best),
    ('curves', case_curves),
    ('curves that lie on each other', case_same_curves),
    ('a narrow screen', case_narrow),
    ('hundreds of runs', case_many),
    ('starts, going back, and lines that were cut off', case_history),
    ('names are text, and nothing is fetched', case_text),
    ('refusals', case_refusals),
    ('numbers that no run has', case_absurd),
    ('runs that have just begun', case_short),
    ('runs that have failed before their first step', case_failed),
    ('predicted beside measured', case_predicted),
    ('numbers of ranks', case_ticks),
    ('strategies at equal batch', case_equal),
    ('time to a loss', case_reach),
    ('what stands out', case_flags),
    ('what stands out of many runs', case_alike),
    ('more threads than cores', case_crowded),
    ('clocks of GPUs', case_gpus),
    ('predictions and studies that hold anything', case_hostile),
    ('against an older study', case_against),
    ('a study', case_warm_up),
    ('lines of MLPerf', case_mllog),
    ('a page that follows its runs', case_follow),
    ('a page that follows runs that are over', case_follow_over),
    ('scaling-study --dry-run', case_study),
    ('scaling-study: each point has a row', case_announced),
    ('scaling-study: repeats, jobs and predictions', case_repeats),
    ('scaling-study: a second call into the folder', case_later),
    ('scaling-study --paper', case_paper),
]

if __name__ == '__main__':
    sys.exit(job.run_cases([case for case in CASES if not sys.argv[1:] or sys.argv[1] in case[0]]))
