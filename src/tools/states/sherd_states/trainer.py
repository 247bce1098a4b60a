"""Folders of Trainer of transformers: checkpoint-N. Its optimizer numbers the parameters: first those that decay, then
the others, each in the order of named_parameters(), which the class of the model knows."""
import os
import re

from . import entries, nested, tensors, torchfile
from .base import Refused, Tensor, listed, names_in, of_memory
from .folder import State, load_json

# transformers, trainer.py, get_decay_parameter_names(): these do not decay, and neither do modules of nn.LayerNorm.
PLAIN = re.compile(r'bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)', re.IGNORECASE)


def parameters(config_folder, where):
    """[(name, shape, decays)] in the order of named_parameters(), from the class alone: no code of the folder is run."""
    os.environ.setdefault('HF_HUB_OFFLINE', '1')
    try:
        import torch
        import transformers
    except ImportError:
        raise Refused(f'{where}: its optimizer numbers the parameters, and their order needs transformers in this Python') from None
    try:
        config = transformers.AutoConfig.from_pretrained(config_folder, trust_remote_code=False, local_files_only=True)
        with torch.device('meta'):
            model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise Refused(f'{where}: transformers cannot make the model of config.json: {str(error).splitlines()[0]}') from None
    norms = {f'{module}.{name}' for module, of in model.named_modules() if isinstance(of, torch.nn.LayerNorm)
             for name, _ in of.named_parameters(recurse=False)}
    return [(name, tuple(of.shape), name not in norms and not PLAIN.search(name)) for name, of in model.named_parameters()]


def _weights(folder, there):
    if 'model.safetensors' in there or 'model.safetensors.index.json' in there:
        return tensors.read(folder)
    if 'pytorch_model.bin' in there:
        return {name: of_memory(tensor) for name, tensor in torchfile.load(os.path.join(folder, 'pytorch_model.bin')).items()}
    raise Refused(f'{folder} has adapters, whose states are not brought in; --lora.adapter_path={folder} begins from them'
                  if 'adapter_model.safetensors' in there else f'{folder} has no weights; it has {listed(there)}')


def _states(folder, order):
    """The states by name: {exp_avg: {name: Tensor}, ...} and the groups."""
    path = os.path.join(folder, 'optimizer.pt')
    names = [name for name, _, decays in order if decays] + [name for name, _, decays in order if not decays]
    optimizer = torchfile.number_states(torchfile.load(path), names, path)
    shapes = {name: shape for name, shape, _ in order}
    found = torchfile.flatten({'optimizer': optimizer})
    taken = entries.Entries(found, path)
    states = taken.take_states()
    for name, tensor in states['exp_avg'].items():
        if not isinstance(tensor, Tensor) or tensor.shape != shapes[name]:
            raise Refused(f'{path}: the moment in the place of {name} does not have its shape, {list(shapes[name])}: the '
                          'parameters of that run were in another order')
    groups = taken.take_groups(set(names))
    taken.finish(())
    return states, groups, path


def _beside(there):
    return [name for name in there if name in ('training_args.bin', 'scheduler.pt', 'scaler.pt') or name.startswith('rng_state')]


def read(folder, options):
    there = names_in(folder)
    for mark, way in (('pytorch_model_fsdp_0', nested.read_accelerate), ('pytorch_model_fsdp.bin', nested.read_accelerate)):
        if mark in there:
            return way(folder, options)
    if any(name.startswith('global_step') for name in there):
        from . import deepspeed
        options.say_left_out(_beside(there))
        return deepspeed.read(folder, options)
    told = load_json(os.path.join(folder, 'trainer_state.json'))
    config = options.config(folder)
    model = _weights(folder, there)
    states, groups, path = _states(folder, parameters(options.hf, folder))
    numbers, decay = entries.numbers_of(groups, list(states['step']), path)
    updates, step, tokens = entries.step_of(states['step'], path), told.get('global_step'), told.get('num_input_tokens_seen')
    if not isinstance(step, int) or step < updates:
        raise Refused(f'{folder}/trainer_state.json: global_step is {step!r}, but the optimizer has made {updates} updates')
    options.say_left_out(_beside(there))
    numbers = {'step': step, 'updates': updates, 'samples': None,
               'tokens': tokens if isinstance(tokens, int) and tokens > 0 else None, **numbers}
    return State(config, model, states['exp_avg'], states['exp_avg_sq'], numbers, sorted(decay), f'Trainer, step {step}', folder)
