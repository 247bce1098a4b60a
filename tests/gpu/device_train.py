#!/usr/bin/env python3
"""The whole trainer on one GPU: it starts at all, it learns like the CPU, 2 and 4 ranks that share the GPU learn like
one, by NCCL and through host memory, also with parts of sequences, of matrices and of the layers, and checkpoints move
to the CPU and back. Prints TAP.

    tests/gpu/device_train.py [smoke] [learn] [experts] [mesh] [tiles] [context] [tensor] [stages] [checkpoint]

Started by tests/gpu/run, which gives it the environment of tests/gold/job.py.
"""
import array
import functools
import os
import pathlib
import random
import statistics
import subprocess
import sys

from trains import (CPU, CUDA, CUT_DEEP, BOUND, DEEP, EVEN as EVEN_EXPERTS, MESHES, MODELS, SPREAD, STAGED, WIDE, as_on_cpu, checkpoints, continued, evaluates, job, run,
                    same_bits, tile_cases, tiny, traces)
import test_rows

NCCL, MPI = {'comm.backend': 'nccl'}, {'comm.backend': 'mpi'}
STEPS = 50
# A model like those for GPUs: heads of 64 for tensor cores, sizes that are not powers of two. On emulated GPUs this
# would take hours, so there the model is the smallest that learns.
REAL = {'model.n_layers': 3, 'model.dim': 192, 'model.n_heads': 3, 'model.head_dim': 64, 'model.vocab_size': 509,
        'model.max_seq_len': 160, 'model.ffn_dim': 512, 'training.seq_len': 160, 'training.global_batch_size': 8,
        'optimizer.lr': 3e-3, 'lr_scheduler.warmup_steps': 5, 'model.init_std': 0.05}
SMALL = {'model.n_layers': 1, 'training.global_batch_size': 4, 'optimizer.lr': 3e-2}
EXPERTS = {'model.n_kv_heads': 1, 'model.n_experts': 40, 'model.n_experts_per_token': 4, 'model.expert_ffn_dim': 136,
           'model.shared_ffn_dim': 200}
FAMILIES = {'llama': {'model.n_kv_heads': 1}, 'gpt2': {}}
# Models whose attention is cuDNN's on any GPU, with every version: whole tiles.
TILED = {**REAL, 'model.max_seq_len': 256, 'training.seq_len': 256, 'model.dim': 256}
HEADS = {64: {'model.n_heads': 4, 'model.head_dim': 64}, 128: {'model.n_heads': 2, 'model.head_dim': 128}}
# A smoke test of sizes that no library refuses: an odd width that is refused is not taken for "does not run".
EVEN = {'model.dim': 64, 'model.n_heads': 2, 'model.head_dim': 32, 'model.ffn_dim': 128, 'model.max_seq_len': 128,
        'training.seq_len': 128, 'model.vocab_size': 512}
COMM_SECONDS = 25  # Sherd's own limit ends a run that hangs before the test kills it, and says where it hung


def emulated():
    return bool(os.environ.get('SHERD_EMULATED_GPUS'))


def write_chain(path, vocab, count):
    """Tokens that can be learnt: each follows from the one before, except for one in eight."""
    draw, token, tokens = random.Random(3), 0, []
    for _ in range(count):
        token = draw.randrange(vocab) if draw.random() < 1 / 8 else (5 * token + 1) % vocab
        tokens.append(token)
    pathlib.Path(path).write_bytes(array.array('H', tokens).tobytes())


def learning(family, precision, change):
    """A configuration of 50 steps, and its tokens."""
    c = {**MODELS[family], **(SMALL if emulated() else change), 'training.dataset_path': '../chain.bin',
         'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS, 'metrics.log_freq': 1,
         'training.mixed_precision_param': precision}
    write_chain('chain.bin', c['model.vocab_size'], STEPS * c['training.global_batch_size'] * c['training.seq_len'] + 1)
    return c


@functools.lru_cache(None)
def on_cpu(family, precision, change):
    """Losses of 50 steps on the CPU; `change` as sorted pairs."""
    return job.losses(job.train('cpu', {**learning(family, precision, dict(change)), **CPU, 'training.threads': 0}))


def learns(family, precision, change, **more):
    """50 steps on both devices: losses agree within 1 %, and fall."""
    cpu = on_cpu(family, precision, tuple(sorted(change.items())))
    gpu = job.losses(job.train('gpu', {**learning(family, precision, change), **CUDA, **more}))
    fell = statistics.mean(cpu[-5:]) < 0.9 * cpu[0]
    return job.differ('losses', gpu, cpu, 1e-2) + ([] if fell else [f'the loss went from {cpu[0]} to {cpu[-1]} only'])


