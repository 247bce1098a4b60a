#!/usr/bin/env python3
"""Checkpoints that torch makes in the manner of other trainers (trainers.py): sherd-import finds weights and moments to
the bit, a run goes on with the losses of the other one, sherd-export leads back, and what is wrong, damaged or evil is
one line with nothing run and nothing left behind. Prints TAP. Needs the virtual environment that tests/hf/venv makes;
SHERD_HF_VENV names it. SHERD_TEST_FEW=1 leaves out memory and options: they start Python with torch five times.
"""
import contextlib
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

job.enter_venv('torch')
import torch

import torch_reference
import trainers

PROGRAMS = job.TOP / 'src/tools/states'
sys.path.insert(0, str(PROGRAMS))
from sherd_states import command, tensors
LOSS_BOUND = 2e-6  # relative
RUN = {
    'training.seq_len': trainers.SEQ, 'training.local_batch_size': trainers.BATCH, 'training.global_batch_size': trainers.BATCH,
    'training.steps': trainers.STEPS + trainers.MORE, 'training.mixed_precision_param': 'float32', 'training.max_norm': 0,
    'training.threads': 1, 'data.shuffle': False, 'training.dataset_path': '../tokens.bin',
    'optimizer.lr': trainers.LR, 'optimizer.beta1': trainers.BETAS[0], 'optimizer.beta2': trainers.BETAS[1],
    'optimizer.eps': trainers.EPS, 'optimizer.weight_decay': trainers.DECAY, 'lr_scheduler.decay_type': 'constant',
    'job.dump_folder': 'out',
}
LLMC = ['--lr', str(trainers.LR), '--weight-decay', str(trainers.DECAY)]
FSDP = {'DCP of FSDP2': 'dcp', 'DCP of FSDP2, tied': 'tied', 'DCP of an application': 'app', 'DCP of torchtitan': 'titan',
        'DCPs of accelerate': 'accelerate', 'full state of FSDP2': 'full', 'story': 'story'}
# name: what makes it, or None for a row above, what sherd-import is told, whether all parameters decay
MADE = {
    'DCP of FSDP2': (None, ['--hf', 'hf'], True),
    'DCP of FSDP2, tied': (None, ['--hf', 'hf'], True),
    'DCP of an application': (None, ['--hf', 'hf'], True),
    'DCP of torchtitan': (None, ['--hf', 'hf'], True),
    'DCPs of accelerate': (None, ['--hf', 'hf'], True),
    'full state of FSDP2': (None, ['--hf', 'hf'], True),
    'state_dict() of both': (trainers.plain, ['--hf', 'hf'], True),
    'Trainer': (trainers.trainer, [], False),
    'nanoGPT': (trainers.nano, ['--gelu', 'tanh'], False),
    **{f'ZeRO-{stage}': (lambda at, stage=stage: trainers.zero(at, stage), ['--hf', 'hf'], False) for stage in (1, 2, 3)},
    'universal': (trainers.universal, ['--hf', 'hf'], True),
    'universal of ZeRO-3': (lambda at: trainers.universal(at, 3), ['--hf', 'hf'], True),
    'llm.c': (lambda at: trainers.llmc(at, 1, False), LLMC, False),
    'llm.c, ZeRO-1, masters': (lambda at: trainers.llmc(at, 2, True), LLMC, False),
}
# What sherd-import must say of what it leaves out.
LEFT_OUT = {'DCP of FSDP2': 'epoch', 'Trainer': 'rng_state.pth, scheduler.pt, training_args.bin', 'ZeRO-1': 'lr_scheduler, my_epoch',
            'ZeRO-3': 'lr_scheduler, my_epoch', 'DCP of torchtitan': 'dataloader, lr_scheduler'}
REFERENCE = {}


def made(name):
    """The folder of a row, which is made once: `save` is the checkpoint."""
    if name in FSDP:
        at = pathlib.Path('fsdp').resolve()
        if name not in REFERENCE:
            shutil.rmtree(at, ignore_errors=True)
            trainers.two_processes(at, *FSDP.values())
            REFERENCE.update({row: torch.load(at / kind / 'reference') for row, kind in FSDP.items()})
        return at / FSDP[name]
    at = pathlib.Path(''.join(c if c.isalnum() else '-' for c in name)).resolve()
    if name not in REFERENCE:
        shutil.rmtree(at, ignore_errors=True)
        REFERENCE[name] = MADE[name][0](at)
    return at


