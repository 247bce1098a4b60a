"""Files of safetensors, one tensor in memory at a time, so a model may be larger than memory."""
import json
import mmap
import os
import struct

from .base import Refused, Tensor, is_file_name, shown

SHARD_BYTES = 5 * 10 ** 9
HEADER_MAX = 100_000_000
TYPES = {'F32': ('float32', 4), 'F16': ('float16', 2), 'BF16': ('bfloat16', 2)}


def _elements(shape):
    count = 1
    for dim in shape:
        count *= dim
    return count


def _write_file(path, named):
    at, header = 0, {'__metadata__': {'format': 'pt'}}
    for name, tensor in named:
        end = at + 4 * _elements(tensor.shape)
        header[name] = {'dtype': 'F32', 'shape': list(tensor.shape), 'data_offsets': [at, end]}
        at = end
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-(8 + len(text)) % 8)
    with open(path, 'xb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        for name, tensor in named:
            try:
                floats = tensor.floats()
            except Refused as why:
                raise Refused(f'{shown(name)}: {why}') from None
            if tuple(floats.shape) != tensor.shape:
                raise Refused(f'{shown(name)} has shape {list(floats.shape)}, but its description says {list(tensor.shape)}')
            file.write(memoryview(floats.reshape(-1).numpy()).cast('B') if floats.numel() else b'')
        file.flush()
        os.fsync(file.fileno())


def write(folder, stem, named):
    """Tensors by name, as Sherd lays them out: one file, or several with an index."""
    files, used = [[]], 0
    for name, tensor in named.items():
        size = 4 * _elements(tensor.shape)
        if used and used + size > SHARD_BYTES:
            files.append([])
            used = 0
        files[-1].append((name, tensor))
        used += size
    if len(files) == 1:
        return _write_file(os.path.join(folder, f'{stem}.safetensors'), files[0])
    places = {}
    for number, members in enumerate(files, 1):
        file = f'{stem}-{number:05d}-of-{len(files):05d}.safetensors'
        _write_file(os.path.join(folder, file), members)
        places.update({name: file for name, _ in members})
    total = sum(4 * _elements(tensor.shape) for tensor in named.values())
    with open(os.path.join(folder, f'{stem}.safetensors.index.json'), 'x') as out:
        json.dump({'metadata': {'total_size': total}, 'weight_map': places}, out, indent=2)
    return None


def _read_header(path):
    try:
        size = os.path.getsize(path)
        with open(path, 'rb') as file:
            begin = file.read(8)
            length = struct.unpack('<Q', begin)[0] if len(begin) == 8 else HEADER_MAX + 1
            if length > min(HEADER_MAX, size - 8):
                raise Refused(f'{path}: not a file of safetensors, or truncated')
            header = json.loads(file.read(length), object_pairs_hook=unique)
    except OSError as error:
        raise Refused(f'{path}: {error.strerror}') from None
    except (ValueError, RecursionError) as error:
        raise Refused(f'{path}: its header is not JSON of safetensors: {error}') from None
    return header, 8 + length, size


def unique(pairs):
    """An object of JSON without duplicate keys."""
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError('a key is there twice')
    return out


def mapped(path, at, shape, dtype):
    """A tensor that lies in a file; it comes into memory as it is used, and changes of it stay in memory."""
    import torch
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    with open(path, 'rb') as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return torch.frombuffer(view, dtype=dtype, count=_elements(shape), offset=at).view(shape)


def _one(path, name, entry, data_at, size):
    try:
        (dtype, width), shape = TYPES[entry['dtype']], tuple(entry['shape'])
        begin, end = entry['data_offsets']
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        raise Refused(f'{path}: {shown(name)} is not described as a tensor of F32, F16 or BF16') from None
    if not whole or end - begin != width * _elements(shape) or data_at + end > size:
        raise Refused(f'{path}: {shown(name)} does not fit into its place in the file')

    def read():
        import torch
        return mapped(path, data_at + begin, shape, getattr(torch, dtype))
    return Tensor(shape, read)


def read_file(path):
    """The tensors of a file by name; their data is read later."""
    header, data_at, size = _read_header(path)
    if not isinstance(header, dict):
        raise Refused(f'{path}: its header is not an object')
    header.pop('__metadata__', None)
    return {name: _one(path, name, entry, data_at, size) for name, entry in header.items()}


def read(folder, stem='model'):
    """The tensors of STEM.safetensors, or of the files that its index names."""
    alone = os.path.join(folder, f'{stem}.safetensors')
    index = alone + '.index.json'
    if os.path.exists(alone):
        return read_file(alone)
    try:
        with open(index, encoding='utf-8') as file:
            places = json.load(file, object_pairs_hook=unique)['weight_map']
        files = sorted(set(places.values()))
    except FileNotFoundError:
        raise Refused(f'{folder} has neither {stem}.safetensors nor its index') from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refused(f'{index}: not an index of safetensors') from None
    out = {}
    for file in files:
        if not is_file_name(file):
            raise Refused(f'{index}: {shown(file)} is not the name of a file beside it')
        for name, tensor in read_file(os.path.join(folder, file)).items():
            if name in out or places.get(name) != file:
                raise Refused(f'{index} does not place {shown(name)} in {file}, which has it')
            out[name] = tensor
    for name in places:
        if name not in out:
            raise Refused(f'{index}: {shown(name)} is not in {places[name]}, which it names')
    return out
