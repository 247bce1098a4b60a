#!/usr/bin/env python3
"""./quickstart builds without a line for each file, and shows the end of the log where it cannot. Prints TAP.

The build folder has a Makefile of its own, so that nothing is built, and packages count as installed.
"""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

MAKEFILE = 'sherd_mpi_kind = openmpi\nall:\n\t@echo CC a.o; echo CC b.o\n\t@test {ends}\ncheck:\n\t@echo 3 passed, 0 failed\n'


def quickstart(ends):
    tools, build = pathlib.Path('tools').resolve(), pathlib.Path('build').resolve()
    for folder in tools, build:
        folder.mkdir(exist_ok=True)
    (tools / 'dpkg-query').write_text('#!/bin/sh\nprintf installed\n')
    (tools / 'dpkg-query').chmod(0o755)
    (build / 'Makefile').write_text(MAKEFILE.format(ends=ends))
    environment = dict(os.environ, PATH=f'{tools}:{os.environ["PATH"]}', MAKEFLAGS='')
    return subprocess.run([job.TOP / 'quickstart', 'check', '--build=build'], capture_output=True, text=True,
                          env=environment), (build / 'make.log').read_text()


def case_builds():
    done, log = quickstart('1')
    good = done.returncode == 0 and log == 'CC a.o\nCC b.o\n' and 'CC' not in done.stdout and 'make.log' in done.stdout
    return [] if good and done.stdout.endswith('3 passed, 0 failed\n') else [f'{done} {log}']


def case_fails():
    done, _ = quickstart('')
    return [] if done.returncode == 2 and 'CC b.o' in done.stderr and 'make.log has all of it' in done.stderr else [str(done)]


if __name__ == '__main__':
    sys.exit(job.run_cases([('a line for the build, and the log in a file', case_builds),
                            ('the end of the log of a build that fails', case_fails)]))
