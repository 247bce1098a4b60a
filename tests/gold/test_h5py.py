#!/usr/bin/env python3
"""A checkpoint as others see it: h5py finds the tensors by name, shape, type and value, and the digests can be computed
again from doc/checkpoint-format.md alone. Prints TAP."""
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy as np
except ImportError as missing:
    system = '/usr/bin/python3'  # where distributions put h5py, when another Python comes first in PATH
    if sys.executable != system and os.path.exists(system):
        os.execv(system, [system, __file__])
    print(f'1..0 # SKIP no {missing.name} for {sys.executable}')
    sys.exit(0)

STATES = ['model', 'optimizer/exp_avg', 'optimizer/exp_avg_sq']
BLOCK = 1 << 20
# What tests/mpi/ckpt_case.c saves, in its order.
SHAPES = {
    'wte.weight': (1021, 1031), 'layers.0.norm.weight': (13,), 'layers.0.attn.weight': (127, 64), 'layers.0.bias': (1,),
    'layers.1.conv.weight': (3, 5, 7), 'layers.1.deep.weight': (2, 3, 5, 7), 'layers.1.wide': (1, 65537),
    'head.weight': (2048, 512),
}


def mix(x):
    """SplitMix64's finisher on uint64 arrays."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return x ^ (x >> np.uint64(31))


def known_bits(state, tensor, elems):
    i = np.arange(elems, dtype=np.uint64)
    bits = mix(i * np.uint64(3) + np.uint64(state) + (np.uint64(tensor) << np.uint64(48))).astype(np.uint32)
    if STATES[state] == 'model':  # which may be in halves, and then has one NaN only
        bits[(bits & 0x7fffffff) > 0x7f800000] = 0x7fc00000
    return bits


def block_sums(bits, seed):
    """Digests of a tensor, from the formula in the format's description."""
    sums = []
    for block in range(0, (len(bits) + BLOCK - 1) // BLOCK):
        part = bits[block * BLOCK:(block + 1) * BLOCK].astype(np.uint64)
        place = np.arange(1, len(part) + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
        place += mix(np.array([seed ^ np.uint64(block)], dtype=np.uint64))[0]
        sums.append(mix(part ^ place).sum(dtype=np.uint64))
    return sums


def check_names(f):
    assert sorted(f) == ['digest', 'meta', 'model', 'optimizer'], sorted(f)
    for state in STATES:
        assert list(f[state]) == list(SHAPES), list(f[state])


def check_shapes(f):
    for state in STATES:
        for name, shape in SHAPES.items():
            data = f[state][name]
            assert data.shape == shape and data.dtype == np.dtype('<f4'), (name, data.shape, data.dtype)
            assert data.chunks is None and data.compression is None


def check_values(f):
    for s, state in enumerate(STATES):
        for t, name in enumerate(SHAPES):
            bits = f[state][name][...].reshape(-1).view(np.uint32)
            assert (bits == known_bits(s, t, len(bits))).all(), (state, name)


def check_places(f):
    """Tensors lie end to end, states one after the other, from a page boundary to the end of the file."""
    at = f['model/wte.weight'].id.get_offset()
    assert at % 4096 == 0
    for state in STATES:
        for name in SHAPES:
            data = f[state][name].id
            assert data.get_offset() == at, name
            at += data.get_storage_size()
    assert at == pathlib.Path(f.filename).stat().st_size


def check_meta(f):
    meta = f['meta']
    assert meta.attrs['format'] == b'sherd-checkpoint'
    wanted = {'format_major': 1, 'step': 7, 'samples': 224, 'tokens': 229376, 'updates': 6, 'block_elems': BLOCK}
    for name, value in wanted.items():
        assert meta.attrs[name] == value, name
    assert meta['config'][()] == b'training:\n  steps: 7\n'
    assert meta['guard'][()] == b''


def check_digests(f):
    try:
        xxh3 = ctypes.CDLL('libxxhash.so.0').XXH3_64bits
    except OSError:
        return 'no libxxhash.so.0'
    xxh3.restype, xxh3.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
    for s, state in enumerate(STATES):
        sums = []
        for name in SHAPES:
            h = mix(np.array([xxh3(name.encode(), len(name))], dtype=np.uint64) ^ np.uint64(7))
            seed = mix(h + np.uint64(s))[0]
            sums += block_sums(f[state][name][...].reshape(-1).view(np.uint32), seed)
        assert (np.array(sums, dtype=np.uint64) == f['digest'][state][...]).all(), state
    return None


def make_checkpoint(folder):
    """With the build's own test program, as one process: MPI allows that without a launcher."""
    program = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).resolve() / 'tests/mpi/test_ckpt'
    if not program.exists():
        return None, f'{program} is not built'
    path = pathlib.Path(folder) / 'reference.h5'
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1')
    done = subprocess.run([str(program), str(path)], capture_output=True, text=True, timeout=120, env=env)
    return (path, None) if done.returncode == 0 else (None, done.stdout + done.stderr)


def main():
    checks = [check_names, check_shapes, check_values, check_places, check_meta, check_digests]
    failed = 0
    np.seterr(over='ignore')
    with tempfile.TemporaryDirectory() as folder:
        path, why = make_checkpoint(folder)
        if path is None:
            print(f'1..1\n# {why}\nnot ok 1 - make a checkpoint')
            return 1
        print(f'1..{len(checks)}')
        with h5py.File(path, 'r') as f:
            for number, check in enumerate(checks, 1):
                try:
                    skip = check(f)
                    print(f'ok {number} - {check.__name__}' + (f' # SKIP {skip}' if skip else ''))
                except AssertionError as wrong:
                    failed += 1
                    print(f'# {wrong}\nnot ok {number} - {check.__name__}')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
