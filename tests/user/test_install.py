#!/usr/bin/env python3
"""The result of `make install`: examples by name, pages, licence, and job scripts that name installed paths. Prints
TAP.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

BUILD = pathlib.Path(os.environ['SHERD']).parent
stage = pathlib.Path('stage').absolute()
SCRIPTS = 'common.sh', 'train.sbatch', 'keep-going', 'keep-going.sbatch', 'drill', 'sweep.sbatch', 'study.sbatch', 'submit-chain', 'scaling-study', 'sherd-in-container', 'README'


def variables(*names):
    """A variable of the Makefile, expanded by make."""
    rule = 'tell: ; @echo ' + ' '.join(f'"$({name})"' for name in names)
    done = subprocess.run(['make', '-s', '-C', BUILD, '-f', 'Makefile', f'--eval={rule}', 'tell'], capture_output=True,
                          text=True, env=clean(), check=True)
    return done.stdout.split()


def clean():
    """The environment without what the make that runs the tests would pass on to this one."""
    return {name: value for name, value in os.environ.items() if name not in ('MAKEFLAGS', 'MFLAGS', 'MAKELEVEL')}


def here(path):
    return stage / path.lstrip('/')


def case_files():
    shutil.rmtree(stage, ignore_errors=True)
    done = subprocess.run(['make', '-s', '-C', BUILD, 'install', f'DESTDIR={stage}'], capture_output=True, text=True,
                          env=clean())
    if done.returncode != 0:
        return [done.stdout + done.stderr]
    doc, data = variables('docdir', 'pkgdatadir')
    wanted = [f'{doc}/{name}' for name in ('README.md', 'COPYING', 'NEWS')]
    wanted += [f'{doc}/doc/{page.name}' for page in (job.TOP / 'doc').glob('*.md')]
    wanted += [f'{data}/examples/{file.name}' for file in (job.TOP / 'examples').glob('*.yaml')]
    wanted += [f'{data}/jobscripts/{name}' for name in SCRIPTS]
    wanted += [f'{data}/{name}' for name in ('installcheck', 'lm_eval_sherd.py')]
    wanted += [f'{data}/../bash-completion/completions/sherd', f'{data}/../zsh/site-functions/_sherd']
    return [f'{path} is not installed' for path in wanted if not here(path).is_file()]


def anchors(page):
    """What links to a heading of a page are called."""
    text = re.sub(r'^```.*?^```$', '', page.read_text(), flags=re.M | re.S)
    return {re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-') for title in re.findall(r'^#+ (.*)', text, re.M)}


def case_states():
    """The programs for checkpoints of other trainers find their modules, also after the installation has moved."""
    bindir, = variables('bindir')
    wrong = []
    moved = stage.with_name('moved')
    shutil.rmtree(moved, ignore_errors=True)
    shutil.copytree(stage, moved, symlinks=True)
    for top in stage, moved:
        for name in 'sherd-import', 'sherd-export':
            done = subprocess.run([top / bindir.lstrip('/') / name, '--help'], capture_output=True, text=True, cwd=stage)
            if done.returncode or not done.stdout.startswith(f'usage: {name} '):
                wrong.append(f'{top.name}/{name}: {done.stdout}{done.stderr}')
    return wrong + [f'{path} is left by Python' for path in stage.rglob('__pycache__')]


def case_plugins():
    """An installed example of a plug-in is compiled with the flags of pkg-config and is right, wherever the installation is."""
    bindir, data, pages = variables('bindir', 'pkgdatadir', 'pkgconfigdir')
    if not shutil.which('pkg-config'):
        print('# no pkg-config: not tried')
        return []
    wrong = []
    for top in stage, stage.with_name('moved'):
        flags = subprocess.run(['pkg-config', '--cflags', 'sherd-plugin'], capture_output=True, text=True, check=True,
                               env={**os.environ, 'PKG_CONFIG_PATH': str(top / pages.lstrip('/'))}).stdout.split()
        source, library = top / data.lstrip('/') / 'examples/plugins/focal.c', top / 'focal.so'
        subprocess.run(['cc', '-O2', '-shared', '-fPIC', *flags, '-o', library, source, '-lm'], check=True)
        done = subprocess.run([top / bindir.lstrip('/') / 'sherd', 'plugin', 'check', library], capture_output=True, text=True)
        wrong += [] if done.returncode == 0 and str(top) in ' '.join(flags) else [f'{flags}: {done.stdout}{done.stderr}']
    return wrong


def case_links():
    """Each page that an installed page links to is installed, with the heading; so is each that the sources name."""
    doc, = variables('docdir')
    wrong, count = [], 0
    for page in here(doc).rglob('*.md'):
        for found, heading in re.findall(r'\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?\)', page.read_text()):
            count += 1
            to = page.parent / found if found else page
            if not to.exists() or heading and heading not in anchors(to):
                wrong.append(f'{page.relative_to(stage)} links to {found}#{heading}')
    for path in (path for root in ('src', 'io', 'kernels', 'jobscripts', 'tests') for path in (job.TOP / root).rglob('*') if path.is_file()):
        for named in set(re.findall(r'(?<![\w/.-])doc/[\w/-]+\.md', path.read_text(errors='replace'))):
            wrong += [] if here(f'{doc}/{named}').exists() else [f'{path.relative_to(job.TOP)} names {named}']
    return wrong + ([] if count > 100 else [f'{count} links only'])


def case_example():
    """The installed program finds an installed example, from anywhere; each preset has one."""
    bindir, data = variables('bindir', 'pkgdatadir')
    elsewhere = stage / 'elsewhere'
    elsewhere.mkdir(exist_ok=True)
    program = here(f'{bindir}/sherd')
    (here(data) / 'examples/mine.yaml').write_text('model:\n  name: debug\n  n_layers: 3\n')
    wrong = []
    presets = re.search(r'Preset that sets all keys of this section: ([^.]+(?:\.\d[^.]*)*)\.', ' '.join(
        job.sherd('help', '--config').split()))[1].split(', ')
    for name in ['mine', 'gpt2-bytes', *presets]:
        # On one rank the largest need more than the GPU that they are meant for.
        done = subprocess.run([program, 'plan', name, '--memory.limit_bytes=10TiB'], capture_output=True, text=True, cwd=elsewhere)
        ok = done.returncode == 0 and done.stdout.startswith('model ')
        wrong += [] if ok and (name != 'mine' or ' 3 layers' in done.stdout) else [f'{name}: {done.stderr}']
    return wrong


def case_scripts():
    """Each path that a job script mentions exists; no path of the source tree is left in them."""
    prefix, jobscripts = variables('prefix', 'jobscriptsdir')
    wrong, count = [], 0
    for name in SCRIPTS:
        path = here(f'{jobscripts}/{name}')
        text = path.read_text()
        for found in re.findall(re.escape(prefix) + r'/(?:share|lib)[\w./-]*[\w-]', text):
            count += 1
            wrong += [] if here(found).exists() else [f'{name} names {found}']
        wrong += [f'{name} names {found}' for found in re.findall(r'(?:^|[\s=])((?:jobscripts|examples|doc)/[\w.-]+)', text)]
        wrong += [] if os.access(path, os.X_OK) == (name not in ('common.sh', 'README')) else [f'mode of {name}']
    return wrong + ([] if count >= 5 else [f'{count} paths only'])


def case_installcheck():
    """The installation check passes on a good installation, fails on a bad one, and says which check failed."""
    bindir, data = variables('bindir', 'pkgdatadir')
    broken = stage / 'broken'
    broken.write_text(f'#!/bin/sh\n[ "$1" != generate ] || exit 1\nexec {here(bindir)}/sherd "$@"\n')
    broken.chmod(0o755)
    wrong = []
    for program, status, words in ((here(f'{bindir}/sherd'), 0, '10 passed, 0 failed, 0 skipped'),
                                   (broken, 1, 'FAILED a model writes text')):
        done = subprocess.run([here(f'{data}/installcheck')], capture_output=True, text=True, cwd=stage,
                              env={**clean(), 'SHERD': str(program), 'TMPDIR': str(stage)})
        if done.returncode != status or words not in done.stdout:
            wrong.append(f'{program}: exit {done.returncode}\n{done.stdout}{done.stderr}')
    return wrong


def case_version_object():
    """Each program that has version.c waits for the header that it includes, in a build of one program as well."""
    made = re.findall(r'^(src/cmd/\S+-version\.o):', (BUILD / 'Makefile').read_text(), re.M)
    return [f'{name} does not wait' for name in sorted(set(made) - set(variables('version_objects')))] + ([] if len(made) > 1 else made)


CASES = [('files', case_files), ('states of other trainers', case_states), ('plug-ins', case_plugins), ('links', case_links), ('examples by name', case_example), ('job scripts', case_scripts),
         ('installcheck', case_installcheck), ("the version's objects", case_version_object)]

if __name__ == '__main__':
    sys.exit(job.run_cases(CASES))
