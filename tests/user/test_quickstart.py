#!/usr/bin/env python3
"""./quickstart builds without a line for each file, shows the end of the log if the build fails, and ends with commands
that work on this machine. Prints TAP.

The build folder has its own Makefile, so nothing is built, and packages count as installed.
"""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

MAKEFILE = 'sherd_mpi_kind = openmpi\nall:\n\t@echo CC a.o; echo CC b.o\n\t@test {ends}\ncheck:\n\t@echo 3 passed, 0 failed\n'


def script(path, *lines):
    path.write_text('\n'.join(('#!/bin/sh', *lines, '')))
    path.chmod(0o755)


def quickstart(ends, *words, launcher='mpirun'):
    tools, build = pathlib.Path('tools').resolve(), pathlib.Path('build').resolve()
    for folder in tools, build:
        folder.mkdir(exist_ok=True)
    script(tools / 'dpkg-query', 'printf installed')
    (build / 'Makefile').write_text(MAKEFILE.format(ends=ends) + f'MPIRUN = {launcher}\n')
    environment = dict(os.environ, PATH=f'{tools}:{os.environ["PATH"]}', MAKEFLAGS='')
    return subprocess.run([job.TOP / 'quickstart', *(words or ['check']), '--build=build'], capture_output=True, text=True,
                          env=environment), (build / 'make.log').read_text()


def case_builds():
    done, log = quickstart('1')
    good = done.returncode == 0 and log == 'CC a.o\nCC b.o\n' and 'CC' not in done.stdout and 'make.log' in done.stdout
    return [] if good and done.stdout.endswith('3 passed, 0 failed\n') else [f'{done} {log}']


def case_fails():
    done, _ = quickstart('')
    return [] if done.returncode == 2 and 'CC b.o' in done.stderr and 'make.log has all of it' in done.stderr else [str(done)]


def case_next():
    """The last line fits this machine: at most as many ranks as cores, a number that the example takes, the right
    launcher."""
    wrong, tools = [], pathlib.Path('tools').resolve()
    tools.mkdir(exist_ok=True)
    pathlib.Path('build').mkdir(exist_ok=True)
    script(pathlib.Path('build/sherd').resolve(), 'exit 0')
    for name in 'mpirun', 'mpirun.other':
        script(tools / name, 'exit 0')
    pathlib.Path('text').write_text('text\n')
    for threads, cores, launcher, expected in ((12, 6, 'mpirun', 'mpirun -n 4'), (1, 1, 'mpirun', 'mpirun -n 1'),
                                               (128, 64, tools / 'mpirun.other', f'{tools}/mpirun.other -n 8'),
                                               (2, 64, 'mpirun', 'mpirun -n 2')):
        script(tools / 'nproc', f'echo {threads}')
        script(tools / 'lscpu', 'echo "# Core,Socket"', f'for i in $(seq {cores}); do echo $i,0; echo $i,0; done')
        done, _ = quickstart('1', 'train', '--text=text', launcher=launcher)
        last = done.stdout.splitlines()[-1].strip()
        wrong += [] if last == f'{expected} sherd train gpt2-bytes' else [f'{cores} cores: {last} {done.stderr}']
    return wrong


if __name__ == '__main__':
    sys.exit(job.run_cases([('a line for the build, and the log in a file', case_builds),
                            ('the end of the log of a build that fails', case_fails),
                            ('the next commands', case_next)]))
