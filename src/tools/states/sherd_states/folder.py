"""A state folder: doc/checkpoint-format.md says what is in it."""
import contextlib
import dataclasses
import json
import os
import secrets
import shutil

from . import tensors
from .base import Refused, listed

STEMS = 'model', 'exp_avg', 'exp_avg_sq'
NUMBERS = 'step', 'updates', 'samples', 'tokens', 'lr', 'beta1', 'beta2', 'eps', 'weight_decay'
BESIDE = ('generation_config.json', 'tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json', 'added_tokens.json',
          'vocab.json', 'merges.txt', 'tokenizer.model', 'chat_template.jinja', 'chat_template.json')


@dataclasses.dataclass
class State:
    config: dict  # config.json of transformers
    model: dict  # by name: base.Tensor
    exp_avg: dict
    exp_avg_sq: dict
    numbers: dict  # NUMBERS
    decay: list  # names
    source: str
    beside: str = ''  # folder with a tokenizer


@contextlib.contextmanager
def new_folder(path):
    """A folder that gets its name when all is in it; after an error nothing is left."""
    path = os.path.abspath(path)
    parent, name = os.path.split(path)
    if os.path.lexists(path):
        raise Refused(f'{path} exists already; a state goes into a new folder')
    temporary = os.path.join(parent, f'.{name}.{secrets.token_hex(8)}.tmp')
    try:
        os.mkdir(temporary, 0o750)
    except OSError as error:
        raise Refused(f'{temporary}: {error.strerror}') from None
    try:
        yield temporary
        if os.path.lexists(path):
            raise Refused(f'{path} exists by now; a state goes into a new folder')
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_text(folder, name, text):
    with open(os.path.join(folder, name), 'x', encoding='utf-8') as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def copy_beside(source, folder):
    """The files of a tokenizer, if they are regular ones."""
    for name in BESIDE:
        path = os.path.join(source, name)
        if source and os.path.isfile(path):
            shutil.copyfile(path, os.path.join(folder, name))


def check(state):
    """Each weight has both moments in its shape; a tied output matrix may be there as a copy without them."""
    for stem in STEMS[1:]:
        moments = getattr(state, stem)
        extra = moments.keys() - state.model.keys()
        if extra:
            raise Refused(f'{state.source}: {stem} of {listed(extra)}, which the model does not have')
        for name, tensor in moments.items():
            if tensor.shape != state.model[name].shape:
                raise Refused(f'{state.source}: {stem} of {name} has shape {list(tensor.shape)}, the weight '
                              f'{list(state.model[name].shape)}')
    if state.exp_avg.keys() != state.exp_avg_sq.keys():
        raise Refused(f'{state.source}: only one moment of {listed(state.exp_avg.keys() ^ state.exp_avg_sq.keys())}')


def write(state, out):
    check(state)
    text = {'format': 'sherd-state', 'version': 1, 'optimizer': 'AdamW', **state.numbers,
            'source': ''.join(c if c.isprintable() else '?' for c in state.source)[:200], 'decay': state.decay}
    with new_folder(out) as folder:
        for stem in STEMS:
            table = getattr(state, stem)
            tensors.write(folder, stem, {name: table[name] for name in state.model if name in table})
        write_text(folder, 'config.json', json.dumps(state.config, indent=2) + '\n')
        copy_beside(state.beside, folder)
        write_text(folder, 'state.json', json.dumps(text, indent=2) + '\n')


def load_json(path):
    try:
        with open(path, encoding='utf-8') as file:
            content = json.load(file, object_pairs_hook=tensors.unique)
    except OSError as error:
        raise Refused(f'{path}: {error.strerror}') from None
    except (ValueError, RecursionError) as error:
        raise Refused(f'{path}: not JSON: {error}') from None
    if not isinstance(content, dict):
        raise Refused(f'{path}: not an object of JSON')
    return content


def read(path):
    content = load_json(os.path.join(path, 'state.json'))
    try:
        state = State(load_json(os.path.join(path, 'config.json')), *(tensors.read(path, stem) for stem in STEMS),
                      {key: content.pop(key) for key in NUMBERS}, content.pop('decay'), content.pop('source'), path)
    except KeyError as key:
        raise Refused(f'{path}/state.json: {key} is missing') from None
    if [content.pop(key, None) for key in ('format', 'version', 'optimizer')] != ['sherd-state', 1, 'AdamW'] or content:
        raise Refused(f'{path}/state.json: not version 1 of a state of AdamW, or with unknown keys {listed(content)}')
    check(state)
    return state
