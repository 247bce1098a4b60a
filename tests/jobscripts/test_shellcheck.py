#!/usr/bin/env python3
"""shellcheck finds nothing in any shell script of the tree. Prints TAP."""
import pathlib
import re
import shutil
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / 'tests/gold'))
import job

SHEBANG = re.compile(rb'#!.*\b(sh|bash)\b')
PLACES = ('jobscripts', 'tests', '.ci')


def is_script(path):
    if not path.is_file() or path.is_symlink():
        return False
    with open(path, 'rb') as file:
        return bool(SHEBANG.match(file.readline(200))) or path.suffix in ('.sh', '.sbatch')


def scripts():
    """A distribution has fewer scripts: it has no .ci."""
    found = [path for place in PLACES for path in sorted((TOP / place).rglob('*')) if is_script(path)]
    return [TOP / 'quickstart', *found]


def check(path):
    done = subprocess.run(['shellcheck', '--external-sources', '--color=never', path.relative_to(TOP)], capture_output=True,
                          text=True, cwd=TOP)
    return [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()


def case_sees():
    """A check that cannot fail is none."""
    bad = pathlib.Path('bad.sh')
    bad.write_text('#!/bin/sh\nrm $1\n')
    done = subprocess.run(['shellcheck', bad], capture_output=True, text=True)
    return [] if done.returncode == 1 and 'SC2086' in done.stdout else [f'exit {done.returncode}', *done.stdout.splitlines()]


if __name__ == '__main__':
    if not shutil.which('shellcheck'):
        job.skip_all('no shellcheck (Debian: shellcheck)')
    cases = [(path.relative_to(TOP).as_posix(), check, path) for path in scripts()]
    sys.exit(job.run_cases([('a word that is not quoted is seen', case_sees), *cases]))
