"""Files of torch.save(), read with weights_only: numbers, texts, lists and tensors, and no code."""
import os
import pickle
import warnings
import zipfile

from .base import Refused, of_memory, shown


def load_bytes(file, what, allowed=(), mmap=False):
    """`file`: a path or an open file. `allowed`: classes that stand for some that the file names."""
    import torch
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(list(allowed)):
            warnings.simplefilter('ignore')  # of pickles that are refused anyway
            return torch.load(file, map_location='cpu', weights_only=True, **({'mmap': True} if mmap else {}))
    except pickle.UnpicklingError as error:
        reason = next((line.strip() for line in str(error).splitlines() if 'GLOBAL' in line or 'nsupported' in line), '')
        raise Refused(f'{what}: a pickle with more than tensors and plain values, nothing of which was run. {shown(reason)}'
                      .rstrip()) from None
    except OSError as error:
        raise Refused(f'{what}: {error.strerror or shown(error)}') from None
    except (RuntimeError, EOFError, AttributeError, TypeError, ValueError, KeyError, IndexError, OverflowError, RecursionError,
            MemoryError, UnicodeDecodeError, AssertionError, zipfile.BadZipFile) as error:
        reason = shown(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise Refused(f'{what} is damaged, or not a file of torch.save(): {reason}') from None


def load(path, allowed=()):
    """A file; its tensors come into memory when they are used, if it is a zip archive, as those of torch >= 1.6 are."""
    if not os.path.isfile(path):
        raise Refused(f'{path}: there is no such file')
    return load_bytes(path, path, allowed, mmap=zipfile.is_zipfile(path))


def flatten(content, prefix=''):
    """Nested dictionaries as entries by name, as in a DCP; lists of param_groups too."""
    import torch
    out = {}
    items = enumerate(content) if isinstance(content, list) else content.items()
    for key, value in items:
        name = f'{prefix}{key}'
        nested = isinstance(value, dict) or (isinstance(value, list) and key == 'param_groups')
        if name in out or not isinstance(key, (str, int)):
            raise Refused(f'{shown(name)} is there twice, or is no name')
        if nested and value:
            found = flatten(value, name + '.')
            if out.keys() & found.keys():
                raise Refused(f'{shown(name)} is there twice')
            out.update(found)
        elif isinstance(value, torch.Tensor):
            out[name] = of_memory(value)
        else:
            out[name] = lambda value=value: value
    return out


def number_states(optimizer, names, where):
    """The state_dict() of an optimizer with the names of parameters in place of their numbers, which count through the
    groups."""
    groups = optimizer.get('param_groups') if isinstance(optimizer, dict) else None
    if not isinstance(groups, list) or not isinstance(optimizer.get('state'), dict) or not all(
            isinstance(group, dict) and isinstance(group.get('params'), list) for group in groups):
        raise Refused(f'{where}: not the state_dict() of an optimizer of torch')
    numbers = [number for group in groups for number in group['params']]
    if len(numbers) != len(names) or len(set(numbers)) != len(numbers):
        raise Refused(f'{where}: the optimizer has {len(set(numbers))} parameters, the model {len(names)}')
    to = dict(zip(numbers, names))
    unknown = optimizer['state'].keys() - to.keys()
    if unknown:
        raise Refused(f'{where}: a state of parameter {shown(sorted(map(str, unknown))[0])}, which is in no group')
    return {'state': {to[number]: state for number, state in optimizer['state'].items()},
            'param_groups': [{**group, 'params': [to[number] for number in group['params']]} for group in groups]}
