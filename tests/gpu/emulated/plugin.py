"""A plug-in with CUDA kernels for emulated GPUs, by a C++ compiler."""
import pathlib
import re
import subprocess

TOP = pathlib.Path(__file__).resolve().parent.parent.parent.parent
LAUNCH = re.compile(r'(\w+)<<<(.*?)>>>\s*\((.*?)\);', re.S)


def split(text):
    """At commas outside of parentheses."""
    parts, depth = [''], 0
    for c in text:
        depth += (c in '([{') - (c in ')]}')
        parts = parts + [''] if c == ',' and not depth else parts[:-1] + [parts[-1] + c]
    return [part.strip() for part in parts]


def launch(found):
    kernel, how, arguments = found.groups()
    given = split(how)
    grid, block, shared, stream = given + ['0', 'nullptr'][len(given) - 2:]
    return (f'sh_emulated_call("{kernel}", [](auto... a) {{ {kernel}(a...); }}, dim3({grid}), dim3({block}), {shared}, '
            f'(void *)({stream}), {arguments});')


def compile_plugin(source, library):
    """source: its text."""
    path = pathlib.Path(library).with_suffix('.cc')
    path.write_text(LAUNCH.sub(launch, source))
    subprocess.run(['c++', '-std=c++17', '-O1', '-fopenmp', '-shared', '-fPIC', f'-I{TOP}', f'-I{TOP}/include',
                    f'-I{TOP}/tests/gpu/emulated/shim', '-o', library, path], check=True)