def kernels_of(text):
    """The lines of a log that name the kernels of attention; complaints if cuDNN's are not among them where they
    should be. A GPU for which cuDNN promises no order has the own kernels in a deterministic backward."""
    lines = [line for line in text.splitlines() if line.strip().startswith(('attention', 'attention_bwd'))]
    print(*(f'# {line}' for line in lines), sep='\n')
    own = [line for line in lines if 'own kernels' in line and 'promises no order' not in line]
    return [] if emulated() or (lines and not own) else ['attention is not by cuDNN:', *(own or ['the log names no kernel'])]


def learns_by_cudnn(dim, kv_heads, deterministic):
    """As learns(), with shapes that cuDNN computes; the same bits twice if it may add in one order only."""
    change = {**TILED, **HEADS[dim], 'model.n_kv_heads': kv_heads}
    more = {'training.deterministic': deterministic}
    wrong = learns('llama', 'bfloat16', change, **more)
    first = job.losses(job.metrics('gpu'))
    folder = job.prepare('again', {'job.dump_folder': 'out', **learning('llama', 'bfloat16', change), **CUDA, **more})
    out, said = job.launch('train', 'c.yaml', folder=folder)
    wrong += kernels_of(out + said)
    return wrong + (job.differ('losses of a second run', job.losses(job.metrics('again')), first, 0) if deterministic else [])


@functools.lru_cache(None)
def one_rank(model, precision):
    return job.losses(run('alone', model, CUDA, '1x1', **{'training.mixed_precision_param': precision}))


def as_one_rank(model, mesh, precision, how):
    many = job.losses(run('many', model, CUDA, mesh, **{'training.mixed_precision_param': precision}, **how))
    return job.differ('losses', many, one_rank(model, precision), BOUND[precision])


def versions():
    """Context for reading the rest of the output; prints what it finds and never complains."""
    for words in (['nvidia-smi', '--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.draw,power.limit',
                   '--format=csv'], ['nvcc', '--version'], [os.environ['SHERD'], '--version']):
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            text = done.stdout or done.stderr
        except (OSError, subprocess.TimeoutExpired) as why:
            text = str(why)
        print('\n'.join(f'# {line}' for line in text.splitlines()))
    return []


def starts(mesh, how):
    """Five steps of a small model, and its messages: which libraries were loaded, and from where."""
    steps = run('smoke', 'gpt2', CUDA, mesh, **{'training.steps': 5, 'training.mixed_precision_param': 'bfloat16', **how})
    losses = job.losses(steps)
    print('#', mesh, how.get('comm.backend', ''), 'losses', *(f'{loss:.4f}' for loss in losses))
    return [] if len(losses) == 5 and all(0 < loss < 20 for loss in losses) else [f'losses {losses}']


def smoke_cases():
    return [('versions, clocks and power', versions), ('five steps of an even model', starts, '1x1', EVEN),
            ('five steps on one rank', starts, '1x1', {}),
            ('five steps on two ranks by NCCL', starts, '1x2', NCCL),
            ('five steps on two ranks by MPI', starts, '1x2', MPI)]


def cudnn_cases():
    """On emulated GPUs, which have no cuDNN, one of them is a rehearsal of all."""
    return [(f'heads of {dim}, {kv_heads} of {heads["model.n_heads"]} for keys, by cuDNN in {"one" if one else "any"} order,'
             ' 50 steps within 1 % of the CPU', learns_by_cudnn, dim, kv_heads, one)
            for dim, heads in HEADS.items() for kv_heads in (1, heads['model.n_heads']) for one in (True, False)][
                :1 if emulated() else None]


def learn_cases():
    return [(f'{family} in {precision}, 2 steps as on the CPU', as_on_cpu, family, '1x1', precision, {})
            for family in tiny.MODELS for precision in BOUND] + [
        (f'{family} in {precision}, 50 steps within 1 % of the CPU', learns, family, precision,
         {**REAL, **FAMILIES[family]})
        for family in tiny.MODELS for precision in BOUND] + cudnn_cases() + [
        ('two runs have the same bits', same_bits, ('1x1', {}), ('1x1', {})),
        ('states, gradients and parameters with the host: the same bits', same_bits, ('1x1', {}), ('1x1', {
            'training.enable_cpu_offload': True, 'parallelism.sharding_strategy': 'full_shard'})),
        ('validation', evaluates), ('a trace', traces)]


