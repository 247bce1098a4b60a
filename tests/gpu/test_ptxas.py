#!/usr/bin/env python3
"""Registers, stack, spills and static shared memory of each kernel on each GPU, as ptxas gave them, against
tests/golden/ptxas.txt. A kernel that needs more fails: more registers only if fewer warps then fit on a multiprocessor.
Prints TAP. SHERD_GOLDEN=FILE writes the table instead.

Only in a build that was configured --with-cuda=yes, with the nvcc that the table names.
"""
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / 'gold')]
import job

KERNELS = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')) / 'kernels/cuda'
TABLE = HERE.parent / 'golden/ptxas.txt'
HEAD = '# Of each GPU: registers, or registers:stack:spill stores:spill loads:static shared memory (bytes).\n'
FUNCTION = re.compile(r"Compiling entry function '([^']+)' for 'sm_(\d+)'\n.*\n"
                      r' +(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n.*Used (\d+) registers(.*)')
SHARED = re.compile(r'(\d+) bytes smem')
# What a multiprocessor of any of these GPUs has; registers are given to a warp 256 at a time.
REGISTERS, WARPS, UNIT = 65536, 64, 256


def readable(names):
    """norm.norm_kernel<float, 8> for "norm" and the compiler's name."""
    text = '\n'.join(name for _, name in names)
    plain = subprocess.run(['c++filt'], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    found = {}
    for (file, name), words in zip(names, plain):
        words = words.replace('(anonymous namespace)::', '').removeprefix('void ')
        found[file, name] = f'{file}.{re.sub("[(].*", "", re.sub("[(](?:bool|int)[)]", "", words))}'
    return found


def measured():
    """{kernel: {gpu: (registers, stack, stores, loads, shared)}}"""
    found = {}
    for path in sorted(KERNELS.rglob('*.ptx/said')):
        for name, gpu, *frame, registers, more in FUNCTION.findall(path.read_text()):
            shared = SHARED.search(more)
            cell = int(registers), *map(int, frame), int(shared[1]) if shared else 0
            found.setdefault((path.parent.stem, name), {})[int(gpu)] = cell
    names = readable(list(found))
    return {names[key]: cells for key, cells in found.items()}


def version():
    text = next(KERNELS.rglob('*.ptx/*.ptx')).read_text()
    return re.search(r'release \S+, V(\S+)', text)[1]


def write(path):
    rows = measured()
    gpus = sorted({gpu for cells in rows.values() for gpu in cells})
    lines = [f'{name} | {" | ".join(":".join(map(str, cells[g] if any(cells[g][1:]) else cells[g][:1])) for g in gpus)}\n'
             for name, cells in sorted(rows.items())]
    pathlib.Path(path).write_text(f'nvcc {version()} | {" | ".join(f"sm_{g}" for g in gpus)}\n{HEAD}{"".join(lines)}')


def table():
    """(version of nvcc, the rows as measured() has them)"""
    head, *lines = [line for line in TABLE.read_text().splitlines() if not line.startswith('#')]
    nvcc, *gpus = [word.strip() for word in head.split('|')]
    rows = {}
    for line in lines:
        name, *cells = [word.strip() for word in line.split('|')]
        cells = [tuple(map(int, cell.split(':'))) for cell in cells]
        rows[name] = {int(gpu[3:]): cell + (0,) * (5 - len(cell)) for gpu, cell in zip(gpus, cells)}
    return nvcc.split()[1], rows


def warps(registers):
    return min(WARPS, REGISTERS // (-(-registers * 32 // UNIT) * UNIT))


def worse(now, before):
    """Why, or None."""
    for what, a, b in zip(('of stack', 'of spill stores', 'of spill loads', 'of shared memory'), now[1:], before[1:]):
        if a > b:
            return f'{a} bytes {what}, before {b}'
    if warps(now[0]) < warps(before[0]):
        return f'{now[0]} registers, before {before[0]}: {warps(now[0])} warps instead of {warps(before[0])}'
    return None


def check(rows, known):
    again = 'SHERD_GOLDEN=tests/golden/ptxas.txt tests/gpu/test_ptxas.py writes the table again'
    found = [f'{name} is not in the table' for name in sorted(rows.keys() - known.keys())]
    found += [f'{name} is in the table only' for name in sorted(known.keys() - rows.keys())]
    for name in sorted(rows.keys() & known.keys()):
        for gpu, cell in rows[name].items():
            why = worse(cell, known[name][gpu]) if gpu in known[name] else None
            found += [f'{name} on sm_{gpu}: {why}'] if why else []
    return [*found, again] if found else []


def finds():
    """The rule itself: growth is found, the same and less are not."""
    rule = [((40, 0, 0, 0, 0), (32, 0, 0, 0, 0), True), ((30, 0, 0, 0, 0), (32, 0, 0, 0, 0), False),
            ((31, 0, 0, 0, 0), (30, 0, 0, 0, 0), False), ((32, 8, 0, 0, 0), (32, 0, 0, 0, 0), True),
            ((32, 8, 4, 4, 0), (32, 8, 4, 0, 0), True), ((32, 8, 4, 4, 64), (32, 8, 4, 4, 0), True)]
    return [f'{now} after {before}' for now, before, bad in rule if bool(worse(now, before)) != bad]


def main():
    if not list(KERNELS.rglob('*.ptx/said')):
        job.skip_all('this build has no kernels of nvcc (configure --with-cuda=yes)')
    if os.environ.get('SHERD_GOLDEN'):
        write(os.environ['SHERD_GOLDEN'])
        job.skip_all(f'wrote {os.environ["SHERD_GOLDEN"]}')
    nvcc, known = table()
    if version() != nvcc:
        job.skip_all(f'the table is of nvcc {nvcc}, this is {version()}')
    rows = measured()
    return job.run_cases([('more is found, less is not', finds), (f'{len(rows)} kernels need no more than before', check, rows, known)])


if __name__ == '__main__':
    sys.exit(main())
