"""Kinds whose weights and states are entries by name: DCP of any program, torchtitan, accelerate, and full state
dictionaries of FSDP."""
import os

from . import dcp, entries, names, torchfile
from .base import Refused, listed, names_in, shown
from .folder import State


def to_state(found, where, options):
    """A State of entries."""
    config = options.config(where)
    taken = entries.Entries(found, where)
    states = taken.take_states()
    parameters = list(states['step'])
    model = taken.take_model(parameters)
    numbers, decay = entries.numbers_of(taken.take_groups(set(parameters)), parameters, where)
    updates = entries.step_of(states['step'], where)
    step = taken.number('train_state.step', 'global_step', 'iter_num', 'step')
    if step is not None and step < updates:
        raise Refused(f'{where}: it is of step {step}, but its optimizer has made {updates} updates')
    numbers = {'step': updates if step is None else step, 'updates': updates, 'samples': None,
               'tokens': taken.number('train_state.ntokens_seen'), **numbers}
    tables = [model, states['exp_avg'], states['exp_avg_sq']]
    kind = 'DCP'
    if names.is_titan(model):
        tables = [names.from_titan(table, config, where) for table in tables]
        decay = [names.titan_name(name, where) for name in decay]
        kind = 'torchtitan'
    options.say_left_out(taken.finish(options.drop))
    return State(config, *tables, numbers, sorted(decay), f'{options.kind or kind}, step {numbers["step"]}', options.hf)


def read_dcp(folder, options):
    return to_state(dcp.read(folder), folder, options)


def _of_file(path, where):
    content = torchfile.load(path)
    if not isinstance(content, dict):
        raise Refused(f'{where}: it has a {type(content).__name__}, not a dictionary')
    return content


def _name_states(content, where):
    """States by number get the names of the weights in the same dictionary."""
    optimizers = {key: value for key, value in content.items() if isinstance(value, dict) and {'state', 'param_groups'} <= value.keys()}
    for key, value in optimizers.items():
        if any(isinstance(number, int) for number in value['state']):
            if len(value['param_groups']) > 1:
                raise Refused(f'{where}: the states of the optimizer have numbers in several groups, and whose they are is '
                              'not known; save get_optimizer_state_dict() of torch.distributed.checkpoint.state_dict')
            model = next((content[word] for word in ('model', 'state_dict', 'model_state_dict') if isinstance(content.get(word), dict)), {})
            content[key] = torchfile.number_states(value, _parameters(model, value), where)
    return content


def _parameters(model, optimizer):
    """Names of the weights in the order of named_parameters(): without copies of tied ones, and without buffers."""
    out, seen = [], set()
    for name, tensor in model.items():
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape))
        if place not in seen and tensor.is_floating_point() and not name.endswith(('.inv_freq', '.attn.bias', '.attn.masked_bias')):
            seen.add(place)
            out.append(name)
    states = optimizer['state']
    for number, name in enumerate(out):
        moment = states.get(number, {}).get('exp_avg')
        if moment is not None and moment.shape != model[name].shape:
            raise Refused(f'state {number} of the optimizer has shape {list(moment.shape)}, but {shown(name)} '
                          f'{list(model[name].shape)}: its parameters are in another order')
    return out


def read_file(path, options):
    """A file with weights and states, as torch.save({'model': ..., 'optimizer': ...}) makes it."""
    content = _name_states(_of_file(path, path), path)
    return to_state(torchfile.flatten(content), path, options)


def read_accelerate(folder, options):
    """What accelerate's save_state() leaves with FSDP: DCPs, or two full files."""
    there = names_in(folder)
    found = {}
    if 'pytorch_model_fsdp_0' in there and 'optimizer_0' in there:
        for part in 'pytorch_model_fsdp_0', 'optimizer_0':
            found.update(dcp.read(os.path.join(folder, part)))
    elif 'pytorch_model_fsdp.bin' in there and 'optimizer.bin' in there:
        found = torchfile.flatten({'model': _of_file(os.path.join(folder, 'pytorch_model_fsdp.bin'), folder),
                                   'optimizer': _of_file(os.path.join(folder, 'optimizer.bin'), folder)})
    else:
        raise Refused(f'{folder} has neither pytorch_model_fsdp_0 with optimizer_0 nor pytorch_model_fsdp.bin with '
                      f'optimizer.bin; it has {listed(there)}')
    state = to_state(found, folder, options)
    options.say_left_out([name for name in there if name.endswith(('.bin', '.pkl', '.pt', '.pth')) and name not in (
        'pytorch_model_fsdp.bin', 'optimizer.bin')])
    return state
