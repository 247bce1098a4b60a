"""What all modules share: the error, and tensors that are read when they are needed."""
import os


class Refused(Exception):
    """What is wrong, with its place, in one line."""


def shown(text):
    """A name from a file, for a message: no control characters, and not too long."""
    text = str(text)
    return ''.join(c if c.isprintable() else f'\\x{ord(c):02x}' for c in text[:200]) + ('...' if len(text) > 200 else '')


def is_file_name(name):
    """Whether a name from a file is one of a file beside it."""
    return isinstance(name, str) and name not in ('', '.', '..') and '/' not in name and '\0' not in name


class Tensor:
    """A tensor with its shape; read() brings it, in any type, and floats() in float32."""

    def __init__(self, shape, read):
        self.shape, self._read = tuple(shape), read

    def read(self):
        return self._read()

    def floats(self):
        import torch
        tensor = self.read().detach()
        if not tensor.is_floating_point():
            raise Refused(f'a tensor of type {tensor.dtype}, where floating-point numbers are needed')
        if tensor.dtype == torch.float64:
            raise Refused('a tensor of float64, which would be rounded')
        return tensor.to(torch.float32).contiguous()

    def map(self, shape, change):
        return Tensor(shape, lambda: change(self.read()))


def of_memory(tensor):
    return Tensor(tensor.shape, lambda: tensor)


def listed(names, most=3):
    """A few names of many."""
    names = sorted(names)
    return ', '.join(map(shown, names[:most])) + (f' and {len(names) - most} more' if len(names) > most else '')


def names_in(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise Refused(f'{folder}: {error.strerror}') from None
