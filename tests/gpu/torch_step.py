#!/usr/bin/env python3
"""Training steps of GPT-2 or Llama in PyTorch, as fast as its documented parts allow: tests/gpu/bench compares Sherd's
steps with these. Master weights and AdamW in float32, compute in bfloat16, gradients reduced in float32, clipping
at 1.

    tests/gpu/torch_step.py --family gpt2|llama --layers N --dim C --heads H --kv-heads K --head-dim D --ffn F --vocab V
                            --batch B --seq T --steps N [--tied] [--device cuda|cpu] [--mode fsdp|plain]
                            [--attention auto|flash|cudnn] [--no-compile]

fsdp:  fully_shard of each block and of the whole, on one rank, with MixedPrecisionPolicy(bfloat16, reduce float32)
plain: the unwrapped module, under autocast
Blocks, and head with loss, are compiled. Prints one line of JSON per step, and one at the end.
"""
import argparse
import contextlib
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--family', choices=['gpt2', 'llama'], required=True)
    for name in ('layers', 'dim', 'heads', 'kv-heads', 'head-dim', 'ffn', 'vocab', 'batch', 'seq', 'steps'):
        parser.add_argument(f'--{name}', type=int, required=True)
    parser.add_argument('--tied', action='store_true')
    parser.add_argument('--device', choices=['cuda', 'cpu'], default='cuda')
    parser.add_argument('--mode', choices=['fsdp', 'plain'], default='fsdp')
    parser.add_argument('--attention', choices=['auto', 'flash', 'cudnn'], default='auto')
    parser.add_argument('--no-compile', action='store_true')
    return parser.parse_args()


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


def turn(x, cos, sin):
    """[B,H,T,D]: element i of a head is rotated together with element i + D/2."""
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def attend(q, k, v):
    """[B,H,T,D]; K and V may have fewer heads."""
    if q.shape[1] == k.shape[1]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    try:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    except TypeError:  # before PyTorch 2.5
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


if not hasattr(F, 'scaled_dot_product_attention'):  # before PyTorch 2.0, for the smoke test on a CPU
    def attend(q, k, v):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        past = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()
        scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).masked_fill(~past, -math.inf)
        return scores.softmax(-1) @ v


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        llama = a.family == 'llama'
        norm = RMSNorm if llama else nn.LayerNorm
        self.heads, self.kv_heads, self.head_dim, self.llama = a.heads, a.kv_heads, a.head_dim, llama
        self.norm1, self.norm2 = norm(a.dim), norm(a.dim)
        self.qkv = nn.Linear(a.dim, (a.heads + 2 * a.kv_heads) * a.head_dim, bias=not llama)
        self.out = nn.Linear(a.heads * a.head_dim, a.dim, bias=not llama)
        self.up = nn.Linear(a.dim, (2 if llama else 1) * a.ffn, bias=not llama)
        self.down = nn.Linear(a.ffn, a.dim, bias=not llama)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(B, T, -1, self.head_dim).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], 1)
        if self.llama:
            q, k = turn(q, cos, sin), turn(k, cos, sin)
        x = x + self.out(attend(q, k, v).transpose(1, 2).reshape(B, T, -1))
        y = self.up(self.norm2(x))
        if self.llama:
            gate, up = y.chunk(2, -1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(y, approximate='tanh'))


def loss_of(x, weight, targets):
    return F.cross_entropy(F.linear(x, weight).float().flatten(0, 1), targets.flatten())


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.llama = a.family == 'llama'
        self.embed = nn.Embedding(a.vocab, a.dim)
        self.positions = None if self.llama else nn.Embedding(a.seq, a.dim)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm = RMSNorm(a.dim) if self.llama else nn.LayerNorm(a.dim)
        self.head = None if a.tied else nn.Linear(a.dim, a.vocab, bias=False)
        self.loss_of = loss_of
        angle = torch.outer(torch.arange(a.seq).float(), 5e5 ** (-torch.arange(0, a.head_dim, 2).float() / a.head_dim))
        self.register_buffer('cos', angle.cos(), persistent=False)
        self.register_buffer('sin', angle.sin(), persistent=False)
        for x in self.parameters():
            if x.ndim > 1:
                nn.init.normal_(x, 0, 0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.loss_of(self.norm(x), (self.head or self.embed).weight, targets)


def compile_parts(model):
    for block in model.blocks:
        block.compile()
    model.loss_of = torch.compile(loss_of)


def shard(model):
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:
        raise SystemExit(f'torch_step.py: PyTorch {torch.__version__} has no fully_shard (2.6 has); take --mode plain')
    torch.distributed.init_process_group('nccl', store=torch.distributed.HashStore(), rank=0, world_size=1)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def chosen_attention(a):
    if a.attention == 'auto':
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel({'flash': SDPBackend.FLASH_ATTENTION, 'cudnn': SDPBackend.CUDNN_ATTENTION}[a.attention])


def train_step(a, model, optimizer, generator):
    rows = torch.randint(a.vocab, (a.batch, a.seq + 1), generator=generator, device=a.device)
    cast = torch.autocast(a.device, torch.bfloat16) if a.mode == 'plain' else contextlib.nullcontext()
    with cast:
        loss = model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()  # waits for the GPU, as Sherd does when it reads its loss


def used_bytes():
    free, everything = torch.cuda.mem_get_info()
    return everything - free


def main():
    a = arguments()
    if a.mode == 'fsdp' and a.device == 'cpu':
        raise SystemExit('torch_step.py: --mode fsdp is for GPUs')
    torch.manual_seed(1)
    with torch.device(a.device) if hasattr(torch, 'set_default_device') else contextlib.nullcontext():
        model = Model(a)
    if not a.no_compile:
        compile_parts(model)
    if a.mode == 'fsdp':
        shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                  **({'fused': True} if a.device == 'cuda' else {}))
    generator = torch.Generator(a.device).manual_seed(2)
    with chosen_attention(a):
        for step in range(a.steps):
            begin = time.perf_counter()
            loss = train_step(a, model, optimizer, generator)
            print(json.dumps({'step': step + 1, 'loss': loss, 'seconds': time.perf_counter() - begin}), flush=True)
    end = {'torch': torch.__version__, 'parameters': sum(x.numel() for x in model.parameters())}
    if a.device == 'cuda':
        end.update(gpu_used_bytes=used_bytes(), peak_allocated_bytes=torch.cuda.max_memory_allocated(),
                   gpu=torch.cuda.get_device_name())
    print(json.dumps(end), flush=True)
    if a.mode == 'fsdp':
        torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main()
