"""Distributed checkpoints of torch (DCP). torch's own reader runs any code that is in .metadata; here that file may name
only the classes that describe tensors, and each piece is read with weights_only."""
import enum
import io
import os
import pathlib
import pickle

from .base import Refused, Tensor, is_file_name, shown
from .torchfile import load_bytes

_METADATA = 'torch.distributed.checkpoint.metadata'
NAMES = {
    *((_METADATA, name) for name in ('Metadata', 'MetadataIndex', 'StorageMeta', 'TensorStorageMetadata',
                                     'ChunkStorageMetadata', 'TensorProperties', 'BytesStorageMetadata', '_MEM_FORMAT_ENCODING')),
    ('torch.distributed.checkpoint.filesystem', '_StorageInfo'), ('torch', 'Size'), ('torch.serialization', '_get_layout'),
    ('collections', 'OrderedDict'), ('pathlib', 'PosixPath'), ('pathlib._local', 'PosixPath'),
}
# What a damaged pickle can make the unpickler, or the look at its result, raise.
DAMAGE = (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, KeyError, IndexError, OverflowError,
          ImportError, RecursionError, MemoryError, UnicodeDecodeError, AssertionError)


def _member(of, name):
    """Stands for getattr(), by which the first Pythons 3.11 (Debian 12's too) pickle a member of an enumeration."""
    if not isinstance(of, enum.EnumMeta) or name not in of.__members__:
        raise Refused(f'it reads {shown(name)} of an object, which no description of tensors needs: nothing of it was run')
    return of.__members__[name]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        import torch
        if module in ('builtins', '__builtin__') and name == 'getattr':
            return _member
        if name == 'PosixPath' and (module, name) in NAMES:
            return pathlib.PurePosixPath  # its module differs between versions of Python
        if (module, name) in NAMES:
            return super().find_class(module, name)
        if module == 'torch' and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise Refused(f'it names {shown(module)}.{shown(name)}, which no description of tensors needs: nothing of it was run')

    def persistent_load(self, pid):
        raise Refused('it refers to objects outside the file')


def _metadata(folder):
    import torch.distributed.checkpoint.metadata  # here: its absence would be taken for damage of the file
    path = os.path.join(folder, '.metadata')
    try:
        with open(path, 'rb') as file:
            found = _Unpickler(file).load()
        described, places = dict(found.state_dict_metadata), dict(found.storage_data)
        if not all(isinstance(name, str) for name in described):
            raise TypeError
        return described, places
    except Refused as why:
        raise Refused(f'{path}: {why}') from None
    except OSError as error:
        raise Refused(f'{path}: {error.strerror}') from None
    except DAMAGE as error:
        raise Refused(f'{path} is damaged, or not the description of a DCP: {shown(error)}') from None


class _Piece:
    """One torch.save() inside a file."""

    def __init__(self, folder, name, info):
        if not is_file_name(info.relative_path):
            raise Refused(f'{folder}/.metadata: {shown(info.relative_path)} is not the name of a file beside it')
        if getattr(info, 'transform_descriptors', None):
            raise Refused(f'{folder}/.metadata: {shown(name)} is stored transformed; save without extensions of the writer')
        self.path, self.at, self.size = os.path.join(folder, info.relative_path), int(info.offset), int(info.length)
        try:
            bytes_there = os.path.getsize(self.path)
        except OSError as error:
            raise Refused(f'{self.path}: {error.strerror}; it has a part of {shown(name)}') from None
        if self.at < 0 or self.size < 0 or self.at + self.size > bytes_there:
            raise Refused(f'{self.path} has {bytes_there} bytes, but {shown(name)} ends at {self.at + self.size}: truncated')

    def load(self):
        with open(self.path, 'rb') as file:
            file.seek(self.at)
            return load_bytes(io.BytesIO(file.read(self.size)), f'{self.path}, at byte {self.at}')


def _part(name, meta, sizes, piece):
    import torch
    part = piece.load()
    if not isinstance(part, torch.Tensor) or tuple(part.shape) != sizes or part.dtype != meta.properties.dtype:
        raise Refused(f'{piece.path}, at byte {piece.at}: not the part of {shown(name)} that .metadata describes')
    return part


def _assemble(folder, name, meta, pieces):
    """The tensor of its chunks, which cover each element once."""
    import torch
    if len(pieces) == 1 and pieces[0][1] == tuple(meta.size):
        return _part(name, meta, *pieces[0][1:])
    out = torch.empty(meta.size, dtype=meta.properties.dtype)
    seen = torch.zeros(meta.size, dtype=torch.bool)
    for offsets, sizes, piece in pieces:
        part = _part(name, meta, sizes, piece)
        at = tuple(slice(o, o + n) for o, n in zip(offsets, sizes))
        if bool(seen[at].any()):
            raise Refused(f'{folder}/.metadata: two parts of {shown(name)} overlap')
        out[at] = part
        seen[at] = True
    if not bool(seen.all()):
        raise Refused(f'{folder}/.metadata: a part of {shown(name)} is missing')
    return out


def _chunks(folder, name, meta, places):
    """(offsets, sizes, piece) of each chunk of a tensor, all within it."""
    by_offset = {tuple(chunk.offsets): tuple(chunk.sizes) for chunk in meta.chunks}
    if len(by_offset) != len(meta.chunks):
        raise Refused(f'{folder}/.metadata: two parts of {shown(name)} overlap')
    out = []
    for index, info in places:
        offsets = tuple(index.offset) if index.offset is not None else (0,) * len(meta.size)
        sizes = by_offset.pop(offsets, None)
        if sizes is None or len(offsets) != len(meta.size) or any(
                o < 0 or n < 0 or o + n > whole for o, n, whole in zip(offsets, sizes, meta.size)):
            raise Refused(f'{folder}/.metadata: a part of {shown(name)} at {offsets} is there twice, or is not in the tensor')
        out.append((offsets, sizes, _Piece(folder, name, info)))
    if by_offset:
        raise Refused(f'{folder}/.metadata: no file has the part of {shown(name)} at {next(iter(by_offset))}')
    return out


def read(folder):
    """All entries by name: base.Tensor, or a function that loads an object."""
    described, places = _metadata(folder)
    parts = {name: [] for name in described}
    out = {}
    try:
        for index, info in places.items():
            if index.fqn not in parts:
                raise Refused(f'{folder}/.metadata: a place of {shown(index.fqn)}, which is not described')
            parts[index.fqn].append((index, info))
        for name, meta in described.items():
            if hasattr(meta, 'chunks'):
                chunks = _chunks(folder, name, meta, parts[name])
                out[name] = Tensor(meta.size, lambda name=name, meta=meta, chunks=chunks: _assemble(folder, name, meta, chunks))
            elif len(parts[name]) == 1:
                out[name] = _Piece(folder, name, parts[name][0][1]).load
            else:
                raise Refused(f'{folder}/.metadata: no file has {shown(name)}')
    except DAMAGE as error:
        raise Refused(f'{folder}/.metadata is damaged: {shown(error)}') from None
    return out