def program(name, *words, folder):
    """In this process: importing torch would take most of the time. case_words() starts the programs themselves."""
    out, err, back, argv = io.StringIO(), io.StringIO(), os.getcwd(), sys.argv
    os.chdir(folder)
    sys.argv = [name, *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = {'sherd-import': command.bring_in, 'sherd-export': command.give_out}[name]()
    except SystemExit as end:
        status = end.code
    finally:
        os.chdir(back)
        sys.argv = argv
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def run(name, *words, folder):
    done = program(name, *words, folder=folder)
    if done.returncode:
        raise job.Failed(f'{name} {" ".join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}')
    return done


def read(path):
    """Tensors of a file of safetensors, from the description of the format alone."""
    data = path.read_bytes()
    length, = struct.unpack('<Q', data[:8])
    header = json.loads(data[8:8 + length])
    header.pop('__metadata__', None)
    out = {}
    for name, entry in header.items():
        begin, end = entry['data_offsets']
        assert entry['dtype'] == 'F32'
        out[name] = torch.frombuffer(bytearray(data[8 + length + begin:8 + length + end]), dtype=torch.float32).view(entry['shape'])
    return out


def compare(state, was):
    """Bits of the three tables; a tied output matrix may be there twice."""
    wrong = []
    for table, wanted in was.items():
        found = read(state / f'{table}.safetensors')
        if found.keys() - {'lm_head.weight'} != wanted.keys() - {'lm_head.weight'}:
            wrong.append(f'{table}: other names: {sorted(found.keys() ^ wanted.keys())}')
        wrong += [f'{table}: {name} differs' for name, tensor in wanted.items() if not torch.equal(found[name], tensor)]
    return wrong


def compare_numbers(state, decay_all):
    found = json.loads((state / 'state.json').read_text())
    vectors = {name for name, tensor in read(state / 'exp_avg.safetensors').items() if tensor.dim() < 2}
    wanted = {'step': trainers.STEPS, 'updates': trainers.STEPS, 'samples': None, 'lr': trainers.LR, 'beta1': trainers.BETAS[0],
              'beta2': trainers.BETAS[1], 'eps': trainers.EPS, 'weight_decay': trainers.DECAY}
    return [f'state.json: {key} is {found[key]!r}, not {value!r}' for key, value in wanted.items() if found[key] != value] + (
        [] if bool(vectors & set(found['decay'])) == decay_all else ['state.json: other parameters decay'])


def case_import(name):
    at, (_, words, decay_all) = made(name), MADE[name]
    shutil.rmtree(at / 'state', ignore_errors=True)
    said = run('sherd-import', 'save', '-o', 'state', *words, folder=at).stderr
    reference = REFERENCE[name]
    wrong = [] if name not in LEFT_OUT or f'left out: {LEFT_OUT[name]}\n' in said else [f'said: {said}']
    wrong += compare(at / 'state', reference['was']) + compare_numbers(at / 'state', decay_all)
    job.sherd('ckpt', 'import', 'state', '-o', 'imported', folder=at)
    job.prepare(at / 'run', {**RUN, 'model.hf_assets_path': '../state', 'checkpoint.initial_load_path': '../imported',
                             'optimizer.decay_all': decay_all})
    job.sherd('train', 'c.yaml', folder=at / 'run')
    return wrong + job.differ('losses', job.losses(job.metrics(at / 'run')), reference['losses'], LOSS_BOUND)


# ---- the way back ----


def state_of(name):
    at = made(name)
    if not (at / 'state').exists():
        run('sherd-import', 'save', '-o', 'state', *MADE[name][1], folder=at)
    return at


def same_files(a, b, but=()):
    return [f'{path.name} differs' for path in sorted(a.iterdir()) if path.name not in but
            and path.read_bytes() != (b / path.name).read_bytes()]


def case_round_trip(name, to):
    """State folder, checkpoint of Sherd, state folder, other trainer, state folder: the same bytes."""
    at = state_of(name)
    for folder in 'c', 's2', 'there', 's3':
        shutil.rmtree(at / folder, ignore_errors=True)
    job.sherd('ckpt', 'import', 'state', '-o', 'c', folder=at)
    job.sherd('ckpt', 'export', 'c', '--moments', '-o', 's2', folder=at)
    run('sherd-export', 's2', '--to', to, '-o', 'there', folder=at)
    run('sherd-import', 'there', '-o', 's3', folder=at)
    wrong = same_files(at / 's2', at / 's3', ('state.json', 'config.json'))
    a, b = (json.loads((at / folder / 'state.json').read_text()) for folder in ('s2', 's3'))
    a['decay'].sort()
    return wrong + [f'{key} is {b[key]!r}, not {a[key]!r}' for key in a if a[key] != b[key] and key not in ('source', 'samples', 'tokens')]


def case_dcp_loads():
    """torch's own reader fills model and optimizer with what sherd-export wrote, and torch goes on as it did."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    name = 'DCP of FSDP2'
    at = state_of(name)
    shutil.rmtree(at / 'back', ignore_errors=True)
    run('sherd-export', 'state', '--to', 'dcp', '-o', 'back', folder=at)
    model = trainers.llama()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    optimizer = trainers.all_decay(model)
    weights, states = get_state_dict(model, optimizer)
    content = {'model': weights, 'optimizer': states}
    dcp.load(content, checkpoint_id=at / 'back', no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=content['model'], optim_state_dict=content['optimizer'])
    tokens = trainers.stream(trainers.STEPS + trainers.MORE)
    losses = trainers.train(model, optimizer, trainers.MORE, trainers.STEPS, tokens)
    return job.differ('losses', losses, REFERENCE[name]['losses'], LOSS_BOUND)


def case_trainer_loads():
    """Trainer resumes from what sherd-export wrote, and takes the steps that torch would."""
    import transformers
    at = state_of('Trainer')
    shutil.rmtree(at / 'back', ignore_errors=True)
    run('sherd-export', 'state', '--to', 'trainer', '-o', 'back', folder=at)
    tokens, last = trainers.stream(trainers.STEPS + trainers.MORE), trainers.STEPS + 1
    rows = [{'input_ids': row, 'labels': row} for step in range(last) for row in trainers.rows_of(tokens, step)[:, :-1]]
    arguments = transformers.TrainingArguments(
        output_dir=at / 'out2', max_steps=last, per_device_train_batch_size=trainers.BATCH, save_strategy='no',
        learning_rate=trainers.LR, adam_beta1=trainers.BETAS[0], adam_beta2=trainers.BETAS[1], adam_epsilon=trainers.EPS,
        weight_decay=trainers.DECAY, max_grad_norm=0.0, use_cpu=True, lr_scheduler_type='constant', report_to=[], disable_tqdm=True)
    model = trainers.llama()
    with contextlib.redirect_stdout(sys.stderr):
        resumed = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        resumed.train(resume_from_checkpoint=str(at / 'back'))
    steps = {int(state['step']) for state in resumed.optimizer.optimizer.state.values()}
    wrong = [] if steps == {last} else [f'the optimizer is at {steps}, not {last}']
    was = REFERENCE['Trainer']['was']
    for name, p in model.named_parameters():
        moment = resumed.optimizer.optimizer.state[p]['exp_avg']
        gradient = (moment - 0.9 * was['exp_avg'][name]) / 0.1
        if not 1e-9 < (p.detach() - was['model'][name]).abs().max() < 4 * trainers.LR or gradient.abs().max() > 10:
            wrong.append(f'{name} has not gone on from its weight and moment')
    return wrong


# ---- refusals ----


class Evil:
    def __reduce__(self):
        return os.system, ('touch PWNED',)


EVIL = pickle.dumps(Evil())
# By getattr() early Pythons 3.11 pickle members of enumerations, so it is allowed for those.
REACH = b'cbuiltins\ngetattr\n(ctorch.distributed.checkpoint.metadata\nMetadata\nX\x08\0\0\0__init__tR.'


def evil_torch(path):
    torch.save({'model': Evil(), 'optimizer': {}, 'model_args': {}, 'iter_num': 1}, path)


class Reach:
    def __reduce__(self):
        return getattr, (torch.Tensor, '__init__')


def evil_reach(path):
    torch.save({'optimizer_state_dict': Reach()}, path)


def rewrite_metadata(change):
    """.metadata with something else in it; this one is known to be torch's own, so the test may unpickle it."""
    def make(at):
        path = at / '.metadata'
        content = pickle.loads(path.read_bytes())
        change(content)
        path.write_bytes(pickle.dumps(content))
    return make


def entry(content, name='model.model.norm.weight'):
    return content.state_dict_metadata[name]


def move(content, **to):
    index = next(iter(content.storage_data))
    for key, value in to.items():
        setattr(content.storage_data[index], key, value)


def shrink(content):
    chunk = entry(content).chunks[0]
    chunk.sizes = torch.Size([chunk.sizes[0] - 1])


def drop_place(content):
    content.storage_data.pop(next(iter(content.storage_data)))


def twice(content):
    entry(content).chunks.append(entry(content).chunks[0])


def rename(content):
    for table in content.state_dict_metadata, :
        table['model.model.nrom.weight'] = table.pop('model.model.norm.weight')
    for index in list(content.storage_data):
        if index.fqn == 'model.model.norm.weight':
            place = content.storage_data.pop(index)
            content.storage_data[type(index)('model.model.nrom.weight', index.offset, index.index)] = place


def extra(content):
    content.state_dict_metadata['ema.norm'] = entry(content)
    for index in list(content.storage_data):
        if index.fqn == 'model.model.norm.weight':
            content.storage_data[type(index)('ema.norm', index.offset, index.index)] = content.storage_data[index]


def saved(change):
    """A file of torch.save() with something else in it."""
    def make(path):
        content = torch.load(path, weights_only=True)
        change(content)
        torch.save(content, path)
    return make


def first_state(content):
    return next(iter(content['optimizer']['state'].values()))


def group(content):
    return content['optimizer']['param_groups'][0]


def truncate(part):
    return lambda path: os.truncate(path, int(path.stat().st_size * part))


DCP, FULL, PLAIN, TRAINER, NANO, LLM = ('DCP of FSDP2', 'full state of FSDP2', 'state_dict() of both', 'Trainer', 'nanoGPT',
                                        'llm.c, ZeRO-1, masters')
OPTIM = [f'global_step{trainers.STEPS}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt' for rank in range(2)]
# what, in which checkpoint, which file of it ('': the whole), what is done to it, text of the error
BAD = [
    ('evil .metadata', DCP, '.metadata', lambda p: p.write_bytes(EVIL), 'system, which no description of tensors needs'),
    ('evil attribute in .metadata', DCP, '.metadata', lambda p: p.write_bytes(REACH), 'reads __init__ of an object'),
    ('evil piece', DCP, '__0_0.distcp', lambda p: p.write_bytes(EVIL * (p.stat().st_size // len(EVIL) + 1)), '__0_0.distcp, at byte'),
    ('evil full state', FULL, '', evil_torch, 'nothing of which was run'),
    ('evil full state, a bare pickle', FULL, '', lambda p: p.write_bytes(EVIL), 'nothing of which was run'),
    ('evil optimizer.pt', TRAINER, 'optimizer.pt', evil_torch, 'nothing of which was run'),
    ('evil pytorch_model.bin', TRAINER, '', lambda p: ((p / 'model.safetensors').unlink(), evil_torch(p / 'pytorch_model.bin')),
     'nothing of which was run'),
    ('evil ckpt.pt', NANO, 'ckpt.pt', evil_torch, 'nothing of which was run'),
    ('evil states of ZeRO', 'ZeRO-2', OPTIM[0], evil_torch, 'nothing of which was run'),
    ('evil attribute in states of ZeRO', 'ZeRO-2', OPTIM[0], evil_reach, 'nothing of which was run. Unsupported: the attribute __init__'),
    ('evil model states of ZeRO', 'ZeRO-2', f'global_step{trainers.STEPS}/mp_rank_00_model_states.pt', evil_torch, 'nothing of which was run'),
    ('evil universal', 'universal', 'zero/model.norm.weight/exp_avg.pt', evil_torch, 'nothing of which was run'),
    ('no states of the last rank', 'ZeRO-2', OPTIM[1], pathlib.Path.unlink, 'and there are states of 1'),
    ('no states of the first rank', 'ZeRO-3', OPTIM[0], pathlib.Path.unlink, 'has no optimizer states of rank 0'),
    ('half of the states of a rank', 'ZeRO-2', OPTIM[1], truncate(0.5), 'is damaged'),
    ('latest leads outside', 'ZeRO-2', 'latest', lambda p: p.write_text('../..'), 'latest: ../.. is not the name of a folder'),
    ('no second part of a tensor', 'universal', 'zero/model.norm.weight/exp_avg.pt', pathlib.Path.unlink, 'exp_avg.pt'),
    ('half of .metadata', DCP, '.metadata', truncate(0.5), '.metadata is damaged'),
    ('half of a data file', DCP, '__1_0.distcp', truncate(0.5), 'truncated'),
    ('no data file', DCP, '__1_0.distcp', pathlib.Path.unlink, 'it has a part of'),
    ('zeros in a data file', DCP, '__0_0.distcp', lambda p: p.write_bytes(bytes(p.stat().st_size)), '__0_0.distcp, at byte'),
    ('a place outside', DCP, '', rewrite_metadata(lambda c: move(c, relative_path='../x')), "../x is not the name of a file beside it"),
    ('an absolute place', DCP, '', rewrite_metadata(lambda c: move(c, relative_path='/etc/passwd')), 'is not the name of a file'),
    ('a place beyond the end', DCP, '', rewrite_metadata(lambda c: move(c, offset=1 << 40)), 'truncated'),
    ('a negative place', DCP, '', rewrite_metadata(lambda c: move(c, offset=-5)), 'truncated'),
    ('a transformed piece', DCP, '', rewrite_metadata(lambda c: move(c, transform_descriptors=['zstd'])), 'is stored transformed'),
    ('no place of a part', DCP, '', rewrite_metadata(drop_place), 'no file has the part of'),
    ('a part twice', DCP, '', rewrite_metadata(twice), 'overlap'),
    ('another shape of a part', DCP, '', rewrite_metadata(shrink), 'not the part of model.model.norm.weight'),
    ('a weight of another name', DCP, '', rewrite_metadata(rename), 'the weights model.norm.weight of the optimizer are missing'),
    ('an unknown entry', DCP, '', rewrite_metadata(extra), 'has ema.norm, which are not understood; --drop NAME'),
    ('half of a full state', FULL, '', truncate(0.5), 'is damaged, or not a file of torch.save()'),
    ('amsgrad', FULL, '', saved(lambda c: first_state(c).update(max_exp_avg_sq=torch.zeros(1))), 'has the states max_exp_avg_sq'),
    ('amsgrad in a group', FULL, '', saved(lambda c: group(c).update(amsgrad=True)), 'has amsgrad, which AdamW does not have here'),
    ('Adam', FULL, '', saved(lambda c: group(c).update(decoupled_weight_decay=False)), 'has decoupled_weight_decay'),
    ('moments without correction', FULL, '', saved(lambda c: group(c).update(bias_correction=False)), 'has bias_correction'),
    ('an unknown key of a group', FULL, '', saved(lambda c: group(c).update(caution=True)), 'has caution'),
    ('different steps', FULL, '', saved(lambda c: first_state(c).update(step=torch.tensor(9.0))), 'has had 3 updates'),
    ('a step of a half', FULL, '', saved(lambda c: [s.update(step=torch.tensor(2.5)) for s in c['optimizer']['state'].values()]),
     '2.5 is not a number of updates'),
    ('fewer steps than updates', FULL, '', saved(lambda c: c.update(step=1)), 'it is of step 1, but its optimizer has made 3 updates'),
    ('a moment is missing', FULL, '', saved(lambda c: first_state(c).pop('exp_avg')), 'not each parameter has exp_avg'),
    ('a moment of another shape', FULL, '', saved(lambda c: first_state(c).update(exp_avg=torch.zeros(3))), 'exp_avg of model.embed'),
    ('a moment of whole numbers', FULL, '', saved(lambda c: first_state(c).update(exp_avg=first_state(c)['exp_avg'].long())),
     'a tensor of type torch.int64'),
    ('8-bit states', FULL, '', saved(lambda c: [(s.pop('exp_avg'), s.update(state1=torch.zeros(1))) for s in c['optimizer']['state'].values()]),
     'has the states state1; only those of AdamW'),
    ('no optimizer', FULL, '', saved(lambda c: c.pop('optimizer')), 'has no states of an optimizer'),
    ('two optimizers', FULL, '', saved(lambda c: c.update(optim2={'state': c['optimizer']['state']})), 'several optimizers'),
    ('two models', FULL, '', saved(lambda c: c.update(ema=c['model'])), 'more than one model'),
    ('groups of two decays', FULL, '', saved(lambda c: c['optimizer'].update(param_groups=[
        {**group(c), 'params': group(c)['params'][:2], 'weight_decay': 0.3}, {**group(c), 'params': group(c)['params'][2:]}])),
     'several weight decays: 0.1, 0.3'),
    ('groups of two rates', FULL, '', saved(lambda c: c['optimizer'].update(param_groups=[
        {**group(c), 'params': group(c)['params'][:2], 'lr': 1.0, 'initial_lr': 1.0}, {**group(c), 'params': group(c)['params'][2:]}])),
     'differ in lr'),
    ('numbers in two groups', PLAIN, '', saved(lambda c: c['optimizer'].update(param_groups=[
        {**group(c), 'params': [0]}, {**group(c), 'params': group(c)['params'][1:]}])), 'numbers in several groups'),
    ('numbers in another order', PLAIN, '', saved(lambda c: c.update(model=dict(reversed(c['model'].items())))), 'in another order'),
    ('no trainer_state.json of its own', TRAINER, 'trainer_state.json', lambda p: p.write_text('{}'), 'global_step is None'),
    ('half of optimizer.pt', TRAINER, 'optimizer.pt', truncate(0.5), 'optimizer.pt is damaged'),
    ('half of model.safetensors', TRAINER, 'model.safetensors', truncate(0.5), 'model.safetensors'),
    ('another model beside', TRAINER, 'config.json', lambda p: p.write_text(p.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')),
     'the optimizer has 21 parameters, the model 30'),
    ('code in the folder', TRAINER, 'config.json', lambda p: p.write_text(p.read_text().replace('"model_type": "llama"', '"model_type": "mine"')),
     'transformers cannot make the model of config.json'),
    ('no biases', NANO, 'ckpt.pt', saved(lambda c: c['model_args'].update(bias=False)), 'bias=False'),
    ('half of a model of llm.c', LLM, f'model_{trainers.STEPS:08d}.bin', truncate(0.5), 'has'),
    ('half of a state of llm.c', LLM, f'state_{trainers.STEPS:08d}_00001.bin', truncate(0.5), 'or is truncated'),
    ('no second state of llm.c', LLM, f'state_{trainers.STEPS:08d}_00001.bin', pathlib.Path.unlink, '_00001.bin'),
    ('a header of zeros', LLM, f'state_{trainers.STEPS:08d}_00000.bin', lambda p: p.write_bytes(bytes(p.stat().st_size)), 'is not a file of llm.c'),
]


def case_refused(name, file, make, expected):
    at = made(name)
    box = at / 'box'
    shutil.rmtree(box, ignore_errors=True)
    box.mkdir()
    (shutil.copytree if (at / 'save').is_dir() else shutil.copyfile)(at / 'save', box / 'save')
    make(box / 'save' / file if file else box / 'save')
    words = [f'{at}/hf' if word == 'hf' else word for word in MADE[name][1]]
    done = program('sherd-import', 'save', '-o', 'state', *words, folder=box)
    errors = [line for line in done.stderr.splitlines() if not line.startswith('sherd-import: left out')]
    wrong = [] if done.returncode == 3 and len(errors) == 1 and errors[0].startswith('sherd-import: error: ') and expected in errors[0] \
        else [f'exit {done.returncode}: {done.stdout}{done.stderr}']
    return wrong + [f'{path.name} is left' for path in box.iterdir() if path.name != 'save']


def case_words():
    """Options and their absence."""
    at, wrong = made(DCP), []
    for folder in 'ours', 'steps/checkpoint-9', 'steps/checkpoint-10':
        (at / folder).mkdir(parents=True, exist_ok=True)
    (at / 'ours/state.json').touch()
    rewrite_metadata(extra)(shutil.copytree(at / 'save', at / 'more', dirs_exist_ok=True))
    for words, folder, text in [
            (['save'], at, 'give --hf DIR'), (['gone'], at, 'there is no such file or folder'),
            (['hf', '--hf', 'hf'], at, 'is not a checkpoint of a kind that is known; it has config.json'),
            (['ours'], at, 'ours is a state folder already: `sherd ckpt import ours'), (['steps'], at, 'name one, such as steps/checkpoint-10'),
            (['save', '--hf', 'hf', '--from', 'nanogpt'], at, 'ckpt.pt'), (['more', '--hf', 'hf', '--drop', 'em'], at, 'ema.norm'),
            (['save'], made(NANO), 'the exact GELU since May 2023'), (['save', '--lr', '1'], made(LLM), '--weight-decay')]:
        done = program('sherd-import', *words, '-o', 'x', folder=folder)
        wrong += [] if done.returncode == 3 and text in done.stderr and not (folder / 'x').exists() else [f'{words}: {done.stderr}']
    shutil.rmtree(at / 'dropped', ignore_errors=True)
    for words in ['sherd-import', 'more', '--hf', 'hf', '--drop', 'ema', '-o', 'dropped'], ['sherd-export', 'dropped', '--to', 'dcp', '-o', 'd']:
        done = subprocess.run([sys.executable, PROGRAMS / words[0], *words[1:]], capture_output=True, text=True, cwd=at)
        if done.returncode or done.stdout != words[-1] + '\n':
            wrong.append(f'{words}: {done.stdout}{done.stderr}')
    bare = subprocess.run([sys.executable, '-S', PROGRAMS / 'sherd-import', 'save', '--hf', 'hf', '-o', 'x'], capture_output=True, text=True, cwd=at)
    if bare.returncode != 2 or 'lacks torch; start sherd-import with one that has' not in bare.stderr:
        wrong.append(f'without torch: {bare.stderr}')
    done = program('sherd-import', 'save', '--hf', 'hf', '-o', 'dropped', folder=at)
    return wrong if 'exists already' in done.stderr else wrong + ['an existing folder is written']


def most_memory(layers):
    """Bytes of sherd-import while it reads a DCP of so many blocks, and of the state folder."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    at = pathlib.Path(f'large-{layers}').resolve()
    shutil.rmtree(at, ignore_errors=True)
    model = trainers.llama(hidden_size=512, intermediate_size=2048, num_hidden_layers=layers)
    optimizer = trainers.all_decay(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    model.config.save_pretrained(at / 'hf')
    weights, states = get_state_dict(model, optimizer)
    dcp.save({'model': weights, 'optimizer': states}, checkpoint_id=at / 'save', no_dist=True)
    # What is measured begins with the memory of the process that starts it, so a small one does.
    start = 'import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)'
    done = subprocess.run([sys.executable, '-c', start, sys.executable, PROGRAMS / 'sherd-import', 'save', '-o', 'state', '--hf', 'hf'],
                          cwd=at, capture_output=True, text=True, check=True)
    found = int(done.stdout.split()[-1]) * 1024, sum(path.stat().st_size for path in (at / 'state').iterdir())
    shutil.rmtree(at)
    return found


def case_memory():
    """A state is read in ranges: one that is 150 MB larger does not take two of its tensors more."""
    (small, less), (large, more) = most_memory(1), most_memory(4)
    print(f'# {large - small} bytes more for {more - less} more of the state')
    return [] if large - small < 2 * 512 * 2048 * 4 < more - less else [f'{large - small} bytes more']


def case_stopped():
    """A stop or a full disk between two files: nothing is left, and one line says why."""
    from unittest import mock
    at, wrong = made(DCP), []
    before = sorted(path.name for path in at.iterdir())
    write = tensors.write
    for error, text in (KeyboardInterrupt(), 'stopped'), (OSError(28, 'No space left on device'), 'No space left on device'):
        def broken(folder, stem, named, error=error):
            if stem == 'exp_avg_sq':
                raise error
            write(folder, stem, named)
        with mock.patch.object(tensors, 'write', broken):
            done = program('sherd-import', 'save', '--hf', 'hf', '-o', 'x', folder=at)
        if done.returncode != 3 or text not in done.stderr or sorted(path.name for path in at.iterdir()) != before:
            wrong.append(f'{done.returncode}: {done.stderr}')
    return wrong


def case_story():
    """50 steps of FSDP2 on two processes, then Sherd on three ranks; the export says what torch's own continuation says."""
    import transformers
    at, reference = made('story'), REFERENCE['story']
    for folder in 'state', 'imported', 'exported':
        shutil.rmtree(at / folder, ignore_errors=True)
    run('sherd-import', 'save', '-o', 'state', '--hf', 'hf', folder=at)
    job.sherd('ckpt', 'import', 'state', '-o', 'imported', folder=at)
    job.prepare(at / 'run', {**RUN, 'training.local_batch_size': 2, 'training.global_batch_size': 6, 'training.steps': 60,
                             'model.hf_assets_path': '../state', 'checkpoint.initial_load_path': '../imported',
                             'optimizer.decay_all': True})
    job.sherd('train', 'c.yaml', ranks=3, folder=at / 'run')
    wrong = job.differ('losses', job.losses(job.metrics(at / 'run')), reference['losses'], 2e-5)
    job.sherd('ckpt', 'export', 'run/out', '-o', 'exported', folder=at)
    ours = transformers.AutoModelForCausalLM.from_pretrained(at / 'exported', dtype=torch.float32)
    theirs = trainers.llama()
    theirs.load_state_dict(reference['after'])
    texts = [model.generate(torch.tensor([[3, 5, 8, 13]]), attention_mask=torch.ones(1, 4), max_new_tokens=64, min_new_tokens=64,
                            do_sample=False, pad_token_id=0)[0].tolist() for model in (ours, theirs)]
    return wrong + ([] if texts[0] == texts[1] and len(texts[0]) == 68 else [f'{texts[0]}', f'{texts[1]}'])


def case_muon(family):
    """The Muon in float64 that Sherd is compared with (tests/gold/test_torch.py) is torch's own, but for its bfloat16: five steps of
    matrices of both orders, which GPT-2 stores turned, and of which Phi-3 stores several in one."""
    torch.manual_seed(3)
    start = [0.1 * torch.randn(40, 24), 0.1 * torch.randn(24, 64)]
    names, c = ('0', '1'), {'optimizer.muon_split': 'none'}
    if family == 'phi3':  # heads of 8 rows: 3 of q, 1 of k and of v; 20 rows of gate and of up
        start, names, c = [torch.cat((start[0], start[0]), 1), start[0].flip(0)], ('qkv_proj', 'gate_up_proj'), {'model.n_kv_heads': 1}
    turned = (lambda x: x.T) if family == 'gpt2' else (lambda x: x)
    cut = (lambda x: [*x[0].split([24, 8, 8]), *x[1].chunk(2)]) if family == 'phi3' else list
    ours = [torch.nn.Parameter(turned(x).double().contiguous()) for x in start]
    theirs = [torch.nn.Parameter(x.clone()) for x in cut(start)]
    c |= {f'optimizer.{key}': value for key, value in (('name', 'muon'), ('momentum', 0.9), ('weight_decay', 0.1),
                                                       ('beta1', 0.9), ('beta2', 0.95), ('eps', 1e-8))}
    mine = torch_reference.Muon(list(zip(names, ours)), {**c, 'model.family': family, 'model.head_dim': 8, 'model.n_heads': 3})
    mine.param_groups[0]['lr'] = mine.param_groups[1]['lr'] = 0.01
    other = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.1, momentum=0.9, adjust_lr_fn='match_rms_adamw')
    for _ in range(5):
        grads = [torch.randn(x.shape) for x in start]
        for y, part in zip(theirs, cut(grads)):
            y.grad = part.clone()
        for x, whole in zip(ours, grads):
            x.grad = turned(whole).double()
        mine.step()
        other.step()
    off, way = (sum(float((x.detach() - y.detach()).norm() ** 2) for x, y in zip(cut([turned(x) for x in ours]), to)) ** 0.5 for to in (theirs, cut(start)))
    print(f'# {family}: {off / way:.2g} of the way from torch.optim.Muon')
    return [] if off <= 1e-2 * way else ['further than its rounding']


cases = [(f'import: {name}', case_import, name) for name in MADE]
cases += [('round trip over DCP', case_round_trip, DCP, 'dcp'), ('round trip over Trainer', case_round_trip, TRAINER, 'trainer'),
          ('torch loads the DCP', case_dcp_loads), ('Trainer resumes from the folder', case_trainer_loads), ('stopped', case_stopped)]
cases += [] if job.FEW else [('options', case_words), ('memory', case_memory)]
cases += [(f'refused: {what}', case_refused, *row) for what, *row in BAD]
if hasattr(torch.optim, 'Muon'):  # from torch 2.9 on
    cases += [(f'torch.optim.Muon, {family}', case_muon, family) for family in ('llama', 'gpt2', 'phi3')]
if job.can_launch():
    cases.append(('50 steps of FSDP2, then three ranks', case_story))
torch.set_num_threads(1)
sys.exit(job.run_cases(cases))
