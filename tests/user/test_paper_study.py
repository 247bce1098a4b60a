#!/usr/bin/env python3
"""The commands in doc/paper-study.md still give its tables, up to rounding by another compiler. Prints TAP."""
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

PAGE = (job.TOP / 'doc/paper-study.md').read_text()
BOUND = 0.005  # a percentage with one digit is rounded by this much
SECONDS = 5 * job.SECONDS
NUMBER = re.compile(r'[\d,]+(?:\.\d+)?')


def commands():
    """Pairs of commands, a study and a report, as lists of words."""
    block = re.search(r'```\n(.*?)```', PAGE, re.S)[1].replace('\\\n', ' ')
    return [line.split() for line in block.splitlines()]


def tables(text):
    """{caption: rows of cells}"""
    found = {}
    for caption, table in re.findall(r'^(\w+ scaling, .*):\n\n((?:\|.*\n)+)', text, re.M):
        found[caption] = [[cell.strip() for cell in line.strip('|').split('|')] for line in table.splitlines()]
    return found


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


def case_model(study, report, section):
    """Run both commands; the section of the page has the tables that they produce."""
    environment = {**os.environ, 'SHERD': os.path.abspath(os.environ['SHERD'])}
    for words in study, report:
        program = environment['SHERD'] if words[0] == 'sherd' else str(job.TOP / words[0])
        done = subprocess.run([program, *words[1:]], capture_output=True, text=True, timeout=SECONDS, env=environment)
        if done.returncode:
            return [' '.join(words), done.stderr]
    return differ(tables(pathlib.Path(report[-1], 'report.md').read_text()), tables(section))


def case_sees():
    """A figure that differs is noticed."""
    section = PAGE.split('\n## ')[1]
    told = tables(section)
    wrong = [] if len(told) >= 2 and not differ(told, told) else [f'{len(told)} tables']
    other = tables(section.replace('products (', 'latency (', 1))
    slower = tables(re.sub(r'\| 8 \| [\d,]+ ', '| 8 | 70,000 ', section, count=1))
    return wrong + [f'not seen: {what}' for what, found in (('a word', other), ('a number', slower)) if not differ(found, told)]


if __name__ == '__main__':
    words = commands()
    sections = PAGE.split('\n## ')[1:]
    pairs = [(study, report, section) for study, report, section in zip(words[::2], words[1::2], sections)]
    sys.exit(job.run_cases([('a difference is seen', case_sees),
                            *[(section.splitlines()[0], case_model, study, report, section) for study, report, section in pairs]]))
