"""From entries by name, as a DCP or a nested dictionary has them, to weights, moments and numbers."""
import re

from .base import Refused, Tensor, listed, shown

MOMENTS = 'exp_avg', 'exp_avg_sq'
STATE = re.compile(r'(?P<prefix>(?:.*?\.)?)state\.(?P<name>.+)\.(?P<key>[^.]+)')
WRAPPERS = re.compile(r'(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.')
# Entries that say how another trainer went on, not what it had learnt. Those that are left out are said.
LEFT_OUT = re.compile(r'(?:.*\.)?(?:lr_schedulers?|schedulers?|dataloaders?|data_loaders?|train_state|rng(?:_states?)?|random_states?|'
                      r'epochs?|steps?|global_step|iter_num|iteration|sampler|scaler|grad_scaler|best_val_loss|config)(?:\..*)?')
GROUP_KEYS = {'params', 'param_names', 'lr', 'betas', 'eps', 'weight_decay', 'initial_lr', 'foreach', 'fused', 'capturable',
              'differentiable', 'amsgrad', 'maximize', 'decoupled_weight_decay', 'bias_correction'}


def value_of(entry):
    """A plain value, also of a tensor of one element."""
    import torch
    value = entry.read() if isinstance(entry, Tensor) else entry()
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


class Entries:
    """Takes entries one kind after the other; what is left at the end was not understood."""

    def __init__(self, entries, where):
        self.where, self.left = where, {}
        for name, entry in entries.items():
            plain = WRAPPERS.sub('', name)
            if plain in self.left:
                raise Refused(f'{where}: {shown(plain)} is there twice')
            self.left[plain] = entry

    def take_states(self):
        """{state: {name: entry}} of the one optimizer; self.prefix is what stands before its entries."""
        found, prefixes = {}, set()
        for name in list(self.left):
            match = STATE.fullmatch(name)
            if match:
                prefixes.add(match['prefix'])
                found.setdefault(match['key'], {})[match['name']] = self.left.pop(name)
        if not found:
            raise Refused(f'{self.where} has no states of an optimizer; `sherd ckpt import` takes weights alone, from a folder '
                          'of transformers')
        if len(prefixes) > 1:
            raise Refused(f'{self.where} has states of several optimizers: {listed(prefixes)}')
        self.prefix = prefixes.pop()
        others = found.keys() - {*MOMENTS, 'step'}
        if others:
            raise Refused(f'{self.where}: the optimizer has the states {listed(others)}; only those of AdamW are understood: '
                          'exp_avg, exp_avg_sq, step')
        if len(found) < 3 or len({frozenset(of) for of in found.values()}) > 1:
            raise Refused(f'{self.where}: not each parameter has exp_avg, exp_avg_sq and step')
        return found

    def take_groups(self, names):
        """[{params, lr, ...}] of the optimizer. Its entries are of a group by number, of a parameter by name, or one list."""
        prefix, groups = f'{self.prefix}param_groups', {}
        whole = self.left.pop(prefix, None)
        if whole is not None:
            content = value_of(whole)
            if not isinstance(content, list) or not all(isinstance(group, dict) for group in content):
                raise Refused(f'{self.where}: {prefix} is not a list of groups')
            groups = dict(enumerate(content))
        for name in [name for name in self.left if name.startswith(prefix + '.')]:
            group, _, key = name[len(prefix) + 1:].rpartition('.')
            groups.setdefault(group, {})[key] = value_of(self.left.pop(name))
        for name, group in groups.items():
            group.setdefault('params', [name] if name in names else None)
        return list(groups.values())

    def take_model(self, names):
        """{name: Tensor} of the model: what stands before its names is the same for all of them."""
        some = next(iter(names))
        prefixes = [name[:len(name) - len(some)] for name in self.left if name == some or name.endswith('.' + some)]
        prefixes = [prefix for prefix in prefixes if all(prefix + name in self.left for name in names)]
        if len(prefixes) != 1:
            missing = [name for name in names if not any(there == name or there.endswith('.' + name) for there in self.left)]
            raise Refused(f'{self.where}: the weights {listed(missing)} of the optimizer are missing' if missing else
                          f'{self.where}: there is more than one model with the weights of the optimizer: {listed(prefixes)}')
        prefix, model = prefixes[0], {}
        for name in [name for name in self.left if name.startswith(prefix)]:
            if isinstance(self.left[name], Tensor) and (prefix or not LEFT_OUT.fullmatch(name)):
                model[name[len(prefix):]] = self.left.pop(name)
        return model

    def number(self, *names):
        """The first entry of these that is a whole number; None: there is none."""
        for name in names:
            for there in list(self.left):
                if there == name or there.endswith('.' + name):
                    value = value_of(self.left[there])
                    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value) >= 0:
                        del self.left[there]
                        return int(value)
        return None

    def finish(self, drop):
        """What was left out, for a line; anything that is not known to be of no use is refused."""
        wanted = {name for name in self.left if not LEFT_OUT.fullmatch(name) and not any(
            name == word or name.startswith(word + '.') for word in drop)}
        if wanted:
            raise Refused(f'{self.where} has {listed(wanted)}, which are not understood; --drop NAME leaves an entry out')
        return sorted({name.split('.')[0] for name in self.left})


