#!/usr/bin/env python3
"""Make the golden folders next to this file: tiny models saved by transformers, and what transformers computes with
them.

    tests/hf/venv build/venv && build/venv/bin/python tests/hf/make_golden.py [FAMILY ...]

gpt2 is float32 in one file; llama is bfloat16 in several files, with grouped queries, scaled rotary positions and a
separate output matrix; the others are bfloat16 and have what distinguishes their family. expected.json has a stream of
tokens and the losses of a few steps of AdamW on it, in float64; if a family has a window, also the losses on longer
sequences.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
STEPS, BATCH, SEQ, VOCAB = 4, 2, 15, 32
LR, BETAS, EPS, DECAY = 2e-3, (0.9, 0.95), 1e-5, 0.1


def gpt2():
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=3,
                                     eos_token_id=3)
    return transformers.GPT2LMHeadModel(config)


def llama():
    rope = {'rope_type': 'llama3', 'rope_theta': 500.0, 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
            'original_max_position_embeddings': 32}
    config = transformers.LlamaConfig(vocab_size=VOCAB, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                      rms_norm_eps=1e-5, rope_parameters=rope, bos_token_id=1, eos_token_id=2)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


SIZES = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, pad_token_id=None, bos_token_id=1, eos_token_id=2)


def like_llama(config):
    return transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)


def mistral():
    return like_llama(transformers.MistralConfig(**SIZES, head_dim=6, sliding_window=32))


def qwen2():
    return like_llama(transformers.Qwen2Config(**SIZES, tie_word_embeddings=True))


def phi3():
    return like_llama(transformers.Phi3Config(**SIZES))


def smollm3():
    return like_llama(transformers.SmolLM3Config(**SIZES, no_rope_layer_interval=2))


def starcoder2():
    return like_llama(transformers.Starcoder2Config(**SIZES))


def qwen3():
    return like_llama(transformers.Qwen3Config(**SIZES, head_dim=6, tie_word_embeddings=True))


def olmo2():
    return like_llama(transformers.Olmo2Config(**SIZES))


def gemma():
    return like_llama(transformers.GemmaConfig(**SIZES, head_dim=6))


def gemma3_text():
    return like_llama(transformers.Gemma3TextConfig(**SIZES, head_dim=6, sliding_window=5, query_pre_attn_scalar=9,
                                                    layer_types=['sliding_attention', 'full_attention']))


def gpt_neox():
    return like_llama(transformers.GPTNeoXConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
        rope_parameters={'rope_type': 'default', 'rope_theta': 1e4, 'partial_rotary_factor': 0.5}))


def mixtral():
    return like_llama(transformers.MixtralConfig(**SIZES, num_local_experts=4, sliding_window=48))


EXPERTS = dict(num_experts=4, num_experts_per_tok=2)


def qwen2_moe():
    return like_llama(transformers.Qwen2MoeConfig(**SIZES, **EXPERTS, moe_intermediate_size=8, mlp_only_layers=[0],
                                                  shared_expert_intermediate_size=20))


def qwen3_moe():
    return like_llama(transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, moe_intermediate_size=8, head_dim=6,
                                                  norm_topk_prob=True))


def olmoe():
    return like_llama(transformers.OlmoeConfig(**{**SIZES, 'intermediate_size': 8}, **EXPERTS))


GRANITE = dict(embedding_multiplier=3.0, residual_multiplier=0.6, logits_scaling=1.5, attention_multiplier=0.25)


def granite():
    return like_llama(transformers.GraniteConfig(**SIZES, **GRANITE))


def granitemoe():
    return like_llama(transformers.GraniteMoeConfig(**{**SIZES, 'intermediate_size': 8}, **GRANITE, num_local_experts=4,
                                                    tie_word_embeddings=True))


def draw(model):
    """Weights far from the usual initial values, so that no operation is near the identity."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1:
                p.normal_(0, 0.4)
            elif name.endswith('weight'):
                p.uniform_(0.5, 1.5)
            else:
                p.normal_(0, 0.2)


def train(folder, stream, seq=SEQ):
    """The losses before each step; only matrices decay. The model is loaded again: to(bfloat16) rounds rotary
    frequencies too. The faster products of experts have no float64."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, experts_implementation='eager')
    model = model.double().eval()
    groups = [{'params': [p for p in model.parameters() if p.ndim > 1], 'weight_decay': DECAY},
              {'params': [p for p in model.parameters() if p.ndim == 1], 'weight_decay': 0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses = []
    for step in range(STEPS):
        at = step * BATCH * seq
        rows = [stream[at + i * seq:at + (i + 1) * seq + 1] for i in range(BATCH)]
        tokens = torch.tensor(rows)
        logits = model(tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def make(name, build, **options):
    torch.manual_seed(7)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = build()
    draw(model)
    model.save_pretrained(folder, **options)
    stream = torch.randint(0, VOCAB, (STEPS * BATCH * SEQ + 1,)).tolist()
    expected = {'tokens': stream, 'losses': train(folder, stream)}
    if name in LONGER:
        stream = torch.randint(0, VOCAB, (STEPS * BATCH * LONGER[name] + 1,)).tolist()
        expected['longer'] = {'seq_len': LONGER[name], 'tokens': stream, 'losses': train(folder, stream, LONGER[name])}
    (folder / 'expected.json').write_text(json.dumps(expected) + '\n')


LONGER = {'mistral': 48}  # tokens per sequence, enough for the window to matter

# Options of save_pretrained().
FAMILIES = {gpt2: {}, llama: {'max_shard_size': '6KB'}, mistral: {}, qwen2: {}, phi3: {'max_shard_size': '4KB'}, smollm3: {},
            starcoder2: {}, qwen3: {}, olmo2: {}, gemma: {}, gpt_neox: {},
            gemma3_text: {}, mixtral: {'max_shard_size': '6KB'}, qwen2_moe: {}, qwen3_moe: {},
            olmoe: {}, granite: {}, granitemoe: {}}
for family, options in FAMILIES.items():
    if family.__name__ in sys.argv[1:] or not sys.argv[1:]:
        make(family.__name__, family, **options)
