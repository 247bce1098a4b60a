"""DeepSpeed: ZeRO-1, 2 and 3, and universal checkpoints. Weights are the float32 masters of its optimizer."""
import math
import os
import pickle
import re

from . import entries, torchfile
from .base import Refused, Tensor, is_file_name, listed, names_in, shown
from .folder import State

PARTS = 'fp32', 'exp_avg', 'exp_avg_sq'
RANK = re.compile(r'(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt')
# Entries of model states that the optimizer's masters stand for, or that say how they were saved.
KNOWN = {'module', 'buffer_names', 'optimizer', 'param_shapes', 'frozen_param_shapes', 'frozen_param_fragments', 'shared_params', 'skipped_steps',
         'global_steps', 'global_samples', 'dp_world_size', 'mp_world_size', 'checkpoint_parallel_dimensions', 'ds_config', 'ds_version',
         'universal_checkpoint_info'}


class _Inert:
    """Stands for a class of DeepSpeed: takes what the pickle gives it, and does nothing."""

    def __new__(cls, *args, **_):
        self = object.__new__(cls)
        self.args, self.state = args, {}
        return self

    def __init__(self, *_, **__):
        pass

    def __setstate__(self, state):
        self.state = state

    def get(self, number, name):
        return self.args[number] if len(self.args) > number else self.state[number] if isinstance(
            self.state, (tuple, list)) else self.state[name]


ALLOWED = [type(name.rsplit('.', 1)[1], (_Inert,), {'__module__': name.rsplit('.', 1)[0]}) for name in (
    'deepspeed.runtime.fp16.loss_scaler.LossScaler', 'deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler',
    'deepspeed.runtime.zero.config.ZeroStageEnum', 'deepspeed.utils.tensor_fragment.fragment_address')]
STAGES = 'disabled', 'optimizer_states', 'gradients', 'weights'


def _member(of, name):
    """Stands for getattr(), by which the first Pythons 3.11 (Debian 12's too) pickle a member of an enumeration."""
    if of is not ALLOWED[2]:
        raise pickle.UnpicklingError(f'Unsupported: the attribute {shown(name)} of an object')
    return of(STAGES.index(name))


_member.__module__, _member.__name__, _member.__qualname__ = 'builtins', 'getattr', 'getattr'
ALLOWED.append(_member)


def _load(folder, name):
    return torchfile.load(os.path.join(folder, name), ALLOWED)


def _step_folder(path):
    """The folder of the step that `latest` names; of Trainer, the newest global_step."""
    there = names_in(path)
    if 'latest' in there:
        with open(os.path.join(path, 'latest'), encoding='utf-8', errors='replace') as file:
            name = file.read(4096).strip()
        if not is_file_name(name):
            raise Refused(f'{path}/latest: {shown(name)} is not the name of a folder beside it')
        return os.path.join(path, name)
    steps = [name for name in there if re.fullmatch(r'global_step\d+', name)]
    return os.path.join(path, max(steps, key=lambda name: int(name[11:]))) if steps else path


def _ranks(folder):
    found = {}
    for name in names_in(folder):
        match = RANK.fullmatch(name)
        if match:
            if int(match[2]):
                raise Refused(f'{folder}/{name}: weights cut over ranks of tensors; make a universal checkpoint of it')
            found[int(match[1])] = name
    missing = [rank for rank in range(max(found, default=0) + 1) if rank not in found]
    if missing:
        raise Refused(f'{folder} has no optimizer states of rank {missing[0]}')
    return [_load(folder, found[rank]).get('optimizer_state_dict') for rank in range(len(found))]


def _model_states(folder):
    name = next((name for name in names_in(folder) if name.endswith('mp_rank_00_model_states.pt')), None)
    if not name:
        raise Refused(f'{folder} has no mp_rank_00_model_states.pt')
    content = _load(folder, name)
    shapes = content.get('param_shapes')
    if isinstance(shapes, dict):
        shapes = [shapes]
    if content.get('frozen_param_shapes'):
        raise Refused(f'{folder}/{name}: some parameters are frozen, and a state has moments of all')
    if not isinstance(shapes, list) or not all(isinstance(group, dict) for group in shapes):
        raise Refused(f'{folder}/{name}: it has no param_shapes')
    return content, [{plain: tuple(shape) for plain, shape in group.items()} for group in shapes]


def _slice(flat, begin, count, where):
    if begin < 0 or count < 0 or begin + count > flat.numel():
        raise Refused(f'{where}: a part of the states is too short')
    return flat[begin:begin + count]


def _cut_by_names(flats, maps, name, shape, where):
    """ZeRO-1 and 2: each rank says which part of which parameter it has."""
    import torch
    parts = []
    for flat, of in zip(flats, maps):
        if name in of:
            parts.append(_slice(flat, int(of[name].get(1, 'start')), int(of[name].get(0, 'numel')), where))
    if sum(part.numel() for part in parts) != math.prod(shape):
        raise Refused(f'{where}: the ranks have {sum(part.numel() for part in parts)} elements of {shown(name)}, not '
                      f'{math.prod(shape)}')
    return torch.cat(parts).view(shape)