def step_of(steps, where):
    """The number of updates, which is the same for all parameters."""
    values = {name: value_of(entry) for name, entry in steps.items()}
    different = set(values.values())
    if len(different) != 1:
        low, high = min(values, key=values.get), max(values, key=values.get)
        raise Refused(f'{where}: {shown(low)} has had {values[low]:g} updates, {shown(high)} {values[high]:g}; one number is '
                      'needed')
    step = different.pop()
    if not isinstance(step, (int, float)) or step != int(step) or step < 0:
        raise Refused(f'{where}: {step!r} is not a number of updates')
    return int(step)


def _same(groups, key, where):
    values = {repr(group.get(key)) for group in groups}
    if len(values) > 1:
        raise Refused(f'{where}: groups of parameters differ in {key}: {listed(values)}')
    return groups[0].get(key)


def numbers_of(groups, names, where):
    """The numbers of AdamW, and the names that decay, from the groups of parameters."""
    grouped = [name for group in groups for name in (group.get('params') or ())]
    if not groups or sorted(map(str, grouped)) != sorted(names):
        raise Refused(f'{where}: the groups of the optimizer do not have each parameter once')
    for group in groups:
        unknown = group.keys() - GROUP_KEYS
        wrong = [key for key, value in (('amsgrad', False), ('maximize', False), ('decoupled_weight_decay', True), ('bias_correction', True))
                 if group.get(key, value) not in (value, None)]
        if wrong == ['decoupled_weight_decay'] and not group.get('weight_decay'):
            wrong = []  # Adam without decay is AdamW without decay
        if unknown or wrong:
            raise Refused(f'{where}: a group of parameters has {listed(unknown or wrong)}, which AdamW does not have here')
    peak = [{**group, 'lr': group.get('initial_lr', group.get('lr'))} for group in groups]
    betas = _same(groups, 'betas', where)
    decays = {float(group.get('weight_decay') or 0) for group in groups} - {0.0}
    if len(decays) > 1:
        raise Refused(f'{where}: groups of parameters have several weight decays: {listed(map(str, decays))}')
    try:
        numbers = {'lr': float(_same(peak, 'lr', where)), 'beta1': float(betas[0]), 'beta2': float(betas[1]),
                   'eps': float(_same(groups, 'eps', where)), 'weight_decay': decays.pop() if decays else 0.0}
    except (TypeError, ValueError, IndexError):
        raise Refused(f'{where}: the groups of the optimizer lack lr, betas or eps') from None
    return numbers, [name for group in groups if group.get('weight_decay') for name in group['params']]
