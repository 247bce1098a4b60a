"""GPT-2 of nanoGPT and llm.c."""
import array
import math
import os
import re
import sys

from . import entries, names, tensors, torchfile
from .base import Refused, Tensor, listed, names_in, of_memory, shown
from .folder import State

# ---- nanoGPT: ckpt.pt ----


def _nano_states(content, model, path):
    """Groups by dimensions: matrices decay, vectors do not, each in the order of the weights."""
    order = [name for name in model if name != 'lm_head.weight']  # tied
    order.sort(key=lambda name: len(model[name].shape) < 2)  # stable
    optimizer = torchfile.number_states(content['optimizer'], order, path)
    taken = entries.Entries(torchfile.flatten({'optimizer': optimizer}), path)
    states, groups = taken.take_states(), taken.take_groups(set(order))
    taken.finish(())
    for name, tensor in states['exp_avg'].items():
        if tuple(tensor.shape) != tuple(model[name].shape):
            raise Refused(f'{path}: the moment in the place of {name} does not have its shape')
    return states, groups


def read_nano(path, options):
    content = torchfile.load(path)
    missing = {'model', 'optimizer', 'model_args', 'iter_num'} - content.keys() if isinstance(content, dict) else {'everything'}
    if missing:
        raise Refused(f'{path} is not a checkpoint of nanoGPT: it lacks {listed(missing)}')
    options.need_tanh('nanoGPT')
    of = content['model_args']
    if not of.get('bias'):
        raise Refused(f'{path}: a model without biases (bias=False), which would train biases here; only bias=True is brought in')
    if of.get('dropout'):
        options.say(f'dropout {of["dropout"]} of that run is not continued: there is none here')
    model = {entries.WRAPPERS.sub('', name): tensor for name, tensor in content['model'].items()
             if not name.endswith(('.attn.bias', '.attn.masked_bias'))}
    states, groups = _nano_states(content, model, path)
    numbers, decay = entries.numbers_of(groups, list(states['step']), path)
    updates = entries.step_of(states['step'], path)
    if content['iter_num'] < updates:
        raise Refused(f'{path}: iter_num is {content["iter_num"]}, but the optimizer has made {updates} updates')
    options.say_left_out(content.keys() - {'model', 'optimizer', 'model_args', 'iter_num'})
    config = names.gpt2_config(of['n_layer'], of['n_head'], of['n_embd'], of['block_size'], of['vocab_size'])
    tables = [{name: names.turn(name, tensor) for name, tensor in table.items()}
              for table in ({name: of_memory(tensor) for name, tensor in model.items()}, states['exp_avg'], states['exp_avg_sq'])]
    # nanoGPT saves before the update of its iteration.
    numbers = {'step': updates, 'updates': updates, 'samples': None, 'tokens': None, **numbers}
    return State(config, *tables, numbers, sorted(decay), f'nanoGPT, iteration {content["iter_num"]}', options.hf)


# ---- llm.c: model_STEP.bin and state_STEP_RANK.bin, 256 int32 and then arrays ----

HEADER = 256
MODEL, STATE = 20240326, 20240527
# Tensors of the file in their order: name, shape in V (padded), T, C; whether each block has one.
LAYOUT = (
    ('wte.weight', 'VC', False), ('wpe.weight', 'TC', False), ('ln_1.weight', 'C', True), ('ln_1.bias', 'C', True),
    ('attn.c_attn.weight', '3C', True), ('attn.c_attn.bias', '3', True), ('attn.c_proj.weight', 'CC', True),
    ('attn.c_proj.bias', 'C', True), ('ln_2.weight', 'C', True), ('ln_2.bias', 'C', True), ('mlp.c_fc.weight', '4C', True),
    ('mlp.c_fc.bias', '4', True), ('mlp.c_proj.weight', 'C4', True), ('mlp.c_proj.bias', 'C', True), ('ln_f.weight', 'C', False),
    ('ln_f.bias', 'C', False),
)


def _header(path, magic):
    try:
        with open(path, 'rb') as file:
            words = array.array('i', file.read(4 * HEADER))
    except OSError as error:
        raise Refused(f'{path}: {error.strerror}') from None
    except ValueError:
        raise Refused(f'{path} is truncated') from None
    if sys.byteorder == 'big':
        words.byteswap()
    if len(words) < HEADER or words[0] != magic:
        raise Refused(f'{path} is not a file of llm.c of this kind, or truncated')
    return words


class _Llmc:
    """Where each tensor is: [(name, shape, offset in elements, elements)], all layers of one kind together."""

    def __init__(self, words, path):
        self.positions, self.vocabulary, self.layers, self.heads, self.width, self.padded = words[2:8]
        if not all(0 < n < 2 ** 24 for n in words[2:8]) or self.vocabulary > self.padded or self.width % self.heads:
            raise Refused(f'{path}: its header does not describe a GPT-2')
        sizes = {'V': self.padded, 'T': self.positions, 'C': self.width, '3': 3 * self.width, '4': 4 * self.width}
        self.places, at = [], 0
        for name, dims, block in LAYOUT:
            shape = tuple(sizes[dim] for dim in dims)
            for layer in range(self.layers if block else 1):
                self.places.append((f'transformer.h.{layer}.{name}' if block else f'transformer.{name}', shape, at, layer))
                at += math.prod(shape)
        self.elements = at

    def first(self, place):
        """Where the tensors of one kind begin."""
        return place[2] - place[3] * math.prod(place[1])

    def finish(self, name, tensor):
        """Without the rows that pad the vocabulary, and as transformers has it."""
        if name == 'transformer.wte.weight':
            tensor = tensor.map((self.vocabulary, self.width), lambda there: there[:self.vocabulary])
        return names.turn(name, tensor)


