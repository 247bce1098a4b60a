#!/usr/bin/env python3
"""The commands of the study on paper in doc/prediction.md still give its tables, up to rounding by another compiler. Prints TAP.

The tables are made here from the predictions of each point, which `sherd report` shows as charts and tables."""
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
RULE = ['---:'] * 6 + ['---'] * 2
NUMBER = re.compile(r'[\d,]+(?:\.\d+)?')


def commands():
    """A study of each model, as a list of words."""
    block = re.search(r'```\n(.*?)```', PAGE, re.S)[1].replace('\\\n', ' ')
    return [line.split() for line in block.splitlines()]


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
    for path in folder.glob('weak-*/predicted.json'):
        name, shard, batch = re.fullmatch(r'weak-(\D+)(\d*)-b(\d+)-n\d+', path.parent.name).groups()
        caption = f'Weak scaling, {name}{f", shard {shard}" if shard else ""}; {batch} sequence per step and rank'
        series.setdefault(caption, []).append(json.loads(path.read_text()))
    return {caption: [HEAD, RULE] + [row_of(point, points[0]) for point in points]
            for caption, points in sorted((caption, sorted(points, key=lambda point: point['ranks'])) for caption, points in series.items())}


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
    section = PAGE.split('\n### ')[1]
    told = tables(section)
    wrong = [] if len(told) >= 2 and not differ(told, told) else [f'{len(told)} tables']
    other = tables(section.replace('products (', 'latency (', 1))
    slower = tables(re.sub(r'\| 8 \| [\d,]+ ', '| 8 | 70,000 ', section, count=1))
    return wrong + [f'not seen: {what}' for what, found in (('a word', other), ('a number', slower)) if not differ(found, told)]


if __name__ == '__main__':
    pairs = list(zip(commands(), PAGE.split('\n### ')[1:], strict=True))
    sys.exit(job.run_cases([('a difference is seen', case_sees),
                            *[(section.splitlines()[0], case_model, study, section) for study, section in pairs]]))
