#!/usr/bin/env python3
"""Sherd's checkpoints as models of lm_eval. In the folder of this file:

    python3 lm_eval_sherd.py --model sherd --model_args checkpoint=outputs --tasks hellaswag

model_args: checkpoint=FILE or FOLDER; tokenizer=DIR (default: the one that the checkpoint names); launcher="mpirun -n 4"
(default: none); batch=N, context=N (as in `sherd eval`); sherd=PROGRAM; precision=float32 or bfloat16 (default: the
checkpoint's).
All requests of a task go to one call of `sherd eval --requests` or `sherd generate --prompts`.
"""
import json
import os
import re
import shlex
import subprocess
import tempfile

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model


@register_model('sherd')
class Sherd(LM):
    def __init__(self, checkpoint, tokenizer=None, launcher='', batch=None, context=None, sherd='sherd', precision=None,
                 batch_size=None, max_batch_size=None, device=None, **unknown):
        super().__init__()
        if unknown:
            raise ValueError(f'lm_eval_sherd: unknown model_args: {", ".join(sorted(unknown))}')
        self.call = [*shlex.split(launcher), sherd]
        self.options = ['--checkpoint', checkpoint]
        # lm_eval passes 1 if no batch size was given.
        rows = str(batch or batch_size or '')
        self.options += ['--batch', rows] if rows.isdigit() and int(rows) > 1 or batch else []
        self.options += ['--tokenizer', tokenizer] if tokenizer else []
        self.options += ['--context', str(context)] if context else []
        self.options += [f'--training.mixed_precision_param={precision}'] if precision else []

    def run(self, command, *options):
        done = subprocess.run([*self.call, command, *self.options, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True)
        if done.returncode:
            raise RuntimeError(f'sherd {command} ended with {done.returncode}: {done.stderr.strip()}')
        return done.stdout

    def ask(self, command, option, lines, *options):
        """Run the command on these lines; return one line of answer for each."""
        with tempfile.TemporaryDirectory() as folder:
            name, answers = os.path.join(folder, 'in.jsonl'), os.path.join(folder, 'out.jsonl')
            with open(name, 'w', encoding='utf-8') as f:
                f.writelines(json.dumps(line) + '\n' for line in lines)
            self.run(command, option, name, '-o', answers, *options)
            with open(answers, encoding='utf-8') as f:
                return [json.loads(line) for line in f]

    def loglikelihood(self, requests):
        pairs = [request.args for request in requests]
        answers = self.ask('eval', '--requests', [{'context': c, 'continuation': t} for c, t in pairs])
        return [(answer['logprob'], answer['is_greedy']) for answer in answers]

    def loglikelihood_rolling(self, requests):
        return [self.rolling(request.args[0]) for request in requests]

    def rolling(self, text):
        with tempfile.NamedTemporaryFile('w', encoding='utf-8') as f:
            f.write(text)
            f.flush()
            return float(re.match(r'log-likelihood (\S+)', self.run('eval', '--text', f.name)).group(1))

    def generate_until(self, requests):
        """Requests with equal sampling arguments share a call; of several stop texts the program is given the first."""
        groups, found = {}, [None] * len(requests)
        for i, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(i)
        for words, members in groups.items():
            texts = self.generate([requests[i].args[0] for i in members], **json.loads(words))
            for i, text in zip(members, texts):
                found[i] = text
        return found

    def generate(self, prompts, until=(), max_gen_toks=256, do_sample=False, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0,
                 **unknown):
        if unknown:
            raise ValueError(f'lm_eval_sherd: unknown generation_kwargs: {", ".join(sorted(unknown))}')
        until = [until] if isinstance(until, str) else list(until)
        options = ['--tokens', str(max_gen_toks), '--temperature', str(temperature if do_sample else 0), '--top-k', str(top_k),
                   '--top-p', str(top_p), '--min-p', str(min_p), *([f'--stop={until[0]}'] if until else [])]
        answers = self.ask('generate', '--prompts', [{'prompt': prompt} for prompt in prompts], *options)
        return [re.split('|'.join(map(re.escape, until)), answer['text'])[0] if until else answer['text'] for answer in answers]


if __name__ == '__main__':
    from lm_eval.__main__ import cli_evaluate
    cli_evaluate()