def _weights(path, words, model):
    import torch
    dtype = {3: torch.float32, 5: torch.bfloat16}.get(words[1])
    if dtype is None:
        raise Refused(f'{path}: version {words[1]}; 3 (float32) and 5 (bfloat16) are known')
    if os.path.getsize(path) != 4 * HEADER + dtype.itemsize * model.elements:
        raise Refused(f'{path} has {os.path.getsize(path)} bytes, but its header describes '
                      f'{4 * HEADER + dtype.itemsize * model.elements}: truncated, or another layout')
    return {name: Tensor(shape, lambda at=at, shape=shape: tensors.mapped(path, 4 * HEADER + dtype.itemsize * at, shape, dtype))
            for name, shape, at, _ in model.places}


class _Ranks:
    """The state files of all processes. With ZeRO-1 each has a part of each tensor of each layer; else all have all."""

    def __init__(self, folder, step, model):
        first = os.path.join(folder, f'state_{step}_00000.bin')
        words = _header(first, STATE)
        self.ranks, self.masters = words[2], bool(words[4])
        if words[1] != 1 or not 0 < self.ranks < 100000 or words[3] != 0:
            raise Refused(f'{first}: its header is not of version 1')
        self.paths = [os.path.join(folder, f'state_{step}_{rank:05d}.bin') for rank in range(self.ranks)]
        self.model, self.step = model, words[10]
        shuffled = bool(words[5])
        body = os.path.getsize(first) - 4 * HEADER
        arrays = 3 if self.masters else 2
        whole, part = (4 * arrays * n for n in (model.elements, model.elements // self.ranks))
        fits = (lambda size: body >= size) if shuffled else (lambda size: body == size)
        self.sharded = self.ranks > 1 and not fits(whole)
        if not fits(part if self.sharded else whole):
            raise Refused(f'{first} has {body} bytes of states, but {whole} or {part} are needed: truncated')
        for rank, path in enumerate(self.paths[1:] if self.sharded else (), 1):
            there = _header(path, STATE)
            if list(there[1:5]) != [words[1], words[2], rank, words[4]] or there[10] != words[10] or os.path.getsize(
                    path) < 4 * HEADER + part:
                raise Refused(f'{path} does not belong to {first}, or is truncated')

    def table(self, number):
        """Array `number` of each state file: m, v, master weights."""
        return {place[0]: Tensor(place[1], lambda place=place: self._read(number, place)) for place in self.model.places}

    def _read(self, number, place):
        import torch
        _, shape, at, layer = place
        if not self.sharded:
            return tensors.mapped(self.paths[0], 4 * (HEADER + number * self.model.elements + at), shape, torch.float32)
        share, each = math.prod(shape) // self.ranks, self.model.elements // self.ranks
        begin = number * each + self.model.first(place) // self.ranks + layer * share
        return torch.cat([tensors.mapped(path, 4 * (HEADER + begin), (share,), torch.float32) for path in self.paths]).reshape(shape)


def read_llmc(folder, options):
    steps = sorted(match[1] for name in names_in(folder) if (match := re.fullmatch(r'model_(\d+)\.bin', name)))
    if not steps:
        raise Refused(f'{folder} has no model_STEP.bin of llm.c')
    if options.lr is None or options.weight_decay is None:
        raise Refused(f'{folder}: llm.c does not save its learning rate and weight decay; give --lr (its -l) and --weight-decay '
                      '(its -c)')
    path = os.path.join(folder, f'model_{steps[-1]}.bin')
    words = _header(path, MODEL)
    model = _Llmc(words, path)
    ranks = _Ranks(folder, steps[-1], model)
    if ranks.step != int(steps[-1]):
        raise Refused(f'{ranks.paths[0]} is of step {ranks.step}, {path} of another')
    weights = _weights(path, words, model)
    if ranks.masters:
        weights = ranks.table(2)
    tables = [{name: model.finish(name, tensor) for name, tensor in table.items()}
              for table in (weights, ranks.table(0), ranks.table(1))]
    # Betas and eps are those in train_gpt2.cu.
    numbers = {'step': ranks.step, 'updates': ranks.step, 'samples': None, 'tokens': None, 'lr': options.lr, 'beta1': 0.9,
               'beta2': 0.95, 'eps': 1e-8, 'weight_decay': options.weight_decay}
    config = names.gpt2_config(model.layers, model.heads, model.width, model.positions, model.vocabulary)
    decay = sorted(name for name, tensor in weights.items() if len(tensor.shape) > 1)
    options.say(f'model_{steps[-1]}.bin, the newest of {len(steps)}; betas 0.9 and 0.95 and eps 1e-8, as in train_gpt2.cu')
    return State(config, *tables, numbers, decay if options.weight_decay else [], f'llm.c, step {ranks.step}', options.hf)
