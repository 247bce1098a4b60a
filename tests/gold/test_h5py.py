#!/usr/bin/env python3
"""A checkpoint as other programs see it: h5py finds the tensors by name, shape, type and value, and
doc/checkpoint-format.md is enough to recompute the digests. Prints TAP."""
import ctypes
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy as np
except ImportError as missing:
    system = '/usr/bin/python3'  # distributions put h5py there; another Python may come first in PATH
    if sys.executable != system and os.path.exists(system):
        os.execv(system, [system, __file__])
    print(f'1..0 # SKIP no {missing.name} for {sys.executable}')
    sys.exit(0)

STATES = ['model', 'optimizer/exp_avg', 'optimizer/exp_avg_sq']
BLOCK = 1 << 20
# The tensors that tests/mpi/ckpt_case.c saves, in its order.
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
    """As tests/mpi/ckpt_case.c makes them."""
    bits = np.arange(state, state + 3 * elems, 3, dtype=np.uint32) * np.uint32(0x9e3779b1) + np.uint32(
        tensor * 0x85157af5 & 0xffffffff)
    for shift, factor in (15, 0x9e3779b9), (13, 0xbf58476d):
        bits = (bits ^ bits >> np.uint32(shift)) * np.uint32(factor)
    bits ^= bits >> np.uint32(16)
    if STATES[state] == 'model':  # which may be in halves, and then has only one NaN
        bits[(bits & 0x7fffffff) > 0x7f800000] = 0x7fc00000
    return bits


def block_sums(bits, seed):
    """Digests of a tensor, by the formula in the description of the format."""
    sums = []
    for block in range(0, (len(bits) + BLOCK - 1) // BLOCK):
        part = bits[block * BLOCK:(block + 1) * BLOCK].astype(np.uint64)
        place = np.arange(1, len(part) + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
        place += mix(np.array([seed ^ np.uint64(block)], dtype=np.uint64))[0]
        sums.append(mix(part ^ place).sum(dtype=np.uint64))
    return sums


def check_names(f):
    assert sorted(f) == ['digest', 'index', 'meta', 'model', 'optimizer'], sorted(f)
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
    """Tensors lie end to end, states one after the other, from a page boundary to the index, which ends the file."""
    at = f['model/wte.weight'].id.get_offset()
    assert at % 4096 == 0
    for state in STATES:
        for name in SHAPES:
            data = f[state][name].id
            assert data.get_offset() == at, name
            at += data.get_storage_size()
    index = f['index'].id
    assert at == index.get_offset() and index.get_storage_size() == index.shape[0]
    assert at + index.shape[0] == pathlib.Path(f.filename).stat().st_size


def check_meta(f):
    meta = f['meta']
    assert meta.attrs['format'] == b'sherd-checkpoint'
    wanted = {'format_major': 1, 'format_minor': 1, 'step': 7, 'samples': 224, 'tokens': 229376, 'updates': 6, 'block_elems': BLOCK}
    for name, value in wanted.items():
        assert meta.attrs[name] == value, name
    assert meta['config'][()] == b'training:\n  steps: 7\n'
    assert meta['guard'][()] == b'' and meta['notes'][()] == b'checkpoint.verify: disk\n'


class Hash128(ctypes.Structure):
    _fields_ = [('low', ctypes.c_uint64), ('high', ctypes.c_uint64)]


def xxhash():
    """Returns None if it is not there."""
    try:
        return ctypes.CDLL('libxxhash.so.0')
    except OSError:
        return None


def hash128(data):
    function = xxhash().XXH3_128bits
    function.restype, function.argtypes = Hash128, [ctypes.c_char_p, ctypes.c_size_t]
    found = function(data, len(data))
    return found.low, found.high


class Index:
    """The index, parsed by the description of the format, without HDF5."""

    def __init__(self, raw):
        self.at, length, low, high, major, minor, zeros, magic = struct.unpack('<qqQQII16s8s', raw[-64:])
        assert (major, minor, zeros, magic) == (1, 1, bytes(16), b'\x89SHERD\r\n')
        assert self.at + length + 64 == len(raw)
        packed = raw[self.at:-64]
        assert hash128(packed) == (low, high)
        self.head = struct.unpack('<8sIIqqQQqqqqqQqqqqq', packed[:136])
        self.rest = packed[136:]
        self.texts = [self.take(n).decode() for n in self.head[15:18]]
        self.tensors = [self.take_tensor() for _ in range(self.head[13])]
        self.sums = [self.take(8 * self.head[14]) for _ in STATES]
        assert not self.rest

    def take(self, count):
        taken, self.rest = self.rest[:count], self.rest[count:]
        assert len(taken) == count
        return taken

    def take_tensor(self):
        name_bytes, ndim = struct.unpack('<HH', self.take(4))
        name = self.take(name_bytes).decode()
        numbers = struct.unpack(f'<{ndim + 3}q', self.take(8 * (ndim + 3)))
        return name, numbers[:ndim], numbers[ndim:]


def check_index(f):
    """The index agrees with HDF5, and has a digest of everything before the first tensor."""
    if not xxhash():
        return 'no libxxhash.so.0'
    raw, meta = pathlib.Path(f.filename).read_bytes(), f['meta']
    index = Index(raw)
    first = f['model/wte.weight'].id.get_offset()
    attrs = [meta.attrs[name] for name in ('step', 'updates', 'samples', 'tokens', 'block_elems', 'digest')]
    assert index.at == f['index'].id.get_offset() and bytes(f['index'][...]) == raw[index.at:]
    assert index.head[:5] == (b'SHERDIDX', 1, 1, len(raw), first)
    assert index.head[5:7] == hash128(raw[:first])
    assert list(index.head[7:13]) == attrs
    assert index.texts == [meta[name][()].decode() for name in ('config', 'guard', 'notes')]
    assert index.tensors == [(name, f['model'][name].shape, tuple(f[state][name].id.get_offset() for state in STATES))
                             for name in SHAPES]
    assert index.sums == [f['digest'][state][...].astype('<u8').tobytes() for state in STATES]
    return None


def check_digests(f):
    if not xxhash():
        return 'no libxxhash.so.0'
    xxh3 = xxhash().XXH3_64bits
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
    """Save with the build's own test program, as one process: MPI allows that without a launcher."""
    program = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).resolve() / 'tests/mpi/test_ckpt'
    if not program.exists():
        return None, f'{program} is not built'
    path = pathlib.Path(folder) / 'reference.h5'
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1')
    done = subprocess.run([str(program), str(path)], capture_output=True, text=True, timeout=600, env=env)
    return (path, None) if done.returncode == 0 else (None, done.stdout + done.stderr)


def main():
    checks = [check_names, check_shapes, check_values, check_places, check_meta, check_index, check_digests]
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
