#!/usr/bin/env python3
"""The CUDA kernels of a plug-in: those of examples/plugins/relu2.cu are right by all checks and train as the CPU's, and each
mutant is named for what is wrong with it. On emulated GPUs, or on one (tests/gpu/run). Prints TAP."""
import os
import pathlib
import shutil
import subprocess
import sys

from trains import as_on_cpu, job, tiny

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.path[:0] = [str(HERE / 'emulated')]
import plugin

SHERD = os.environ['SHERD']
EMULATED = b'SHERD_EMULATED_GPUS' in pathlib.Path(SHERD).read_bytes()
NVCC = shutil.which('nvcc') or shutil.which('nvcc', path='/usr/local/cuda/bin')
MADE = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')) / 'tests/gpu/relu2.so'    # by `make device-programs`
BLOCKS, STREAM = '(unsigned)((n + 255) / 256)', ', 0, (cudaStream_t)call->queue'
STORE = 'out[i] = (E)(dy ? backward((float)dy[i], (float)x[i]) : forward((float)x[i]));'
MADE_OF = 'float made = dy ? backward((float)dy[i], (float)x[i]) : forward((float)x[i]); '
# {what is wrong: (text, the text in its place, the check that names it)}
MUTANTS = {
    'another stream': (STREAM, '', 'queue'),
    'the first block alone': (BLOCKS, '1', 'outside'),
    'not the last element': ('if (i < n)', 'if (i + 1 < n)', 'outside'),
    'one element more': ('if (i < n)', 'if (i <= n)', 'outside'),
    'added to what was there': (STORE, f'{{ {MADE_OF} out[i] = (E)((float)out[i] + made); }}', 'outside'),
    'bfloat16 alone': (STORE, f'{{ {MADE_OF} out[i] = (E)(sizeof(E) == 2 ? 1.05f * made : made); }}', 'types'),
    'dy and x exchanged': ('backward((float)dy[i], (float)x[i])', 'backward((float)x[i], (float)dy[i])', 'types'),
    'a NaN is hidden': (STORE, f'{{ {MADE_OF} out[i] = (E)fmaxf(made, -1e30f); }}', 'nan'),
    'by the place of an element': (STORE, f'{{ {MADE_OF} out[i] = (E)(made * (i % 3 ? 1 : 1.0000005f)); }}', 'bits'),
    'in place': (STORE, f'{{ {MADE_OF} out[i] = (E)0.0f; out[i] = (E)(dy ? backward((float)dy[i], (float)x[i]) : made); }}', 'in place'),
    'no kernel of the backward': ('        on_gpu_bwd),', '        nullptr),', 'text'),
    'a status': ('return (int)cudaGetLastError();', 'return 7;', 'types'),
}


def compile_plugin(library, old='', new=''):
    source = (TOP / 'examples/plugins/relu2.cu').read_text()
    if source.count(old or 'relu2<<<') < 1:
        raise job.Failed(f'{old} is not in the example')
    if EMULATED:
        return plugin.compile_plugin(source.replace(old, new), library)
    path = pathlib.Path(library).with_suffix('.cu')
    path.write_text(source.replace(old, new))
    subprocess.run([NVCC, '-arch=native', '-shared', '-Xcompiler', '-fPIC,-fopenmp', f'-I{TOP}/include', '-o', library, path], check=True)


def check(library, *words, **more):
    done = subprocess.run([SHERD, 'plugin', 'check', library, *words, '--device=cuda'], capture_output=True, text=True,
                          env={**job.environment(0), **more})
    return done.returncode, done.stdout + done.stderr


def example():
    code, text = check('relu2.so')
    return [] if code == 0 and text.count('  ok ') == 11 and text.count('kernels ref, cpu, cuda') == 2 else [f'{code}: {text}']


def mutant(old, new, named):
    compile_plugin('mutant.so', old, new)
    code, text = check('mutant.so')
    return [] if code == 3 and any(line.split(': ')[1:2] == [named] for line in text.splitlines()) else [f'{code}: {text}']


def fault():
    """A kernel that the GPU cannot survive is named at once."""
    code, text = check('relu2.so', SHERD_EMULATED_FAULT='40')
    return [] if code == 3 and 'relu2: ' in text and ': GPU 0: ' in text and '(cuda, x [' in text else [f'{code}: {text}']


def refused():
    """Without a GPU, and with nothing to try there."""
    subprocess.run(['cc', '-shared', '-fPIC', f'-I{TOP}/include', '-o', 'focal.so', TOP / 'examples/plugins/focal.c', '-lm'], check=True)
    wrong = []
    for library, more, told in (('relu2.so', {'SHERD_EMULATED_GPUS': '0'}, 'there is no GPU to try kernels on: '), ('focal.so', {}, 'only losses')):
        code, text = check(library, **more)
        wrong += [] if code == 2 and told in text else [f'{code}: {text}']
    return wrong


def trains(mesh, precision):
    return as_on_cpu('gpt2', mesh, precision, {'plugin.files': str(pathlib.Path('relu2.so').absolute()), 'model.ffn_op': 'relu2'})


def main():
    if EMULATED:
        job.need_emulated_gpus()
    if not EMULATED and not NVCC and not MADE.exists():
        job.skip_all('no nvcc')
    if not EMULATED and MADE.exists():
        shutil.copy(MADE, 'relu2.so')
    else:
        compile_plugin('relu2.so')
    code, text = check('relu2.so')
    if code == 2 and ('built without CUDA' in text or 'there is no GPU' in text):
        job.skip_all(text.strip())
    tiny.write_tokens()
    cases = [('the example', example), ('training', trains, '1x1', 'float32'), ('on two ranks', trains, '1x2', 'bfloat16')]
    cases += [(f'named: {name}', mutant, *row) for name, row in MUTANTS.items()] if EMULATED or NVCC else []
    return job.run_cases(cases + ([('a fault', fault), ('refused', refused)] if EMULATED else []))


if __name__ == '__main__':
    sys.exit(main())
