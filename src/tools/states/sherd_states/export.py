"""The way back: checkpoints of other trainers of a state folder."""
import json
import os
import warnings

from . import tensors, trainer
from .base import Refused, listed
from .folder import copy_beside, new_folder, write_text


def _groups(state, names, split):
    """Groups of parameters as this torch's AdamW has them: one if all decay, else first those that do."""
    import torch
    default = torch.optim.AdamW([torch.zeros(1)]).state_dict()['param_groups'][0]
    numbers, decay = state.numbers, set(state.decay)
    if not isinstance(state.decay, list) or decay - set(names):
        raise Refused(f'{state.source}: decay has names that are not those of weights')
    parts = [[name for name in names if name in decay], [name for name in names if name not in decay]]
    return [{**default, 'lr': numbers['lr'], 'initial_lr': numbers['lr'], 'betas': (numbers['beta1'], numbers['beta2']),
             'eps': numbers['eps'], 'weight_decay': rate, 'params': part}
            for part, rate in zip(parts, (numbers['weight_decay'], 0.0)) if part or split]


def _states(state, names):
    import torch
    return {name: {'step': torch.tensor(float(state.numbers['updates'])), 'exp_avg': state.exp_avg[name].floats(),
                   'exp_avg_sq': state.exp_avg_sq[name].floats()} for name in names}


def _config(state, folder):
    write_text(folder, 'config.json', json.dumps(state.config, indent=2) + '\n')
    copy_beside(state.source, folder)


def to_dcp(state, out):
    """{'model', 'optimizer', 'step'}, the first two as get_state_dict() makes them."""
    import torch
    from torch.distributed import checkpoint
    names = list(state.exp_avg)
    content = {'model': {name: tensor.floats() for name, tensor in state.model.items()},
               'optimizer': {'state': _states(state, names), 'param_groups': _groups(state, names, False)},
               'step': torch.tensor(state.numbers['step'])}
    if content['model'].keys() - set(names) == {'lm_head.weight'}:
        content['model'].pop('lm_head.weight')
    if state.config.get('tie_word_embeddings') and 'lm_head.weight' not in content['model']:
        embedding = next((name for name in names if name.endswith(('embed_tokens.weight', 'wte.weight'))), None)
        if embedding:
            content['model']['lm_head.weight'] = content['model'][embedding]  # as state_dict() of a tied model has it
    with new_folder(out) as folder:
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', 'torch.distributed is disabled')  # one process is what is meant
            checkpoint.save(content, checkpoint_id=folder, no_dist=True)
        _config(state, folder)


def to_trainer(state, out):
    """What Trainer reads for resume_from_checkpoint: weights, optimizer.pt, scheduler.pt, trainer_state.json."""
    import torch
    order = trainer.parameters(state.source, state.source)
    names = [name for name, _, decays in order if decays] + [name for name, _, decays in order if not decays]
    if set(names) != state.exp_avg.keys():
        raise Refused(f'{state.source}: the class of transformers has other parameters: {listed(set(names) ^ state.exp_avg.keys())}')
    groups = _groups(state, names, True)
    if state.numbers['weight_decay'] and [group['params'] for group in groups] != [
            [name for name, _, decays in order if decays == first] for first in (True, False)]:
        raise Refused(f'{state.source}: Trainer lets all but norms and biases decay, and this state other parameters; set '
                      'weight_decay 0 or optimizer.decay_all=false')
    if not state.numbers['weight_decay']:
        half = sum(decays for _, _, decays in order)
        groups = [{**groups[-1], 'params': names[:half]}, {**groups[-1], 'params': names[half:]}]
    numbers = {name: number for number, name in enumerate(names)}
    states, step, lr = _states(state, names), state.numbers['step'], state.numbers['lr']
    with new_folder(out) as folder:
        tensors.write(folder, 'model', state.model)
        _config(state, folder)
        torch.save({'state': {numbers[name]: states[name] for name in names},
                    'param_groups': [{**group, 'params': [numbers[name] for name in group['params']]} for group in groups]},
                   os.path.join(folder, 'optimizer.pt'))
        torch.save({'base_lrs': [lr, lr], 'last_epoch': step, '_step_count': step + 1, '_last_lr': [lr, lr],
                    'lr_lambdas': [None, None]}, os.path.join(folder, 'scheduler.pt'))
        write_text(folder, 'trainer_state.json', json.dumps(
            {'global_step': step, 'epoch': 0.0, 'log_history': [], 'is_world_process_zero': True, 'is_local_process_zero': True, 'train_batch_size': 1,
             'num_input_tokens_seen': state.numbers['tokens'] or 0}, indent=2) + '\n')
