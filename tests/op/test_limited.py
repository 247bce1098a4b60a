#!/usr/bin/env python3
"""Processors without AVX-512, tested on one that has it. Prints TAP.

Code for AVX-512 is in files that ask the processor and obey ONEDNN_MAX_CPU_ISA, and in copies of loops that are chosen
at load time and limited by configure's --with-clones. Under ONEDNN_MAX_CPU_ISA=AVX2 kernels use their fallbacks: this
runs the tests of kernels that lose AVX-512 again, as far as they take seconds. The others were run this way by hand.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

BUILD = pathlib.Path(os.environ['SHERD_BUILDDIR'])
PROGRAMS = ['test_half', 'test_states', 'test_mixsum', 'test_nf4', 'test_cpu_attention', 'test_cpu_moe', 'test_cpu_elem elem_act',
            'test_cpu_elem elem_unpack']
# Sources whose callers have all asked first: whether there is a unit for panels, or sh_isa_has().
ASKED = re.compile(r'(^|_)(panels?|wide)(_|$)')
CLONE = re.compile(r'\.arch_x86_64_v(\d)')
# Registers introduced by AVX-512, masks, and tiles.
AVX512 = re.compile(r'%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])\b|%k[0-7]\b|%tmm')
OBJECT, FUNCTION = re.compile(r'^(?:\w+_a-)?(\w+)\.o: '), re.compile(r'^[0-9a-f]+ <(.+)>:')


def functions_with_avx512(lines):
    """{(source, function)} of a disassembled archive."""
    found, source, function = set(), None, None
    for line in lines:
        if begins := OBJECT.match(line):
            source = begins[1]
        elif begins := FUNCTION.match(line):
            function = begins[1]
        elif AVX512.search(line):
            found.add((source, function))
    return found


def asks(source):
    """Whether the file asks for AVX-512 before it uses it; each archive has one file of that name with such code."""
    top = pathlib.Path(os.environ['SHERD_SRCDIR'])
    paths = [path for root in ('src', 'kernels', 'io') for path in (top / root).rglob(f'{source}.c')]
    return bool(ASKED.search(source)) or any('sh_isa_has(SH_ISA_A' in path.read_text() for path in paths)


def disassembled():
    return subprocess.run(['objdump', '-d', '--no-show-raw-insn', BUILD / 'libsherd.a'], capture_output=True, text=True,
                          check=True).stdout.splitlines()


def code_is_guarded():
    """Problems: AVX-512 code that nobody guards, and a pattern that finds none at all."""
    found = functions_with_avx512(disassembled())
    wrong = [f'{source}.c: {function}() has AVX-512 unasked' for source, function in sorted(found)
             if not CLONE.search(function) and not asks(source)]
    return wrong if found or not built_for_avx512() else ['no AVX-512 found']


def built_for_avx512():
    return '#define HAVE_AMX 1' in (BUILD / 'sherd_config.h').read_text()


def clones_are_those_configured():
    """Problems: copies of loops above the level given to configure. Clang and sanitizers have none."""
    said = subprocess.run([os.environ['SHERD'], '--version'], capture_output=True, text=True, check=True).stdout
    level = re.search(r'--with-clones=v(\d)', said)
    names = subprocess.run(['nm', BUILD / 'libsherd.a'], capture_output=True, text=True, check=True).stdout
    highest = max((int(n) for n in CLONE.findall(names)), default=1)
    wanted = int(level[1]) if level else 4
    return [f'copies up to v{highest}, configured up to v{wanted}'] if highest not in (1, wanted) else []


def runs(words):
    """Problems of a program under the limit."""
    name, *rest = words.split()
    done = subprocess.run([BUILD / 'tests/op' / name, *rest], env={**os.environ, 'ONEDNN_MAX_CPU_ISA': 'AVX2'},
                          capture_output=True, text=True)
    return [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines() + [f'exit status {done.returncode}']


def why_not(words):
    name = words.split()[0]
    return '' if (BUILD / 'tests/op' / name).exists() else f'{name} is not built'


def main():
    tools = '' if shutil.which('objdump') and shutil.which('nm') else 'no objdump and nm (binutils)'
    cases = [('AVX-512 only where the processor was asked', code_is_guarded, tools),
             ('copies of loops up to the level of configure', clones_are_those_configured, tools)]
    cases += [(f'{words} under AVX2', lambda words=words: runs(words), why_not(words)) for words in PROGRAMS]
    print(f'1..{len(cases)}')
    failed = 0
    for number, (name, check, cannot) in enumerate(cases, 1):
        problems = [] if cannot else check()
        failed += bool(problems)
        print(*(f'# {line}' for line in problems), sep='\n', end='\n' if problems else '')
        print(f"{'not ok' if problems else 'ok'} {number} - {name}{f' # SKIP {cannot}' if cannot else ''}", flush=True)
    return int(failed != 0)


if __name__ == '__main__':
    sys.exit(main())
