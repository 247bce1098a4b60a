#!/usr/bin/env python3
"""configure with fake installations built around the real MPI: the named installation is taken, or refused by name;
never another one. Each run of configure ends after MPI and HDF5, at a BLAS that does not exist, or at CUDA. Prints TAP."""
import os
import pathlib
import shutil
import subprocess
import sys

TOP = pathlib.Path(os.environ.get('SHERD_SRCDIR') or pathlib.Path(__file__).resolve().parents[2])
KIND = os.environ.get('MPI_KIND', '')
OTHER = {'openmpi': 'mpich', 'mpich': 'openmpi'}
NAME = {'openmpi': 'Open MPI', 'mpich': 'MPICH'}
HERE = pathlib.Path.cwd()
WRAPPER = shutil.which(f'mpicc.{KIND}') or shutil.which('mpicc')
LAUNCHER = os.environ.get('MPIRUN', '')
HDF5 = f'/usr/include/hdf5/{KIND}', f'/usr/lib/{os.uname().machine}-linux-gnu/hdf5/{KIND}'  # Debian's


def script(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('\n'.join(('#!/bin/sh', *lines, '')))
    path.chmod(0o755)


def make_places():
    """own, cc: a whole installation in a folder; broken: a wrapper whose flags do not link; alien: wrappers of one MPI under
    the names of the other; flags: HDF5's flags, which name the other MPI; cuda: compiler and headers without a library; rhel, sles, cray:
    what such systems have."""
    # Like Intel MPI's wrapper: quotes, and a word that make would expand.
    quoted = f"""{WRAPPER} -show | sed 's/-I\\([^ ]*\\)/-I"\\1"/g; s/$/ -Wl,-rpath,$:$\\/../'"""
    script(HERE / 'own/bin/mpicc', quoted)
    script(HERE / 'own/bin/mpirun', f'exec {LAUNCHER} "$@"')
    script(HERE / 'broken/mpicc', 'echo cc -I/nowhere -lnowhere')
    for name in ('mpicc', f'mpicc.{OTHER[KIND]}', 'mpicc_abi'):
        script(HERE / 'alien' / name, f'exec {WRAPPER} "$@"')
    (HERE / 'flags').mkdir()
    compile, link = pkg_config('--cflags', f'hdf5-{OTHER[KIND]}'), pkg_config('--libs', f'hdf5-{OTHER[KIND]}')
    (HERE / f'flags/hdf5-{KIND}.pc').write_text(
        f'Name: hdf5\nDescription: of another MPI\nVersion: 1\nCflags: {compile}\nLibs: {link}\n')
    script(HERE / 'cc/mpicc', f'exec {WRAPPER} "$@"')
    script(HERE / 'cc/mpirun', f'exec {LAUNCHER} "$@"')
    script(HERE / 'cuda/bin/nvcc', 'case $* in *--version*) echo "release 13.0, V13.0.1" ;; *) : >conftest.o ;; esac')
    (HERE / 'cuda/include').mkdir()
    (HERE / 'cuda/include/cuda_runtime.h').write_text('enum { cudaSuccess };\n#define cudaDeviceSynchronize in_no_library\nint in_no_library(void);\n')
    (HERE / 'cuda/include/cublasLt.h').write_text('enum { CUBLAS_STATUS_SUCCESS };\n')
    make_systems()
    return bool(link)


def make_systems():
    """rhel: wrappers in the folder of a module, and no pkg-config; sles: one folder for HDF5, with lib64; cray: a compiler that links
    all by itself, and srun."""
    include, library = HDF5[0], HDF5[1]
    script(HERE / 'rhel/bin/mpicc', f'exec {WRAPPER} "$@"')
    script(HERE / 'rhel/bin/mpirun', f'exec {LAUNCHER} "$@"')
    script(HERE / 'rhel/bin/h5pcc', f'echo gcc -I{include} -L{library} -Wl,-rpath,{library} -lhdf5')
    script(HERE / f'rhel/bin/h5pcc.{KIND}', 'exit 1')  # a name of Debian's
    (HERE / 'sles').mkdir()
    (HERE / 'sles/include').symlink_to(include)
    (HERE / 'sles/lib64').symlink_to(library)
    script(HERE / 'cray/bin/cc', f'exec {WRAPPER} -I{include} "$@" -L{library} -Wl,-rpath,{library} -lhdf5')
    script(HERE / 'cray/bin/srun', f'exec {LAUNCHER} "$@"')


def pkg_config(*words):
    return subprocess.run(['pkg-config', *words], capture_output=True, text=True).stdout.strip()


def has_multiarch_hdf5():
    return pathlib.Path(HDF5[0], 'hdf5.h').exists()


def cases(two_mpis):
    """What the case shows, arguments, environment, what configure must say, whether this machine can show it."""
    own, path = HERE / 'own', os.environ['PATH']
    no_hdf5 = '' if has_multiarch_hdf5() else 'no HDF5 in such folders'
    return [
        ('a misspelt option', ['--with-mp=openmpi'], {}, ['unrecognized options: --with-mp'], ''),
        ('copies of loops for no such level', ['--with-clones=v2'], {}, ['--with-clones=v2: say v1 (no copies), v3 (AVX2)'], ''),
        ('GPUs by name, each once and in order', ['--with-cuda-arch=B200 h200,h100 89 rtx-pro-6000 b300'], {},
         ['compute capabilities to compile for, if there is CUDA... 89 90 100 103 120'], ''),
        ('a GPU with no such name', ['--with-cuda-arch=80 h900'], {},
         ['--with-cuda-arch=80 h900: h900 is no GPU known here; say a compute capability, such as 90, or a100, l40s, h100,'], ''),
        ('no GPU at all', ['--with-cuda-arch='], {}, ['--with-cuda-arch= names no GPU'], ''),
        ('a folder without MPI', ['--with-mpi=/nowhere'], {}, ['--with-mpi=/nowhere: there is no program /nowhere/bin/mpicc'], ''),
        ('an MPI in a folder, with its launcher', [f'--with-mpi={own}'], {},
         [f'links MPI programs with the flags of {own}/bin/mpicc... yes', f'{NAME[KIND]} ', f'... {own}/bin/mpirun'], ''),
        ('the launcher beside CC', [f'CC={HERE}/cc/mpicc'], {}, [f'... {HERE}/cc/mpirun'], ''),
        ('a folder and a CC of another', [f'--with-mpi={own}', f'CC={WRAPPER}'], {}, ['by itself', 'drop one of the two'], ''),
        ('an MPI that is not there', [f'--with-mpi={OTHER[KIND]}'], {'PATH': f'{HERE}/alien:{path}'},
         [f'no {NAME[OTHER[KIND]]} found', f'lib{OTHER[KIND]}-dev'], ''),
        ('an MPI that has not the ABI', ['--with-mpi=abi'], {'PATH': f'{HERE}/alien:{path}'}, ['no mpicc_abi found in PATH'], ''),
        ('a broken MPI', [], {'PATH': f'{HERE}/broken:{path}'}, [f'what "{HERE}/broken/mpicc -show" prints'], ''),
        ('a launcher that is not there', ['MPIRUN=/nowhere/mpirun'], {}, ['MPIRUN=/nowhere/mpirun: there is no such program'], ''),
        ("HDF5 in Debian's folders", [f'--with-mpi={KIND}', '--with-hdf5=/usr'], {}, ['parallel HDF5 (/usr)... yes'],
         no_hdf5),
        ("RHEL's module", [], {'PATH': f'{HERE}/rhel/bin:{path}', 'PKG_CONFIG_LIBDIR': '/nowhere'},
         [f'{HERE}/rhel/bin/mpicc... yes', f'... {HERE}/rhel/bin/mpirun', f'parallel HDF5 ({HERE}/rhel/bin/h5pcc)... yes'], no_hdf5),
        ("SLES's HDF5, in lib64", [f'--with-mpi={KIND}', f'--with-hdf5={HERE}/sles'], {}, [f'parallel HDF5 ({HERE}/sles)... yes'], no_hdf5),
        ("Cray's cc", ['CC=cc', 'MPIRUN=srun'], {'PATH': f'{HERE}/cray/bin:{path}', 'PKG_CONFIG_LIBDIR': '/nowhere'},
         ['whether cc links MPI programs by itself... yes', f'for the launcher of {NAME[KIND]}', '... srun', 'parallel HDF5 (cc itself)... yes'],
         no_hdf5),
        ("HDF5's flags of another MPI", [f'--with-mpi={KIND}'], {'PKG_CONFIG_PATH': f'{HERE}/flags'},
         [f'(pkg-config hdf5-{KIND})... built for another MPI'], '' if two_mpis else 'no second MPI with HDF5'),
        ('a CUDA without its library, which nothing is linked with', [f'--with-cuda={HERE}/cuda', '--with-blas=auto'], {},
         [f'--with-cuda={HERE}/cuda: libcudart_static.a does not link', "cuda_LIBS=''"], ''),
    ]


def configure(words, env):
    """What configure prints, with what it has noted to link CUDA with, and whether it ended with an error."""
    folder = HERE / 'build'
    folder.mkdir(exist_ok=True)
    # Checks that do not depend on MPI run once; another CC needs its own answers.
    cache = '/dev/null' if any(word.startswith('CC=') for word in words) else HERE / 'cache'
    words = [TOP / 'configure', f'--cache-file={cache}', '--with-blas=/nowhere', *words]
    clean = {key: value for key, value in os.environ.items() if key not in ('CC', 'CFLAGS', 'MPIRUN', 'MAKEFLAGS')}
    done = subprocess.run(words, cwd=folder, env=dict(clean, **env), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    log = folder / 'config.log'
    noted = log.read_text(errors='replace').splitlines() if log.exists() else []
    return done.stdout + done.stderr + ''.join(line for line in noted if line.startswith('cuda_LIBS=')), done.returncode != 0


def main():
    if not (TOP / 'configure').exists() or KIND not in OTHER or not WRAPPER or not LAUNCHER:
        print('1..0 # SKIP needs configure, and Open MPI or MPICH with mpicc and mpirun')
        return 0
    two_mpis = make_places()
    all_cases = cases(two_mpis)
    print(f'1..{len(all_cases)}')
    failed = 0
    for number, (name, words, env, wanted, cannot) in enumerate(all_cases, 1):
        if cannot:
            print(f'ok {number} - {name} # SKIP {cannot}')
            continue
        text, ended = configure(words, env)
        missing = [line for line in wanted if line not in text]
        if missing or not ended:
            failed += 1
            print(*(f'# {line}' for line in text.splitlines()[-20:] + ['missing: ' + '; '.join(missing)]), sep='\n')
        print(f"{'not ok' if missing or not ended else 'ok'} {number} - {name}", flush=True)
    return int(failed != 0)


if __name__ == '__main__':
    sys.exit(main())