def _cut_evenly(flats, begin, shape, where):
    """ZeRO-3: each rank has an equal part of each parameter, the last ones with padding."""
    import torch
    count = math.prod(shape)
    share = -(-count // len(flats))
    return torch.cat([_slice(flat, begin, share, where) for flat in flats])[:count].view(shape)


def _group_tables(group, shapes, stage, ranks, where):
    """{part: {name: Tensor}} and the steps of one group of parameters."""
    base = [rank['optimizer_state_dict' if stage == 3 else 'base_optimizer_state']['state'][group] for rank in ranks]
    others = base[0].keys() - {'exp_avg', 'exp_avg_sq', 'step'}
    if others:
        raise Refused(f'{where}: the optimizer has the states {listed(others)}; only those of AdamW are understood')
    flats = {part: [state[part] for state in base] for part in PARTS[1:]}
    flats['fp32'] = [rank['fp32_flat_groups' if stage == 3 else 'single_partition_of_fp32_groups'][group] for rank in ranks]
    maps = None if stage == 3 else [rank['param_slice_mappings'][group] for rank in ranks]
    tables, begin = {part: {} for part in PARTS}, 0
    for name, shape in shapes.items():
        for part, flat in flats.items():
            tables[part][name] = Tensor(shape, (lambda flat=flat, begin=begin, shape=shape: _cut_evenly(flat, begin, shape, where))
                                        if stage == 3 else
                                        (lambda flat=flat, name=name, shape=shape: _cut_by_names(flat, maps, name, shape, where)))
        begin += -(-math.prod(shape) // len(ranks))
    return tables, {float(state['step']) for state in base}


def _zero(folder, ranks, shapes):
    stage = ranks[0]['zero_stage'] if 'zero_stage' in ranks[0] else 1
    stage = stage.args[0] if isinstance(stage, _Inert) else stage
    groups = ranks[0]['optimizer_state_dict' if stage == 3 else 'base_optimizer_state']['param_groups']
    counts = ranks[0].get('partition_count') or [len(ranks)]
    if any(int(count) != len(ranks) for count in (counts if isinstance(counts, list) else [counts])):
        raise Refused(f'{folder} was saved by {counts} ranks, and there are states of {len(ranks)}')
    tables, steps = {part: {} for part in PARTS}, {}
    for group, of in enumerate(shapes):
        found, values = _group_tables(group, of, stage, ranks, folder)
        for part in PARTS:
            tables[part].update(found[part])
        steps.update({f'{next(iter(of), "")} {value}': (lambda value=value: value) for value in values})
    return tables, groups, entries.step_of(steps, folder)


def _universal(folder, shapes):
    zero = os.path.join(folder, 'zero')
    state = _load(zero, 'optimizer_state.pt')
    tables, steps = {part: {} for part in PARTS}, {}
    for of in shapes:
        for name, shape in of.items():
            if not is_file_name(name):
                raise Refused(f'{folder}: {shown(name)} is not a name that a folder can have')
            for part in PARTS:
                def read(name=name, part=part, shape=shape):
                    content = _load(os.path.join(zero, name), f'{part}.pt')
                    return (content['param'] if isinstance(content, dict) else content).reshape(shape)
                tables[part][name] = Tensor(shape, read)
            step = os.path.join(zero, name, 'step.pt')
            if os.path.exists(step):
                steps[name] = lambda step=step: entries.value_of(lambda: torchfile.load(step))
    if not steps and 'optimizer_state_dict' in state:  # of ZeRO-3: numbers of groups
        steps = {f'group {number}': (lambda of=of: float(of['step']))
                 for number, of in state['optimizer_state_dict']['state'].items()}
    if not steps:
        raise Refused(f'{folder} does not say how many updates were made: no zero/NAME/step.pt')
    return tables, state.get('param_groups'), entries.step_of(steps, folder)


def read(path, options):
    folder = _step_folder(path)
    config = options.config(path)
    content, shapes = _model_states(folder)
    try:
        if 'zero' in names_in(folder):
            tables, groups, updates = _universal(folder, shapes)
        else:
            tables, groups, updates = _zero(folder, _ranks(folder), shapes)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise Refused(f'{folder}: its states of the optimizer are not those of ZeRO: {shown(repr(error))}') from None
    if not isinstance(groups, list) or len(groups) != len(shapes):
        raise Refused(f'{folder}: {len(shapes)} groups of parameters, and numbers of {len(groups or ())}')
    numbers, decay = entries.numbers_of([{**{key: value for key, value in group.items() if key in entries.GROUP_KEYS},
                                          'params': list(of)} for group, of in zip(groups, shapes)], list(tables['fp32']), folder)
    step = content.get('global_steps')
    if not isinstance(step, int) or step < updates:
        raise Refused(f'{folder}: global_steps is {step!r}, but the optimizer has made {updates} updates')
    options.say_left_out(name for name, value in content.items() if name not in KNOWN and value is not None)
    plain = lambda name: name.removeprefix('module.')
    tables = [{plain(name): tensor for name, tensor in tables[part].items()} for part in PARTS]
    numbers = {'step': step, 'updates': updates, 'samples': None, 'tokens': None, **numbers}
    return State(config, *tables, numbers, sorted(map(plain, decay)), f'DeepSpeed, step {step}', options.hf)
