#!/usr/bin/env python3
"""Make the golden folders of adapters next to this file: what PEFT saves for the tiny models here, and what it
computes.

    tests/hf/venv build/venv && build/venv/bin/python tests/hf/make_adapters.py [NAME]...

Both matrices of each adapter are random. expected.json has the losses of a few steps of AdamW on the model's stream of tokens,
in float64, and the norm of each matrix after these steps.
"""
import json
import pathlib
import shutil
import sys

import peft
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
STEPS, BATCH, SEQ, VOCAB = 4, 2, 15, 32
LR, BETAS, EPS, DECAY = 2e-3, (0.9, 0.95), 1e-5, 0.1
ADAPTERS = {
    'llama': dict(r=3, lora_alpha=6, target_modules='all-linear'),
    'qwen2_moe': dict(r=3, lora_alpha=6, target_modules=['q_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'],
                      target_parameters=['mlp.experts.gate_up_proj', 'mlp.experts.down_proj']),
    'gpt2': dict(r=2, lora_alpha=5, target_modules=['c_attn', 'mlp.c_proj'], use_rslora=True, fan_in_fan_out=True),
}


def base(name):
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32)
    model.set_experts_implementation('eager')  # the others have no float64
    return model


def save(name, folder):
    config = peft.LoraConfig(task_type='CAUSAL_LM', lora_dropout=0.0, bias='none', **ADAPTERS[name])
    model = peft.get_peft_model(base(name), config)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if 'lora_' in key:
                p.normal_(0, 0.3)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / 'README.md').unlink(missing_ok=True)
    config = json.loads((folder / 'adapter_config.json').read_text())
    config['base_model_name_or_path'] = name
    for key in 'target_modules', 'target_parameters':
        if isinstance(config[key], list):
            config[key].sort()
    (folder / 'adapter_config.json').write_text(json.dumps(config, indent=1, sort_keys=True) + '\n')


def train(name, folder, stream):
    model = peft.PeftModel.from_pretrained(base(name), folder, is_trainable=True).double().eval()
    trained = {key: p for key, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    losses = []
    for step in range(STEPS):
        at = step * BATCH * SEQ
        tokens = torch.tensor([stream[at + i * SEQ:at + (i + 1) * SEQ + 1] for i in range(BATCH)])
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {key.replace('.default', ''): p.norm().item() for key, p in trained.items()}


for name in sys.argv[1:] or ADAPTERS:
    torch.manual_seed(9)
    folder = HERE / f'adapter-{name}'
    save(name, folder)
    stream = json.loads((HERE / name / 'expected.json').read_text())['tokens']
    losses, norms = train(name, folder, stream)
    (folder / 'expected.json').write_text(json.dumps({'losses': losses, 'norms': norms}) + '\n')
