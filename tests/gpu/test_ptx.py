#!/usr/bin/env python3
"""What nvcc made of the kernels, run without a GPU: its PTX in a simulator (ptx/machine.py), its code for the host on a
double of the CUDA runtime (ptx/cudart.c), with the cases that the emulated kernels have. Faults that are planted into
the PTX must be found. Prints TAP. SHERD_LONG=1 goes through all shapes on all targets, which takes much longer.

Only in a build that was configured --with-cuda=yes; its rule for NAME.gpu.o keeps the PTX in NAME.ptx.
"""
import concurrent.futures
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / 'gold'), str(HERE / 'ptx')]
import job

job.need_modules('numpy')
import module
import simulator

LONG = bool(os.environ.get('SHERD_LONG'))
BUILD = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.'))
KERNELS = BUILD / 'kernels/cuda'
# Programs, and the files whose kernels they launch.
PROGRAMS = {
    'attention': ('attention', 'attention_any'),
    'delta': ('conv', 'gate', 'rule', 'rule_bwd', 'scan_bwd', 'heads', 'vector'),
    'elem': ('act', 'adamw', 'bias', 'coded', 'damage', 'embed', 'exact', 'init', 'kv', 'mixsum', 'momentum', 'norm', 'qk_norm', 'rope',
             'sink', 'unpack', 'vector', 'softmax', 'pairs', 'forms'),
    'head': ('softmax', 'product', 'exact', 'vector', 'forms', 'top'),
    'linear': ('product', 'vector'),
    'moe': ('expert', 'expert_any', 'expert_bias', 'plan', 'product', 'route', 'rows', 'vector', 'wave'),
    'muon': ('muon', 'newton', 'even_rows', 'product'),
    'softmax': ('softmax', 'exact', 'vector', 'forms', 'top'),
}


# What is planted: a program and one of its tests; a file and part of a kernel's name; what is replaced there, and by
# what. \1 and the like are groups.
FORWARD = 'attention', 'test_large_scores', 'attention', '7forwardILi32E'
PLANTED = {
    'a matrix is loaded without .trans': (*FORWARD, r'(ldmatrix\.\S+)\.trans', r'\1'),
    'halves are swapped in a conversion to bf16': (
        *FORWARD, r'(cvt\.rn\.bf16x2\.f32 [^,]+), ([^,]+), ([^;]+);', r'\1, \3, \2;'),
    'a copy is not waited for': (*FORWARD, r'cp\.async\.wait_all;', ''),
    'a mask of keys is shifted by one': (*FORWARD, r'setp\.gt\.s32', 'setp.ge.s32'),
    'a barrier is missing': ('elem', 'damage', 'damage', 'count_bad', r'bar\.sync\s+0;', ''),
    'a lane is missing in the mask of a shuffle': (
        'elem', 'elem_norm', 'norm', '11norm_kernel', r'((?:mov\.u32\s+%r\d+|shfl[^;]*), )-1;', r'\g<1>2147483647;'),
    'a shuffle reads another lane': (
        'elem', 'elem_norm', 'norm', '11norm_kernel', r'(mov\.u32\s+%r\d+, |shfl[^,;]*,[^,;]*, )16\b', r'\g<1>8'),
    'a constant is wrong': ('elem', 'elem_act', 'act', 'gelu', '0f3D922279', '0f3D952279'),
    'an index is off by one': ('elem', 'elem_vector', 'vector', '3addI', r'(st\.global\.\w+\s+\[%rd\d+)\]', r'\1+4]'),
    'a load is too wide for its address': (
        'elem', 'elem_vector', 'vector', '3addI', r'ld\.global\.f32(\s+%f\d+, \[%rd\d+)', r'ld.global.f64\1'),
    'a store is missing': ('elem', 'elem_update', 'adamw', '', r'st\.global\.[^;]*;', ''),
    'a predicate is inverted': ('elem', 'elem_bias', 'bias', '', r'@(%p\d+ bra)', r'@!\1'),
    'a constant of pow is wrong': (
        'elem', 'elem_rope_table', 'rope', 'accurate_pow', '0d3FE000000000000B', '0d3FE001000000000B'),
    'a barrier is missing between tiles': ('linear', 'test_own_kernel', 'product', 'multiply', r'bar\.sync\s+0;', ''),
    'a tile is read beside its row': (
        'head', 'test_refused', 'product', 'multiply', r'(ld\.shared\.f32\s+%f\d+, \[%r\d+)\+260\]', r'\1+256]'),
    'a factor of LoRA is added': ('linear', 'test_lora', 'vector', '6scaled', r'mul\.rn\.f32', 'add.rn.f32'),
    'the base of exponentials is wrong': ('head', 'test_f32', 'softmax', 'softmax_kernel', '0f3FB8AA3B', '0f3FB8B03B'),
    'rows are not turned into columns': (
        'moe', 'moe_experts', 'expert', 'expert_weights', r'(ldmatrix\.\S+)\.trans', r'\1'),
    'what is past the end of a row is not zero': (
        'moe', 'moe_experts', 'expert', 'expert_rows', r'selp\.b32\s+(%r\d+), (?:16, 0|0, 16), %p\d+;', r'mov.u32 \1, 16;'),
    'a choice is dealt to its neighbour': ('moe', 'moe_rows', 'plan', 'deal_parts', r'popc\.b32', 'clz.b32'),
    'a wave is full one row too early': ('moe', 'moe_waves', 'wave', 'route_wave', r'setp\.gt\.s64', 'setp.ge.s64'),
    'ties go to the last expert': ('moe', 'moe_route_by_hand', 'route', '5routeE', r'not\.b32', 'mov.b32'),
    'a scale is read from the codes before it': (
        'elem', 'elem_codes', 'unpack', '6decodeItE', r'(ld\.global\.f32\s+%f\d+, \[%rd\d+\+)64\]', r'\g<1>60]'),
    'one addend is lost in an exact sum': ('elem', 'exact', 'exact', 'sum_squares', r'atom\.global\.add\.u64[^;]*;', ''),
}