def expert_cases():
    found = [(f'experts in {precision}, 2 steps as on the CPU', as_on_cpu, 'experts', '1x1', precision, change)
             for precision, change in (('float32', {}), ('float32', EVEN_EXPERTS), ('bfloat16', EVEN_EXPERTS))]
    found += [(f'experts on {mesh} ranks, 2 steps as on the CPU', as_on_cpu, 'experts', mesh, 'float32', {})
              for mesh in ('1x2', '2x2', *SPREAD)]
    if not emulated():
        found += [(f'{how} experts in {precision}, 50 steps within 1 % of the CPU', learns, 'experts', precision,
                   {**REAL, **EXPERTS, 'model.router': how}) for how in ('softmax', 'sigmoid') for precision in BOUND]
    return found


def mesh_cases():
    tree = {'training.reproducible': 'mesh'}
    return [(f'{family} in {precision} on {mesh} ranks by {how["comm.backend"]} as one rank', as_one_rank, family, mesh,
             precision, how)
            for family in tiny.MODELS for precision in BOUND for mesh in MESHES if mesh != '1x1'
            for how in (NCCL, MPI)] + [
        (f'{family} on 2x2 ranks by {how["comm.backend"]}, gradients sent in bfloat16', as_one_rank, family, '2x2',
         'bfloat16', {**how, 'training.mixed_precision_reduce': 'bfloat16'})
        for family in tiny.MODELS for how in (NCCL, MPI)] + [
        ('sums in a tree have the same bits on every mesh', same_bits, ('1x1', tree), ('2x2', tree))] + [
        (f'rows exchanged, {name}: the same bits', test_rows.same_bits, name, ranks, group, size, family, {**changes, **CUDA})
        for name, (ranks, group, size, family, changes) in test_rows.GPU_RUNS.items()]


def cut_cases(mesh, family, precisions=BOUND, **more):
    """A model that is cut over the ranks of a mesh, by NCCL and through host memory."""
    return [(f'{family} on {mesh} in {precision} by {how["comm.backend"]}, 2 steps as on the CPU', as_on_cpu, family, mesh, precision,
             {**more, **how}) for precision in precisions for how in (NCCL, MPI)]


def context_cases():
    return [*cut_cases('halves', 'llama', **{'model.n_heads': 4}), *cut_cases('gathered halves', 'llama'),
            *cut_cases('gathered halves', 'gpt2', **{'data.document_mask': True, 'data.document_separator': 0})]


def tensor_cases():
    return [*cut_cases('halves of matrices', 'llama', **WIDE), *cut_cases('halves of matrices', 'olmo2'),
            *cut_cases('halves of matrices', 'gpt2', **{**WIDE, 'model.head_dim': 16, 'model.n_kv_heads': None}),
            ('texts continued with halves of matrices and of words, as on the CPU', continued, 'olmo2', 'halves of matrices', 257)]


def stage_cases():
    return [case for mesh in STAGED for case in cut_cases(mesh, 'experts' if 'experts' in mesh else 'llama', ['float32'], **{
        **(CUT_DEEP if 'matrices' in mesh else DEEP), **({'model.n_heads': 4} if 'halves' in mesh else {}),
        **({'model.n_layers': 6, 'training.global_batch_size': 12} if mesh == 'chunks of three stages' else {})})]


def checkpoint_cases():
    devices = {'1 GPU rank': (CUDA, '1x1'), '2 GPU ranks': (CUDA, '1x2'), '4 GPU ranks': (CUDA, '2x2'),
               '1 CPU rank': (CPU, '1x1'), '2 CPU ranks': (CPU, '2x1')}
    ways = [('1 GPU rank', '2 CPU ranks'), ('2 CPU ranks', '1 GPU rank'), ('4 GPU ranks', '1 CPU rank'),
            ('1 CPU rank', '2 GPU ranks')]
    return [(f'a checkpoint from {first} to {second}, async_mode={mode}', checkpoints, devices[first], devices[second],
             mode)
            for mode in ('disabled', 'async') for first, second in ways]


CASES = {'smoke': smoke_cases, 'learn': learn_cases, 'experts': expert_cases, 'mesh': mesh_cases, 'tiles': tile_cases,
         'context': context_cases, 'tensor': tensor_cases, 'stages': stage_cases, 'checkpoint': checkpoint_cases}


def main():
    job.need_launcher()
    tiny.write_tokens()
    CUDA['comm.share_gpu'] = True
    if not emulated():
        CUDA['comm.train_timeout_seconds'] = COMM_SECONDS
    return job.run_cases([case for name in sys.argv[1:] or CASES for case in CASES[name]()])


if __name__ == '__main__':
    sys.exit(main())
