"""Sherd's checkpoints with h5py and numpy alone, following doc/checkpoint-format.md: read them, and replace weights."""
import pathlib

import h5py
import numpy

from xxh import hash128, xxhash

MODEL, EXP_AVG, EXP_AVG_SQ = 'model', 'optimizer/exp_avg', 'optimizer/exp_avg_sq'
STATES = (MODEL, EXP_AVG, EXP_AVG_SQ)  # with AdamW
GOLDEN = numpy.uint64(0x9e3779b97f4a7c15)


def hash64(data):
    return numpy.uint64(xxhash.XXH3_64bits(data, len(data)))


def mix(x):
    with numpy.errstate(over='ignore'):
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94d049bb133111eb)
        return x ^ (x >> numpy.uint64(31))


def block_digest(seed, block, values):
    bits = values.view(numpy.uint32).astype(numpy.uint64)
    with numpy.errstate(over='ignore'):
        place = numpy.arange(1, len(bits) + 1, dtype=numpy.uint64) * GOLDEN + mix(seed ^ numpy.uint64(block))
        return mix(bits ^ place).sum(dtype=numpy.uint64)


def tensor_digests(step, number, name, values, block_elems):
    """One 64-bit sum per block of the flattened tensor; `number` is the number of the state."""
    with numpy.errstate(over='ignore'):
        seed = mix(mix(hash64(name.encode()) ^ numpy.uint64(step)) + numpy.uint64(number))
    flat = numpy.ascontiguousarray(values, dtype='<f4').reshape(-1)
    return [block_digest(seed, i, flat[i * block_elems:(i + 1) * block_elems])
            for i in range(-(-len(flat) // block_elems))]


def names(group):
    """Tensors in the order of writing, which numbers the blocks."""
    found = []
    group.id.links.iterate(lambda name: found.append(name.decode()), idx_type=h5py.h5.INDEX_CRT_ORDER)
    return found


def states(file):
    """The model, then the optimizer's states, in the order of writing."""
    return [MODEL, *(f'optimizer/{name}' for name in names(file['optimizer']))]


def state_digests(file, state):
    step, block_elems = int(file['meta'].attrs['step']), int(file['meta'].attrs['block_elems'])
    number = states(file).index(state)
    digests = [digest for name in names(file[state])
               for digest in tensor_digests(step, number, name, file[state][name][()], block_elems)]
    return numpy.array(digests, dtype='<u8')


def file_digest(file):
    """The digest of everything except tensor data: metadata, names, shapes, digests."""
    meta, model = file['meta'], file[MODEL]
    blocks = file[f'digest/{MODEL}'][()]
    numbers = [*(meta.attrs[key] for key in ('step', 'samples', 'tokens', 'updates')), len(names(model)), len(blocks)]
    parts = [numpy.array(numbers, dtype='<i8').tobytes(), *(meta[key][()].rstrip(b'\0') for key in ('config', 'guard'))]
    for name in names(model):
        parts += [name.encode(), numpy.array(model[name].shape, dtype='<i8').tobytes()]
    parts += [file[f'digest/{state}'][()].astype('<u8').tobytes() for state in states(file)]
    parts += [meta['base'][()].rstrip(b'\0')] if 'base' in meta else []
    digest = numpy.uint64(0)
    for part in parts:
        digest = mix(digest ^ hash64(part))
    return digest


def read(path, state=MODEL):
    with h5py.File(path, 'r') as file:
        return {name: file[state][name][()] for name in names(file[state])}


def verify(path):
    """Complaints about wrong digests."""
    with h5py.File(path, 'r') as file:
        wrong = [state for state in states(file) if (state_digests(file, state) != file[f'digest/{state}'][()]).any()]
        wrong += ['meta'] if file_digest(file) != numpy.uint64(file['meta'].attrs['digest']) else []
    return [f'{path}: digest of {state} is not what numpy finds' for state in wrong]


def replace(path, tensors):
    """Put other values into /model and correct the digests, in HDF5's structures and in the index."""
    with h5py.File(path, 'r+') as file:
        for name, values in tensors.items():
            file[MODEL][name][...] = values
        file[f'digest/{MODEL}'][...] = state_digests(file, MODEL)
        digest = file_digest(file)
        file['meta'].attrs.modify('digest', digest)
        sums = b''.join(file[f'digest/{state}'][()].astype('<u8').tobytes() for state in states(file))
        base = 8 + len(file['meta']['base'][()].rstrip(b'\0')) if 'base' in file['meta'] else 0
    sign(path, sums, base, digest)


def sign(path, sums, base_bytes, digest):
    """Write the index again, with these sums before the base's text, and the footer."""
    data = bytearray(pathlib.Path(path).read_bytes())
    at, size = numpy.frombuffer(data[-64:-48], '<i8')
    structure_bytes = int(numpy.frombuffer(data[at + 24:at + 32], '<i8')[0])
    end = at + size - base_bytes
    data[end - len(sums):end] = sums
    data[at + 32:at + 48] = hash128(bytes(data[:structure_bytes]))
    data[at + 88:at + 96] = numpy.uint64(digest).tobytes()
    data[-48:-32] = hash128(bytes(data[at:at + size]))
    pathlib.Path(path).write_bytes(data)
