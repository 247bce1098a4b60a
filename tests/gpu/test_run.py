#!/usr/bin/env python3
"""A rehearsal of the first hour on a GPU: tests/gpu/run and tests/gpu/bench, every part and option of them. On emulated
GPUs all parts run; elsewhere `run` says that there is no GPU and skips, and `bench` measures a toy on the CPU. Prints
TAP."""
import contextlib
import functools
import io
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / 'gold')]
import job

SPEED = ['--peak-tflops', '1', '--bandwidth-tbs', '0.04', '--rounds', '1', '--steps', '6']
TOY_ROWS = ['sherd ', 'linear_bwd_w ', 'adamw ', 'idle between operations', 'rows per chunk', 'no_shard ', 'full_shard ',
            'checkpoint of step 3: ', 'host: ']
GPU_ROWS = ['all  ', 'deterministic ', 'any order ', 'own kernels ']
LONG = bool(os.environ.get('SHERD_LONG'))


def is_emulated():
    return b'SHERD_EMULATED_GPUS' in pathlib.Path(os.environ['SHERD']).read_bytes()


def lacks(text, *lines):
    """A complaint for each text that no line starts with."""
    return [f'no line begins with "{line}" in:\n{text}' for line in lines
            if not any(found.startswith(line) for found in text.splitlines())]


def run(*words, status=0, **environment):
    """(output, complaints)"""
    done = subprocess.run([HERE / 'run', '--build', os.environ['SHERD_BUILDDIR'], *words], capture_output=True, text=True,
                          env={**os.environ, **environment}, stdin=subprocess.DEVNULL)
    wrong = [] if done.returncode == status else [f'exit {done.returncode}, expected {status}:', done.stdout, done.stderr]
    return done.stdout, wrong


def rows(path):
    """The rows of a file with one JSON object per line."""
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def skips():
    text, wrong = run(CUDA_VISIBLE_DEVICES='')
    return wrong + lacks(text, '1..0 # SKIP no GPU: ', '0 passed, 0 failed, 1 skipped')


def runs_parts():
    """The parts that nothing else runs; test_train_emulated.py runs the others, and so does this test in check-long."""
    parts = ['smoke', 'kernels:softmax', 'memcheck:elem'] + (['torch', 'learn', 'mesh', 'tiles', 'context', 'tensor', 'stages', 'checkpoint', 'plugin'] if LONG else [])
    text, wrong = run('--out', 'results', *parts)
    wrong += lacks(text, 'gpu/smoke ', '# 1x2 nccl losses', 'gpu/kernels:softmax ', 'gpu/memcheck:elem ', '    skipped: ')
    found = {row['test']: row for row in rows('results/results.jsonl')}
    if found['gpu/smoke']['passed'] != 5 or found['gpu/kernels:softmax']['failed'] or not found['gpu/memcheck:elem']['skipped']:
        wrong.append(f'results.jsonl: {found}')
    return wrong + lacks(pathlib.Path('results/tests.log').read_text(), '==== gpu/smoke', '==== gpu/memcheck:elem')


def stops_at_a_failure():
    """A launcher that fails: the parts after the first are skipped, and so are the cases after the first."""
    text, wrong = run('--out', 'stopped', '--stop', 'smoke', 'checkpoint', status=1, MPIRUN='/bin/false', MPI_KIND='mpich')
    found = {row['test']: row for row in rows('stopped/results.jsonl')}
    smoke, after = found['gpu/smoke'], found['gpu/checkpoint']
    if (smoke['failed'], len(smoke['skipped'])) != (1, 3) or after['skipped'] != ['gpu/smoke failed (--stop)']:
        wrong.append(f'results.jsonl: {found}')
    return wrong + lacks(text, '---- the last lines of')


def keeps_what_a_hang_printed():
    """A launcher that prints a line and hangs: the run is killed, and its line is in the log."""
    stub = pathlib.Path('hangs')
    stub.write_text('#!/bin/sh\necho "NCCL WARN out of reach" >&2\nexec sleep 600\n')
    stub.chmod(0o755)
    text, wrong = run('--out', 'hung', '--stop', 'checkpoint', status=1, MPIRUN=str(stub.resolve()), SHERD_RUN_SECONDS='2')
    return wrong + lacks(pathlib.Path('hung/tests.log').read_text(), '# NCCL WARN out of reach') + (
        [] if 'killed after 2 s' in text else [f'the last lines do not say so:\n{text}'])


def keeps_its_budget():
    text, wrong = run('--out', 'short', '--seconds', '1', 'smoke')
    return wrong + lacks(text, '    skipped: 1 s are left of --seconds 1')


@functools.lru_cache(None)
def has_torch(python):
    return subprocess.run([python, '-c', 'import torch'], capture_output=True).returncode == 0


def torch_python():
    """A python3 with PyTorch, or any."""
    return next((python for python in (sys.executable, job.SYSTEM_PYTHON) if has_torch(python)), sys.executable)


def bench(*words, status=0):
    """(output, rows, complaints)"""
    pathlib.Path('bench.jsonl').unlink(missing_ok=True)
    done = subprocess.run([sys.executable, HERE / 'bench', '--sherd', os.environ['SHERD'], '--json', 'bench.jsonl', *SPEED,
                           *words], capture_output=True, text=True, env={**job.environment(0)})
    wrong = [] if done.returncode == status else [f'exit {done.returncode}, expected {status}:', done.stdout, done.stderr]
    return done.stdout, rows('bench.jsonl') if pathlib.Path('bench.jsonl').exists() else [], wrong


