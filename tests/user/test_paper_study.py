#!/usr/bin/env python3
"""The commands of the study on paper in doc/prediction.md still give its tables, up to rounding by another compiler. Prints TAP.

The tables are made here from the predictions of each point, which `sherd report` shows as charts and tables. Of the table of searches
a few rows are searched again, with SHERD_LONG=1 some of larger models too."""
import json
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

PAGE = (job.TOP / 'doc/prediction.md').read_text().split('\n## A study on paper\n')[1]
BOUND = 0.005  # a percentage with one digit is rounded by this much
SECONDS = 5 * job.SECONDS
HEAD = ['ranks', 'predicted tokens/s', 'per rank', 'efficiency', 'MFU', 'exposed', 'limited by', 'then by']
FACTORS = ['matrices over', 'sequences over']  # of a study with a fixed batch
POINT = re.compile(r'(weak|strong)-(hybrid_shard(?:_zero2)?|[a-z_]+)(\d*)-b(\d+)(?:-t(\d+)-c(\d+))?-n\d+')
STAGES = '--allow=stages'
# Model, GPUs, and whether stages are searched too.
SEARCHED = [('8B', 512, False), ('8B', 1024, False), ('8B', 4096, False)]
if os.environ.get('SHERD_LONG'):
    SEARCHED += [('8B', 16384, False), ('70B', 8192, False), ('70B', 16384, False), ('405B', 8192, False), ('405B', 16384, False),
                 ('8B', 8, True), ('405B', 16384, True)]
NUMBER = re.compile(r'[\d,]+(?:\.\d+)?')


def commands():
    """A study of each model, as a list of words."""
    block = re.search(r'```\n(.*?)```', PAGE, re.S)[1].replace('\\\n', ' ')
    return [line.split() for line in block.splitlines()]


def rule(head):
    """Under the columns of a table, of which the last two are words."""
    return ['---:'] * (len(head) - 2) + ['---'] * 2


def tables(text):
    """{caption: rows of cells}"""
    found = {}
    for caption, table in re.findall(r'^(\w+ scaling, .*):\n\n((?:\|.*\n)+)', text, re.M):
        found[caption] = [[cell.strip() for cell in line.strip('|').split('|')] for line in table.splitlines()]
    return found


def row_of(prediction, first):
    """The cells of a point; `first`: the prediction of the fewest ranks."""
    step, ranks = prediction['step'], prediction['ranks']
    speed, base = prediction['tokens_per_second'], first['tokens_per_second'] / first['ranks']
    exposed = sum(part['exposed'] for name, part in step['split'].items() if name.startswith('all_') or name.startswith('reduce'))
    limits = [f'{limit["part"]} ({100 * limit["gain"]:.0f} %)' for limit in prediction['limits']]
    return [str(ranks), f'{speed:,.0f}', f'{speed / ranks:,.0f}', f'{100 * speed / ranks / base:.1f} %',
            f'{100 * prediction["mfu_causal"]:.1f} %', f'{100 * exposed / step["seconds"]:.1f} %', *(limits + ['–', '–'])[:2]]


def study_tables(folder):
    """The same from the folders of a study, such as weak-hybrid_shard8-b1-n16."""
    series = {}
    for path in folder.glob('*/predicted.json'):
        scaling, name, shard, batch, *degrees = POINT.fullmatch(path.parent.name).groups()
        each = f'{batch} sequence per step and rank' if scaling == 'weak' else f'{batch} sequence of a micro-step'
        caption = f'{scaling.capitalize()} scaling, {name}{f", shard {shard}" if shard else ""}; {each}'
        series.setdefault(caption, []).append((json.loads(path.read_text()), [degree for degree in degrees if degree]))
    found = {}
    for caption, points in sorted(series.items()):
        points.sort(key=lambda point: (point[0]['ranks'], list(map(int, point[1]))))
        head = HEAD[:1] + FACTORS[:len(points[0][1])] + HEAD[1:]
        rows = [(row_of(point, points[0][0]), degrees) for point, degrees in points]
        found[caption] = [head, rule(head)] + [[row[0], *degrees, *row[1:]] for row, degrees in rows]
    return found


def searched_rows():
    """{model, GPUs: cells} of the table of searches, and the sequences of a step of each model; of 8,192 tokens alone."""
    rows, batch, model = {}, {}, None
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if len(cells) != 6 or not re.fullmatch(r'[\d,]+', cells[1]):
            continue
        named = re.fullmatch(r'(\w+), ([\d,]+) of ([\d,]+) tokens', cells[0])
        model = model if not named else named[1] if named[3] == '8,192' else None
        batch |= {named[1]: named[2].replace(',', '')} if named and model else {}
        rows |= {(model, int(cells[1].replace(',', ''))): cells[2:]} if model else {}
    return rows, batch


