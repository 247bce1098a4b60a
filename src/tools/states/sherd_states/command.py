"""The commands sherd-import and sherd-export."""
import argparse
import os
import re
import signal
import sys

from . import export, folder, gpt2, nested, trainer
from .base import Refused, listed, names_in


def _deepspeed(path, options):
    from . import deepspeed
    return deepspeed.read(path, options)


def _in(name):
    def read(path, options):
        return gpt2.read_nano(os.path.join(path, name) if os.path.isdir(path) else path, options)
    return read


# A row for each kind: what its folder has, what reads it.
KINDS = {
    'trainer': (lambda there: 'trainer_state.json' in there, trainer.read),
    'accelerate': (lambda there: any(name.startswith('pytorch_model_fsdp') for name in there), nested.read_accelerate),
    'deepspeed': (lambda there: 'latest' in there or any(name.endswith('_optim_states.pt') for name in there) or 'zero' in there,
                  _deepspeed),
    'dcp': (lambda there: '.metadata' in there, nested.read_dcp),
    'nanogpt': (lambda there: 'ckpt.pt' in there, _in('ckpt.pt')),
    'llmc': (lambda there: any(name.startswith('model_') and name.endswith('.bin') for name in there), gpt2.read_llmc),
    'file': (lambda there: False, nested.read_file),
}


# Folders that other trainers save side by side.
STEP = re.compile(r'(?:checkpoint-|step-|global_step)(\d+)')


def _number(name):
    return int(STEP.fullmatch(name)[1])


class Options:
    """What the kinds need beside their source."""

    def __init__(self, args):
        self.hf, self.drop, self.gelu = args.hf or '', args.drop or [], args.gelu
        self.lr, self.weight_decay, self.kind, self.source = args.lr, args.weight_decay, '', args.source

    def say(self, text):
        print(f'sherd-import: {text}', file=sys.stderr)

    def say_left_out(self, names):
        names = list(names)
        if names:
            self.say(f'left out: {listed(names, 20)}')

    def config(self, where):
        """config.json of --hf, or of the source itself."""
        if not self.hf and not os.path.exists(os.path.join(where, 'config.json')):
            raise Refused(f'{where} does not say what the model is: give --hf DIR, a folder of transformers with its config.json')
        self.hf = self.hf or where
        return folder.load_json(os.path.join(self.hf, 'config.json'))

    def need_tanh(self, program):
        if self.gelu != 'tanh':
            raise Refused(f'{self.source}: {program} has the exact GELU since May 2023, a gpt2 here the one by tanh, so losses go '
                          'on about 1e-4 away; --gelu tanh says that the run had that one, or may change to it')


def _kind_of(path):
    if os.path.isdir(path):
        there = names_in(path)
        found = [kind for kind, (has, _) in KINDS.items() if has(there)]
        if found:
            return found[0]
        if 'state.json' in there:
            raise Refused(f'{path} is a state folder already: `sherd ckpt import {path} -o FOLDER` makes a checkpoint of it')
        steps = [name for name in there if STEP.fullmatch(name)]
        if steps:
            raise Refused(f'{path} has checkpoints in it; name one, such as {os.path.join(path, max(steps, key=_number))}')
        raise Refused(f'{path} is not a checkpoint of a kind that is known; it has {listed(there)}')
    if not os.path.exists(path):
        raise Refused(f'{path}: there is no such file or folder')
    return 'nanogpt' if os.path.basename(path) == 'ckpt.pt' else 'file'


def _import(args):
    if os.path.lexists(args.output):
        raise Refused(f'{args.output} exists already; a state goes into a new folder')
    kind = args.kind or _kind_of(args.source)
    state = KINDS[kind][1](args.source.rstrip('/') or '/', Options(args))
    folder.write(state, args.output)
    print(args.output)


def _parser(name, text):
    parser = argparse.ArgumentParser(prog=name, description=text, allow_abbrev=False)
    parser.add_argument('source', metavar='SOURCE')
    parser.add_argument('-o', dest='output', metavar='FOLDER', required=True, help='folder to write, a new one')
    return parser


def _run(name, parser, work):
    args = parser.parse_args()
    # An end by a signal goes through the code that deletes what is not complete.
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, lambda *_: sys.exit(4))
    try:
        work(args)
        return 0
    except ImportError as error:
        print(f'{name}: error: this Python ({sys.executable}) lacks {error.name}; start {name} with one that has torch and numpy',
              file=sys.stderr)
        return 2
    except Refused as why:
        print(f'{name}: error: {why}', file=sys.stderr)
    except OSError as error:
        print(f'{name}: error: {error.filename or ""}: {error.strerror or error}', file=sys.stderr)
    except KeyboardInterrupt:
        print(f'{name}: stopped', file=sys.stderr)
    return 3


def bring_in():
    parser = _parser('sherd-import', 'Make a state folder of a checkpoint of another trainer, with moments and step; `sherd ckpt '
                     'import FOLDER -o CHECKPOINTS` makes a checkpoint of that. Pickles are read by lists of what they may name; '
                     'no code of a file is run.')
    parser.add_argument('--from', dest='kind', choices=sorted(KINDS), help='kind of the source; default: by the names of its files')
    parser.add_argument('--hf', metavar='DIR', help='folder of transformers with config.json, and the tokenizer if it has one')
    parser.add_argument('--drop', action='append', metavar='NAME', help='leave out this entry of the source and those below it')
    parser.add_argument('--gelu', choices=['tanh'], help='nanogpt: go on with the GELU by tanh')
    parser.add_argument('--lr', type=float, metavar='X', help='llmc: peak of the learning rate of that run')
    parser.add_argument('--weight-decay', type=float, metavar='X', help='llmc: weight decay of that run')
    return _run('sherd-import', parser, _import)


def _export(args):
    state = folder.read(args.source.rstrip('/') or '/')
    state.source = args.source
    {'dcp': export.to_dcp, 'trainer': export.to_trainer}[args.to](state, args.output)
    print(args.output)


def give_out():
    parser = _parser('sherd-export', 'Make a checkpoint of another trainer of a state folder, which `sherd ckpt export FILE '
                     '--moments -o STATE` makes of a checkpoint.')
    parser.add_argument('--to', choices=['dcp', 'trainer'], required=True, help='dcp: a distributed checkpoint of torch with '
                        'the entries model, optimizer and step; trainer: a folder for resume_from_checkpoint of Trainer')
    return _run('sherd-export', parser, _export)