def measures():
    device = 'cuda' if is_emulated() else 'cpu'
    python = torch_python()
    why = '--torch none' if is_emulated() else '' if has_torch(python) else f'{python} has no PyTorch'
    told = [f'PyTorch: left out: {why}' if why else 'PyTorch plain ']
    text, found, wrong = bench('--device', device, '--python', python, *(['--torch', 'none'] if is_emulated() else []), 'toy')
    names = {row.get('name') for row in found} | {row.get('operation') for row in found}
    missing = {'sherd', 'adamw', 'no_shard', 'full_shard'} - names
    if is_emulated():
        missing |= {'any order', 'own kernels'} - {row.get('way') for row in found}
        missing |= set() if any('best_us' in row for row in found) else {'products'}
        missing |= {'expert_linear', 'expert_linear_bwd_w'} - {row.get('operation') for row in found if 'own_us' in row}
    missing |= set() if any('host_seconds' in row for row in found) else {'host_seconds'}
    return wrong + lacks(text, *TOY_ROWS, *told, *(GPU_ROWS if is_emulated() else [])) + ([f'not in --json: {missing}'] if missing else [])


def survives_failures():
    """If PyTorch runs out of memory that is a row, and exit 0; if Sherd cannot start that is a row, and exit 1."""
    stub = pathlib.Path('python-without-memory')
    stub.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\n'
                    'echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB" >&2; exit 1\n')
    stub.chmod(0o755)
    text, found, wrong = bench('--device', 'cpu', '--python', stub.resolve(), 'toy')
    wrong += lacks(text, 'sherd ', 'PyTorch plain            failed: exit 1: out of memory: torch.OutOfMemoryError')
    wrong += [] if any('out of memory' in row.get('failed', '') for row in found) else [f'not in --json: {found}']
    text, found, more = bench('--device', 'cpu', '--sherd', '/bin/false', '--torch', 'none', 'toy', status=1)
    return wrong + more + lacks(text, 'sherd                    failed: exit 1')


def keeps_the_output(device):
    """Of a run that fails the row has one line and the log all, also if it was stopped."""
    wrong = []
    for end, seconds, why in ('exit 7', 280, 'exit 7: sherd: error: no way'), ('exec sleep 600', 10, 'stopped after 10 s'):
        stub = pathlib.Path('fails')
        stub.write_text(f'#!/bin/sh\necho first; echo "sherd: error: no way" >&2; {end}\n')
        stub.chmod(0o755)
        pathlib.Path('bench.log').unlink(missing_ok=True)
        text, _, more = bench('--device', device, '--sherd', stub, '--torch', 'none', '--seconds', str(seconds), '--log',
                              'bench.log', 'gpt2-1558m', status=1)
        wrong += more + lacks(text, f'sherd                    failed: {why}')
        wrong += lacks(pathlib.Path('bench.log').read_text(), '==== ', 'first', 'sherd: error: no way', f'---- {why}')
    return wrong


def packs():
    """All that is missing, with its packages; an archive with a window that sees all programs; a warning if it is large."""
    script, empty = HERE / 'pack', pathlib.Path('no-tools')
    empty.mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, script, '--build', empty], capture_output=True, text=True,
                          env={**os.environ, 'PATH': str(empty)})
    wrong = [] if done.returncode == 1 else [f'exit {done.returncode}', done.stdout]
    wrong += [f'no {name} in: {done.stderr}' for name in ('h5pcc.mpich', 'libhdf5-mpich-dev', 'patchelf', 'xz-utils')
              if f' {name}' not in done.stderr]
    pack, output, warning = job.load_script('tests/gpu/pack'), pathlib.Path('packed.tar.xz'), io.StringIO()
    for pack.LARGE_BYTES, warns in (50 << 20, False), (100, True):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(warning):
            pack.archive(empty, output)
        wrong += [] if bool(warning.getvalue()) == warns else [f'at {pack.LARGE_BYTES} it says: {warning.getvalue()}']
    window = output.read_bytes()[14:17]  # of the first block: the filter LZMA2, a byte follows, 2 << 25
    return wrong + ([] if window == b'\x21\x01\x1c' else [f'the filter is {window}'])


def main():
    os.environ.pop('SHERD_TEST_UNTIL', None)  # parts that begin late are skipped, which no case expects
    if is_emulated():
        job.need_launcher()
        os.environ['SHERD_EMULATED_GPUS'] = '1'
        cases = [('parts run on emulated GPUs', runs_parts), ('--stop ends at the first failure', stops_at_a_failure),
                 ('--seconds is kept', keeps_its_budget), ('a run that hangs keeps what it printed', keeps_what_a_hang_printed),
                 ('bench keeps what a failed run printed', functools.partial(keeps_the_output, 'cuda')), ('the benchmark of a toy', measures)]
    else:
        cases = [('without a GPU it says so', skips), ('the benchmark of a toy', measures),
                 ('a run that fails is a row', survives_failures),
                 ('bench keeps what a failed run printed', functools.partial(keeps_the_output, 'cpu'))]
        if not has_torch(torch_python()):
            cases.append((f'a row of PyTorch # SKIP {torch_python()} has no PyTorch', lambda: []))
    cases.append(('what packing lacks, and how it packs', packs))
    return job.run_cases(cases)


if __name__ == '__main__':
    sys.exit(main())
