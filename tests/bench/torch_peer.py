#!/usr/bin/env python3
"""Training steps of GPT-2, Llama or Qwen3-MoE on CPUs in PyTorch, as fast as its documented parts allow:
tests/bench/peers compares Sherd's steps with them. The model is that of tests/gpu/torch_step.py, or with experts that
of transformers, whose way of computing experts is the one it takes by itself.

    tests/bench/torch_peer.py --job JSON    rank 0 prints one line of JSON
    tests/bench/torch_peer.py --can MODE... one line of JSON: why this PyTorch cannot, by mode and variant; '' if it can

A job: family, layers, dim, heads, kv_heads, head_dim, ffn, vocab, tied; batch (of a rank), seq, steps, precision
(float32, bfloat16), threads, mode (plain, experts, ddp, fsdp), rank, ranks, store (a file that the ranks meet in), tokens (a
file of uint16); and the variant: graph (eager; compile: blocks, and head with loss), optimizer (AdamW: foreach, fused).
A job that needs something this PyTorch lacks is refused in one line.
"""
import argparse
import contextlib
import datetime
import importlib
import importlib.util
import json
import os
import pathlib
import re
import sys
import time
import types

sys.dont_write_bytecode = True
PATIENCE = datetime.timedelta(minutes=10)
ALONE = ('plain', 'experts')  # modes of one rank
VARIANTS = ['eager foreach', 'eager fused', 'compile foreach', 'compile fused']  # graph, optimizer
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gpu'))


def find_fully_shard():
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:  # PyTorch 2.4 and 2.5
        from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
    return fully_shard, MixedPrecisionPolicy


def why_not_mode(mode):
    try:
        import torch
        if mode not in ALONE and not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
            return f'PyTorch {torch.__version__} has no gloo'
    except ImportError:
        return f'{sys.executable} has no torch (Debian: python3-torch)'
    except AttributeError:  # PyTorch 1.13 cannot be asked whether it has gloo
        pass
    if mode == 'experts' and importlib.util.find_spec('transformers') is None:
        return f'{sys.executable} has no transformers'
    try:
        if mode == 'fsdp':
            find_fully_shard()
    except Exception:  # the module may exist and still not load: PyTorch 1.13 with Python 3.11
        return f'PyTorch {torch.__version__} has no fully_shard; 2.4 has'
    return ''


def why_not_compile():
    """Asks with a function that is never called: only a run can tell whether there is a C++ compiler."""
    import torch
    if not hasattr(torch, 'compile'):
        return f'PyTorch {torch.__version__} has no torch.compile; 2.0 has'
    try:
        torch.compile(loss_of)
    except Exception as error:  # PyTorch 2.0 with Python 3.11
        return f'PyTorch {torch.__version__} cannot compile: {str(error).splitlines()[0]}'
    return ''


def why_not_fused():
    """Some versions have fused AdamW only for GPUs, and notice only when they see the parameters."""
    import torch
    try:
        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], fused=True)
    except (TypeError, RuntimeError):
        return f'PyTorch {torch.__version__} has no fused AdamW for CPUs; 2.4 has'
    return ''


def why_not(mode, graph, optimizer):
    return (why_not_mode(mode) or (why_not_compile() if graph == 'compile' else '') or
            (why_not_fused() if optimizer == 'fused' else ''))


def libraries():
    """The libraries behind the products, from the mapped files."""
    import torch
    names = {line.split()[-1] for line in pathlib.Path('/proc/self/maps').read_text().splitlines() if '/' in line}
    found = sorted(name for name in names if re.search(r'lib(blas|openblas|blis|mkl)', os.path.basename(name)))
    found += ['MKL inside'] if torch.backends.mkl.is_available() else []
    return found + (['oneDNN inside'] if torch.backends.mkldnn.is_available() else [])


def is_reference(found):
    """Debian's libblas3 and no other library with it."""
    fast = [name for name in found if re.search('openblas|blis|mkl|MKL', name)]
    return not fast and any('blas' in name for name in found)


def loss_of(x, weight, targets):
    import torch.nn.functional as F
    return F.cross_entropy(F.linear(x, weight).flatten(0, 1), targets.flatten())