def found_rows(said, ranks):
    """(tokens/s per GPU, ranks that share matrices, sequences, words of stages) of each result; '' and 1: it has none."""
    rows = []
    for line in said.splitlines():
        speed = re.match(r'[* ][P ][S ] \w+ +\d+ x \d+ .*?B +[\d.]+ \w+B +[\d.e+]+ +([\d.]+) ([KM]) ', line)
        matrices, sequences, stages = (re.search(word, line) for word in (r'matrices over (\d+)', r'sequences over (\d+)', r'(\d+ stages[^,]*)'))
        if speed:
            rows.append((float(speed[1]) * {'K': 1e3, 'M': 1e6}[speed[2]] / ranks, int(matrices[1]) if matrices else 1,
                         int(sequences[1]) if sequences else 1, stages[1].strip() if stages else ''))
    return rows


def cells_of(rows):
    """What the table says of the results, by what they cut."""
    kinds = (lambda m, s, p: m == s == 1 and not p, lambda m, s, p: m == 1 < s and not p, lambda m, s, p: m > 1 and not p, lambda m, s, p: p)
    best = [max((row for row in rows if kind(*row[1:])), default=None) for kind in kinds]
    return [', '.join([f'{row[0]:,.0f}', *[f'over {row[1]}'] * (row[1] > 1),
                       *['sequences ' * (row[1] > 1) + f'over {row[2]}'] * (row[2] > 1), *[row[3]] * bool(row[3])]) if row else '' for row in best]


def case_search(model, ranks, stages):
    """Stages leave less room in the list for what does without."""
    rows, batch = searched_rows()
    said = job.sherd('plan', f'llama3.1-{model.lower()}', '--ranks', ranks, '--machine', 'h100-80x8-ndr400', '--data.document_mask=false',
                     f'--training.global_batch_size={batch[model]}', '--search', *[STAGES] * stages)
    found, told = (cells[3 * stages:3 + stages] for cells in (cells_of(found_rows(said, ranks)), rows[model, ranks]))
    return [] if any(told) and all(map(near, found, told)) else [f'{found}, the page has {told}', said]


def near(left, right):
    """Whether texts are equal except for numbers that are nearly equal."""
    if NUMBER.sub('#', left) != NUMBER.sub('#', right):
        return False
    pairs = zip(*(map(lambda n: float(n.replace(',', '')), NUMBER.findall(text)) for text in (left, right)))
    return all(abs(a - b) <= max(BOUND * abs(b), 1.01 if '(' in left else 0.11) for a, b in pairs)


def differ(found, told):
    if list(found) != list(told):
        return [f'tables {list(found)}, the page has {list(told)}']
    wrong = []
    for caption, rows in told.items():
        if len(rows) != len(found[caption]):
            wrong.append(f'{caption}: {len(found[caption])} rows, the page has {len(rows)}')
        wrong += [f'{caption}: {row}, the page has {old}' for row, old in zip(found[caption], rows)
                  if len(row) != len(old) or not all(map(near, row, old))]
    return wrong


def case_model(study, section):
    """Run the command; the section of the page has the tables of what it predicts."""
    folder = next(word.partition('=')[2] for word in study if word.startswith('--folder='))
    environment = {**os.environ, 'SHERD': os.path.abspath(os.environ['SHERD'])}
    done = subprocess.run([str(job.TOP / study[0]), *study[1:]], capture_output=True, text=True, timeout=SECONDS, env=environment)
    if done.returncode:
        return [' '.join(study), done.stderr]
    return differ(study_tables(pathlib.Path(folder)), tables(section))


def case_sees():
    """A figure that differs is noticed."""
    section = PAGE.split('\n### ')[2]
    told = tables(section)
    wrong = [] if len(told) >= 2 and not differ(told, told) else [f'{len(told)} tables']
    other = tables(section.replace('products (', 'latency (', 1))
    slower = tables(re.sub(r'\| 8 \| [\d,]+ ', '| 8 | 70,000 ', section, count=1))
    return wrong + [f'not seen: {what}' for what, found in (('a word', other), ('a number', slower)) if not differ(found, told)]


if __name__ == '__main__':
    pairs = list(zip(commands(), PAGE.split('\n### ')[1:], strict=True))
    sys.exit(job.run_cases([('a difference is seen', case_sees),
                            *[(section.splitlines()[0], case_model, study, section) for study, section in pairs],
                            *[(f'search: {model} on {ranks}{", stages" * stages}', case_search, model, ranks, stages)
                              for model, ranks, stages in SEARCHED]]))
