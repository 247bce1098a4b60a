#!/usr/bin/env python3
"""A realistic run: a tokenizer trained on the spot and a model of 10 M parameters made by transformers; full
fine-tuning on two ranks, an export that transformers opens, and a text that both continue in the same way. Prints TAP.
Needs the virtual environment that tests/hf/venv makes; SHERD_HF_VENV names it.
"""
import json
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

job.enter_venv()
import tokenizers
import torch
import transformers

STEPS, TOKENS, PROMPT = 30, 48, 'A checkpoint'
CLOSE = 2e-5  # logits nearer to each other than this may come in either order
SIZES = dict(vocab_size=4096, hidden_size=320, intermediate_size=896, num_hidden_layers=6, num_attention_heads=5,
             num_key_value_heads=5, max_position_embeddings=256)
# The first family that this Sherd supports.
MODELS = [lambda: transformers.Qwen3Config(**SIZES, head_dim=64), lambda: transformers.Qwen2Config(**SIZES),
          lambda: transformers.LlamaConfig(**SIZES)]
RUN = {
    'model.hf': '../model', 'training.dataset_path': '../train.bin', 'training.seq_len': 128, 'training.local_batch_size': 4,
    'training.global_batch_size': 8, 'training.steps': STEPS, 'training.threads': 1, 'training.mixed_precision_param': 'float32',
    'optimizer.lr': 1e-3, 'lr_scheduler.warmup_steps': 3, 'checkpoint.last_save_in_hf': True, 'validation.enable': True,
    'validation.dataset_path': '../val.bin', 'validation.freq': STEPS, 'validation.sequences': 8,
}


def text():
    return '\n'.join(path.read_text() for path in sorted((job.TOP / 'doc').glob('*.md')))


def make_tokenizer(folder):
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = tokenizers.decoders.ByteLevel()
    t.train_from_iterator([text()], tokenizers.trainers.BpeTrainer(
        vocab_size=SIZES['vocab_size'], special_tokens=['<|endoftext|>'], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=t, eos_token='<|endoftext|>')
    fast.save_pretrained(folder)


def make_model(folder):
    """The model, of the newest family that Sherd supports."""
    for config in MODELS:
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_config(config())
        model.config.eos_token_id = model.generation_config.eos_token_id = 0
        model.config.bos_token_id = model.generation_config.bos_token_id = None
        model.save_pretrained(folder)
        if subprocess.run(job.command(0, ['plan', f'--model.hf={folder}', '--training.seq_len=128']),
                          capture_output=True).returncode == 0:
            print(f'# {model.config.model_type}, {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters', flush=True)
            return
        shutil.rmtree(folder)
    raise job.Failed('none of the models is computed here')


def prepare():
    shutil.rmtree('model', ignore_errors=True)
    pathlib.Path('book.txt').write_text(text())
    make_model('model')
    make_tokenizer('model')
    job.sherd('tokenize', 'book.txt', '-o', 'train.bin', '--val', 'val.bin', '--tokenizer', 'model')


def validation(folder):
    lines = map(json.loads, (pathlib.Path(folder) / 'out/metrics.jsonl').read_text().splitlines())
    return [line for line in lines if 'validation_loss' in line]


def case_train():
    steps = job.train('run', RUN, ranks=2)
    losses = job.losses(steps)
    wrong = [] if losses[-1] < losses[0] - 1 else [f'the loss went from {losses[0]} to {losses[-1]}']
    return wrong + ([] if validation('run')[-1].get('bits_per_byte', 0) > 0 else ['no bits per byte'])


def differs(model, ours, theirs, ids):
    """At the first difference, the two best logits must be practically equal."""
    for at, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            best = model(torch.tensor([ids + theirs[:at]])).logits[0, -1].topk(2).values
            gap = (best[0] - best[1]).item()
            return [] if gap < CLOSE else [f'token {at + 1} is {a}, for transformers {b}, which is {gap:.2g} ahead']
    return []


def case_same_text():
    folder = f'run/out/checkpoint/hf-{STEPS:08}'
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    wrong = [f'{key}: {sorted(value)}' for key, value in info.items() if value]
    tokenizer = tokenizers.Tokenizer.from_file(f'{folder}/tokenizer.json')
    ids = tokenizer.encode(PROMPT).ids
    with torch.no_grad():
        theirs = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=TOKENS)[0, len(ids):].tolist()
        said = job.sherd('generate', '--checkpoint', 'run/out', '--prompt', PROMPT, '--tokens', TOKENS, '--temperature', 0,
                         '--model.tokenizer=model')
        print(f'# {said.strip()!r}', flush=True)
        if not said.startswith(PROMPT):
            return wrong + [f'it begins otherwise: {said!r}']
        if said.rstrip('\n') == tokenizer.decode(ids + theirs).rstrip('\n'):
            return wrong
        return wrong + differs(model, tokenizer.encode(said.rstrip('\n')).ids[len(ids):], theirs, ids)


if __name__ == '__main__':
    job.need_launcher()
    torch.set_num_threads(1)
    prepare()
    sys.exit(job.run_cases([(f'{STEPS} steps on 2 ranks', case_train), ('the same text from transformers', case_same_text)]))