def texts():
    """{90: {kernel file: its PTX}}; nvcc names the files by the target only if there are several."""
    found = {}
    for path in sorted(KERNELS.rglob('*.ptx/*.ptx')):
        text = path.read_text()
        found.setdefault(int(re.search(r'(?m)^\.target sm_(\d+)', text)[1]), {})[path.name.split('.')[0]] = text
    return found


def different_targets():
    """Of targets whose PTX is the same apart from its first lines, the highest."""
    found = {}
    for arch, ptx in sorted(texts().items(), reverse=True):
        found.setdefault(str({name: re.sub(r'(?m)^\.(target|version).*', '', text) for name, text in ptx.items()}), (arch, ptx))
    return dict(found.values())


def dealt(targets):
    """(target, program) of those that run: all of them, or each program on one of the targets, which take turns."""
    return [(arch, program) for i, program in enumerate(PROGRAMS) for k, arch in enumerate(targets)
            if LONG or i % len(targets) == k]


def simulate(program, ptx, test=None, few=not LONG):
    modules = [module.Module(ptx[name]) for name in PROGRAMS[program]]
    environment = {**({'SHERD_FEW_SHAPES': '1'} if few else {}), **({'SHERD_ONE_TEST': test} if test else {})}
    return simulator.run(BUILD / f'tests/gpu/ptx_{program}', modules, environment)


def computes(program, ptx):
    """(complaints, names of the kernels that ran)"""
    status, text, ran, faults = simulate(program, ptx)
    return [f'exit {status}', *faults, text] if status or faults else [], ran


def none_left(ptx, runs):
    left = {name for text in ptx.values() for name in module.Module(text).kernels}
    return [f'not run: {name}' for name in sorted(left.difference(*[run.result()[1] for run in runs]))]


def plant(text, kernel, pattern, by):
    """Into all kernels, and functions that they call, that have `kernel` in their names."""
    count = 0

    def change(match):
        nonlocal count
        if kernel not in match['name']:
            return match[0]
        body, n = re.subn(pattern, by, match[0])
        count += n
        return body
    for each in module.KERNEL, module.FUNCTION:
        text = each.sub(change, text)
    return text, count


def finds(ptx, program, test, name, kernel, pattern, by):
    changed, count = plant(ptx[name], kernel, pattern, by)
    if not count:
        return [f'there is no {pattern} in {name}.ptx']
    status, text, ran, faults = simulate(program, {**ptx, name: changed}, test, few=True)
    if not ran and not faults:
        return [f'{test} launches nothing', text]
    wrong = [fault for fault in faults if 'unknown' in fault]  # to the simulator: that finds nothing
    return wrong if status else ['not found', text]


def main():
    if not list(KERNELS.rglob('*.ptx/*.ptx')) or not (BUILD / 'tests/gpu/ptx_elem').exists():
        job.skip_all('this build has no kernels of nvcc (configure --with-cuda=yes)')
    targets = different_targets()
    first = next(iter(targets.values()))
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        runs = {(arch, program): pool.submit(computes, program, targets[arch]) for arch, program in dealt(targets)}
        found = {what: pool.submit(finds, first, *how) for what, how in PLANTED.items()}
        return job.run_cases(
            [(f'{program}, as compiled for sm_{arch}', lambda run=run: run.result()[0])
             for (arch, program), run in runs.items()] +
            [(f'all kernels ran, as compiled for sm_{arch}', none_left, ptx, [runs[arch, program] for program in PROGRAMS])
             for arch, ptx in targets.items() if LONG] +
            [(f'found: {what}', run.result) for what, run in found.items()])


if __name__ == '__main__':
    sys.exit(main())
