#!/usr/bin/env python3
"""The program knows each key that doc/from-others.md names: as its own, or with advice on what to use instead.
Prints TAP."""
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

PAGE = (job.TOP / 'doc/from-others.md').read_text()
AT_ONCE = 20  # errors that one start reports
SHOWN = 60    # letters of a name that they show
OWN = set()


def own_keys():
    section = None
    for line in job.sherd('help', '--config').splitlines():
        if re.fullmatch(r'\w+:', line):
            section = line[:-1]
        elif re.fullmatch(r'  \w+', line):
            OWN.add(f'{section}.{line.strip()}')


def rows(title):
    """[(keys of the first column, text of the second)] of the table below a heading."""
    table = PAGE.split(f'## {title}\n')[1].split('\n## ')[0]
    cells = [[cell.strip() for cell in line.strip('|').split(' | ')] for line in table.splitlines() if line.startswith('| `')]
    return [(re.findall(r'`([\w.]+)`', left), right) for left, right, *_ in cells]


def told(names):
    """{name: what a start prints about it}"""
    lines = {}
    for at in range(0, len(names), AT_ONCE):
        done = subprocess.run([os.environ['SHERD'], 'plan', job.TOP / 'examples/debug.yaml', *(f'--{name}=1' for name in names[at:at + AT_ONCE])],
                              capture_output=True, text=True)
        for line in done.stderr.splitlines():
            found = re.match(r'sherd: error: --([\w.]+): (.*)', line)
            if found:
                lines[found[1]] = found[2]
    return lines


def short(name):
    return name if len(name) <= SHOWN else name[:SHOWN] + '...'


def case_keys():
    wrong, foreign = [], []
    for names, right in rows('Keys of torchtitan'):
        for name in names:
            if name not in OWN:
                foreign.append(name)
            elif right != 'the same' and not right.startswith('the same;') and name not in right:
                wrong.append(f'{name} is a key here, and the page says: {right}')
    lines = told(foreign)
    return wrong + [f'{name}: {lines.get(short(name))}' for name in foreign if not re.match(
        'no such key; (?!nearest)', lines.get(short(name), ''))] + ([] if len(foreign) > 40 else [f'{len(foreign)} keys only'])


def case_answers():
    """The right-hand column has keys of this program."""
    named = {name for _, right in rows('Keys of torchtitan') for name in re.findall(r'`(\w+\.\w+)(?=[`=:])', right)}
    return [f'{name} is no key' for name in sorted(named - OWN - {'config.yaml'})]


def case_defaults():
    text = job.sherd('help', '--config')
    wrong = []
    for (name,), _ in rows('Defaults that differ'):
        right = next(line for line in PAGE.split('## Defaults that differ')[1].splitlines() if f'`{name}`' in line)
        value = right.strip('| ').split(' | ')[-1]
        section, key = name.split('.')
        default = re.search(r'default:\s+(\S+)', text.split(f'\n{section}:\n')[1].split(f'  {key}\n')[1])[1]
        if not value.startswith('acts') and value != default:
            wrong.append(f'{name}: the page says {value}, the help {default}')
    return wrong


CASES = [('each key is known', case_keys), ('each answer is a key', case_answers), ('defaults', case_defaults)]

if __name__ == '__main__':
    own_keys()
    sys.exit(job.run_cases(CASES))
