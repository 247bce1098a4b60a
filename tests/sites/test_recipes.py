#!/usr/bin/env python3
"""The recipes in doc/sites name this release and options that configure has; the installed module works. Prints TAP."""
import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

SITES = job.TOP / 'doc/sites'
BUILD = pathlib.Path(os.environ['SHERD']).parent
SPACK_OPTIONS = re.compile(r'^ +\("([\w]+)", "([\w-]+)", ', re.M)  # rows of the table: --with-OPTION, package
VERSION = re.search(r'AC_INIT\(\[Sherd\], \[([\d.]+)\]', (job.TOP / 'configure.ac').read_text())[1]
RECIPES = ('package.py', f'sherd-{VERSION}-foss-2023b.eb', 'sherd-cpu.def', 'sherd-cuda.def')
ARM64 = 'sherd-arm64.yaml'


def configure_options():
    done = subprocess.run([job.TOP / 'configure', '--help'], capture_output=True, text=True)
    return set(re.findall(r'--(?:with|enable|prefix)[\w-]*', done.stdout)) | {'--with-zlib'}


def case_version():
    """The version is defined in configure.ac; files that cannot read it from there must agree."""
    wrong = []
    for name in RECIPES + (ARM64, '../building.md', '../../README.md'):
        for found in re.findall(r'(?<![\w.])sherd[-/](\d+\.\d+\.\d+)', (SITES / name).read_text()):
            wrong += [] if found == VERSION else [f'{name} names sherd {found}, configure.ac {VERSION}']
    text = (SITES / 'package.py').read_text()
    wrong += [] if f'version("{VERSION}"' in text else [f'package.py has no version {VERSION}']
    first = (job.TOP / 'NEWS').read_text().splitlines()[0]
    return wrong + ([] if first.split()[:2] == ['Sherd', VERSION] else [f'NEWS begins with {first}'])


def case_options():
    known, wrong = configure_options(), []
    for name in RECIPES:
        text = (SITES / name).read_text()
        given = set(re.findall(r'--with-\w[\w-]*', text))
        if '--with-{option}' in text:
            given |= {f'--with-{option}' for option, _ in SPACK_OPTIONS.findall(text)}
        wrong += [f'{name}: configure has no {option}' for option in sorted(given - known)]
        wrong += [] if '--with-mpi' in given else [f'{name} leaves the MPI to chance']
    return wrong


def case_syntax():
    """Both recipes are Python, Spack's as its style check requires; every package that it asks a spec for is a
    dependency."""
    wrong = [f'package.py:{n}: more than 99 columns' for n, line in enumerate((SITES / 'package.py').read_text().splitlines(), 1)
             if len(line) > 99]
    for name in RECIPES[:2]:
        ast.parse((SITES / name).read_text(), name)
    text = (SITES / 'package.py').read_text()
    wrong += [f'package.py does not allow {target}' for target in ('x86_64', 'aarch64') if f'"target={target}:"' not in text]
    needed = set(re.findall(r'depends_on\("([\w-]+)', text))
    asked = re.findall(r"spec\['([\w-]+)'\]", text) + [package for _, package in SPACK_OPTIONS.findall(text)]
    wrong += [f'package.py: no depends_on({name})' for name in asked if name not in needed]
    wrong += [] if len(SPACK_OPTIONS.findall(text)) > 8 else ['package.py: its table of options was not found']
    return wrong


def case_packages():
    """A container installs the packages that ./quickstart installs to build with Open MPI."""
    wanted = re.findall(r'^\s*(?:echo|openmpi\) echo) ((?:lib|zlib|openmpi)[\w .+-]*)', (job.TOP / 'quickstart').read_text(), re.M)
    names = {word for line in wanted for word in line.split() if not word.startswith('libcmocka')}
    wrong = [] if len(names) > 8 else [f'only {names} found in ./quickstart']
    for recipe in RECIPES[2:]:
        text = (SITES / recipe).read_text()
        wrong += [f'{recipe} does not install {name}' for name in sorted(names) if name not in text]
    return wrong


def case_arm64():
    """The environment for Arm hosts asks package.py for what it has, and for no processor by name. The build for AArch64 that
    tests/sites/aarch64 makes has the libraries of the container, so their names are right there."""
    text, package = (SITES / ARM64).read_text(), (SITES / 'package.py').read_text()
    spec = re.search(r'^  - sherd (.+)$', text, re.M)[1]
    known = set(re.findall(r'variant\(\s*"(\w+)"', package)) | {'cuda', 'cuda_arch'}
    wrong = [f'{ARM64}: package.py has no variant {name}' for name in re.findall(r'(?<=[+~])\w+|\w+(?==)', spec) if name not in known]
    targets = re.findall(r'\btarget=([\w:]+)', text)
    wrong += [] if targets == ['aarch64'] and '"target=aarch64:"' in package else [f'{ARM64} is for {targets}']
    wrong += [] if '~onednn' in spec else [f'{ARM64} builds oneDNN, which does not multiply there']
    gpus = re.search(r'with-cuda-arch="([\d ]+)"', (SITES / 'sherd-cuda.def').read_text())[1].split()
    wrong += [f'{ARM64}: GPUs {arch}' for arch in re.findall(r'cuda_arch=(\d+)', spec) if arch not in gpus]
    libraries = r'\b(?:lib[\w.-]+|zlib1g)-dev\b'
    built = set(re.findall(libraries, (job.TOP / 'tests/sites/aarch64').read_text().replace('openblas-pthread', 'openblas')))
    wanted = set(re.findall(libraries, (SITES / 'sherd-cpu.def').read_text()))
    return wrong + [f'tests/sites/aarch64 does without {name}' for name in sorted(wanted - built)] + ([] if len(wanted) > 8 else [str(wanted)])


def case_module():
    """The module is complete, and Lmod loads it if installed."""
    stage = pathlib.Path('stage').absolute()
    subprocess.run(['make', '-s', '-C', BUILD, 'install-nodist_modulefileDATA', f'DESTDIR={stage}'], check=True, capture_output=True,
                   env={name: value for name, value in os.environ.items() if not name.startswith(('MAKE', 'MFLAGS'))})
    found = list(stage.rglob(f'sherd/{VERSION}.lua'))
    if len(found) != 1:
        return [f'installed: {found}']
    text = found[0].read_text()
    wrong = [f'left in it: {word}' for word in re.findall(r'@\w+@', text)]
    lmod = shutil.which('lmod') or '/usr/share/lmod/lmod/libexec/lmod'
    if os.access(lmod, os.X_OK):
        done = subprocess.run([lmod, 'bash', 'load', 'sherd'], capture_output=True, text=True,
                              env={**os.environ, 'MODULEPATH': str(found[0].parent.parent)})
        for words in ('SHERD_JOBSCRIPTS=', 'PATH=', 'FPATH='):
            wrong += [] if words in done.stdout else [f'no {words} in {done.stdout}{done.stderr}']
    return wrong


CASES = [('one version', case_version), ('options of configure', case_options), ('syntax', case_syntax), ('packages', case_packages),
         ('arm64', case_arm64),
         ('module', case_module)]

if __name__ == '__main__':
    sys.exit(job.run_cases(CASES))