def experts_model(job):
    """With torch_step.Model's names."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            whole = Qwen3MoeForCausalLM(Qwen3MoeConfig(
                num_hidden_layers=job.layers, hidden_size=job.dim, num_attention_heads=job.heads, head_dim=job.head_dim,
                num_key_value_heads=job.kv_heads, moe_intermediate_size=job.expert_ffn, num_experts=job.experts,
                num_experts_per_tok=job.chosen, norm_topk_prob=True, vocab_size=job.vocab, tie_word_embeddings=job.tied,
                max_position_embeddings=job.seq, use_cache=False, bos_token_id=None, eos_token_id=None, pad_token_id=None))
            self.inner, self.head, self.blocks = whole.model, whole.lm_head, whole.model.layers

        def forward(self, tokens, targets):
            return self.loss_of(self.inner(tokens).last_hidden_state, self.head.weight, targets)

    return Model()


def compile_parts(model):
    """A block's forward rather than the block, whose hooks are DDP's and FSDP's."""
    import torch
    for block in model.blocks:
        # How many rows an expert has differs from step to step.
        block.forward = torch.compile(block.forward, dynamic=None if hasattr(model, 'inner') else False)
    model.loss_of = torch.compile(model.loss_of, dynamic=False)


def optimizer_of(job, parameters):
    import torch
    return torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, **{job.optimizer: True})


def wrap(job, model):
    import torch
    if job.mode in ALONE:
        return model
    torch.distributed.init_process_group('gloo', init_method=f'file://{job.store}', rank=job.rank, world_size=job.ranks,
                                         timeout=PATIENCE)  # a rank that fails does not make the others wait for ever
    if job.mode == 'ddp':
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    fully_shard, policy = find_fully_shard()
    mesh = torch.distributed.device_mesh.init_device_mesh('cpu', (job.ranks,))
    keep = {'mesh': mesh}
    if job.precision == 'bfloat16':
        keep['mp_policy'] = policy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, **keep)
    fully_shard(model, **keep)
    return model


def batches(job):
    """The same tokens as Sherd's, in file order; neighbours share one token."""
    import torch
    tokens = torch.frombuffer(bytearray(pathlib.Path(job.tokens).read_bytes()), dtype=torch.int16).long() & 0xffff
    for step in range(job.steps):
        first = (step * job.ranks + job.rank) * job.batch
        rows = [tokens[(first + i) * job.seq:][:job.seq + 1] for i in range(job.batch)]
        yield torch.stack([row[:-1] for row in rows]), torch.stack([row[1:] for row in rows])


def train_step(job, model, optimizer, tokens, targets):
    import torch
    under = job.precision == 'bfloat16' and job.mode != 'fsdp'
    begin = time.perf_counter()
    with torch.autocast('cpu', torch.bfloat16) if under else contextlib.nullcontext():
        loss = model(tokens, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    value = loss.item()
    return time.perf_counter() - begin, value


def peak_bytes():
    return int(re.search(r'VmHWM:\s+(\d+)', pathlib.Path('/proc/self/status').read_text()).group(1)) << 10


def run(job):
    lacking = why_not(job.mode, job.graph, job.optimizer)
    if lacking:
        raise SystemExit(f'torch_peer.py: {lacking}')
    import torch
    torch.set_num_threads(job.threads)
    torch.manual_seed(1)
    model = experts_model(job) if job.mode == 'experts' else importlib.import_module('torch_step').Model(job)
    model.loss_of = loss_of
    if job.graph == 'compile':
        compile_parts(model)
    model = wrap(job, model)
    optimizer = optimizer_of(job, model.parameters())
    steps = [train_step(job, model, optimizer, *batch) for batch in batches(job)]
    if job.rank == 0:
        print(json.dumps({'seconds': [step[0] for step in steps], 'losses': [step[1] for step in steps],
                          'peak_bytes': peak_bytes(), 'torch': torch.__version__, 'blas': libraries(),
                          'reference_blas': is_reference(libraries()),
                          'parameters': sum(x.numel() for x in model.parameters())}))
    if job.mode not in ALONE:
        torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wish = parser.add_mutually_exclusive_group(required=True)
    wish.add_argument('--job')
    wish.add_argument('--can', choices=[*ALONE, 'ddp', 'fsdp'], nargs='+')
    a = parser.parse_args()
    if a.can:
        print(json.dumps({mode: {variant: why_not(mode, *variant.split()) for variant in VARIANTS} for mode in a.can}))
    else:
        run(types.SimpleNamespace(**json.loads(a.job)))


if __name__ == '__main__':
    main()
