#!/usr/bin/env python3
"""The whole trainer on emulated GPUs: it learns like the CPU, on any mesh and with both communication backends, moves
its checkpoints to the CPU and back, and a forgotten event is found. Prints TAP. SHERD_LONG=1 runs more of each.

Only in a build that was configured --with-cuda=emulated.
"""
import contextlib
import functools
import json
import os
import pathlib
import re
import subprocess
import sys

from trains import (BOUND, CPU, CUDA, CUT_DEEP, DEEP, EVEN, HYBRID, MESHES, adapted, as_on_cpu, checkpoints, config, continued, documents, evaluates, job, masked, on_cpu, on_mesh, run, same_bits,
                    tile_cases, tiny, traces, validation)

MESHES['1x4'] = (4, {**MESHES['1x2'][1], 'training.global_batch_size': 4})
AVERAGE = {'optimizer.ema_decay': 0.7, 'validation.ema': True, 'optimizer.lr': 0.05, 'lr_scheduler.warmup_steps': 0}
# Larger rates than AdamW's, from the first step on, so that a wrong step shows in the second loss.
MUON = {'optimizer.name': 'muon', 'optimizer.lr': 0.05, 'lr_scheduler.warmup_steps': 0}
NORMUON = {**MUON, 'optimizer.name': 'normuon', 'optimizer.muon_beta2': 0.8}
# Codes are read from the second step on.
CODED = {'optimizer.state_dtype': 'int8', 'optimizer.lr': 0.02, 'lr_scheduler.warmup_steps': 0}
INT8 = {**CODED, 'training.steps': 4, 'lr_scheduler.total_steps': 4}
# Parameters are gathered in codes.
GATHERS = {'parallelism.gather_dtype': 'int8', 'optimizer.lr': 0.02, 'lr_scheduler.warmup_steps': 0}
LONG = bool(os.environ.get('SHERD_LONG'))


@contextlib.contextmanager
def environment(**more):
    """Variables that the program sees meanwhile."""
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.update({name: value}) if value is not None else os.environ.pop(name)


def refused(name, ranks, word, **more):
    job.prepare(name, {'job.dump_folder': 'out', **config('llama', **CUDA, **more)})
    done = subprocess.run(job.command(ranks, ['train', 'c.yaml']), cwd=name, capture_output=True, text=True,
                          env=job.environment(ranks), timeout=job.SECONDS, stdin=subprocess.DEVNULL)
    if done.returncode == 0 or not re.search(word, done.stderr):
        return [f'exit {done.returncode}, expected a refusal with "{word}":', done.stderr]
    return []


def forgotten(wait, backend, word, mesh='1x2', **more):
    """Drop one of the waits of a queue for an event. Which wait has which number follows from the schedule of this
    model; a changed schedule shows here as another message."""
    with on_mesh(mesh) as (ranks, axes), environment(SHERD_EMULATED_DROP=str(wait)):
        return refused('forgotten', ranks, word, **axes, **{'training.steps': 2, 'comm.backend': backend}, **more)


def old_driver():
    """NCCL would run one message after the other; through memory of the host they pass all the same."""
    with environment(SHERD_EMULATED_DRIVER='12020'):
        with on_mesh('two stages') as (ranks, axes):
            wrong = refused('driver', ranks, r'pipeline_parallel_degree: .* CUDA 12\.3 or newer, and this one is for 12\.2', **axes, **DEEP)
        return wrong or as_on_cpu('llama', 'two stages', 'float32', {**DEEP, 'comm.backend': 'mpi'})


def tree_by_nccl():
    return refused('tree', 1, 'nccl sums in its own order', **{'training.reproducible': 'mesh',
                                                                     'comm.backend': 'nccl'})


def planned(mesh, **more):
    """The arena is all that is allocated on a GPU, to the byte: an emulated GPU has no context and no NCCL buffers."""
    step = run('planned', 'llama', CUDA, mesh, **more)[-1]
    with on_mesh(mesh) as (ranks, _):
        text = job.sherd('plan', 'planned/c.yaml', '--ranks', ranks)
    arena = int(re.search(r'arena: all that is allocated on it +(\d+)', text)[1])
    found = {'arena_bytes': step['arena_bytes'], 'gpu_used_bytes': step['gpu_used_bytes']}
    return [f'{name} is {size}, planned {arena}' for name, size in found.items() if size != arena]


def margin():
    """The arena does not get all free memory: NCCL and the libraries come later. Communicators of more than two GPUs of a
    node take more."""
    wrong = []
    for mib, mesh, word in ((2559, '1x2', 'GPU 0 .* has 2.5 GiB free for each rank, and 2.5 GiB are kept'),
                            (2600, '1x4', 'GPU 0 .* has 2.5 GiB free for each rank, and 2.6 GiB are kept'),
                            (1000, '1x1', 'has 1000.0 MiB free for each rank, and 1.0 GiB are kept'),
                            (1024 + 16, '1x1', 'the plan needs 32.* MiB .* more than memory.limit_bytes = 16')):
        os.environ['SHERD_EMULATED_MIB'] = str(mib)
        try:
            wrong += refused('margin', MESHES[mesh][0], word, **MESHES[mesh][1])
        finally:
            del os.environ['SHERD_EMULATED_MIB']
    return wrong


def no_code():
    """A GPU for which the build has no kernels is named at the start, with the way to have some."""
    wrong = []
    for capability, cure in ('75', 'use a GPU of 8.0 or newer'), ('103', 'build it with --with-cuda-arch=103'):
        with environment(SHERD_EMULATED_CAPABILITY=capability):
            wrong += refused('code', 2, rf'error: (rank \d: )?GPU \d \(emulated GPU\) has compute capability {int(capability) / 10}, '
                                        rf'for which this sherd has no code: it has 80 90 100 \(.*\); {cure}')
    return wrong


def hidden():
    """Ranks that see one GPU each are told what that may cost; the doctor has a note."""
    wrong, word = [], 'each rank sees only its own GPU of the node'
    for value in '1', '0':
        with environment(SHERD_EMULATED_HIDDEN=value):
            folder = job.prepare('hidden', {'job.dump_folder': 'out', **config('llama', **CUDA, **MESHES['1x2'][1])})
            for command, line in ('train', rf'^note: {word}'), ('doctor', rf'^ranks +note +{word}'):
                done = subprocess.run(job.command(2, [command, 'c.yaml']), cwd=folder, capture_output=True, text=True,
                                      env=job.environment(2), timeout=job.SECONDS, stdin=subprocess.DEVNULL)
                said = done.stdout + done.stderr
                if done.returncode or bool(re.search(line, said, re.M)) != (value == '1'):
                    wrong += [f'{command}, SHERD_EMULATED_HIDDEN={value}: exit {done.returncode}', said]
    return wrong


def connections():
    """As many queues of the hardware as there can be, unless the user says how many."""
    wrong = []
    os.environ.pop('CUDA_DEVICE_MAX_CONNECTIONS', None)
    for given, expected in ({}, 32), ({'CUDA_DEVICE_MAX_CONNECTIONS': '2'}, 2):
        with environment(**given):
            found = {rank['connections'] for rank in counters(1, '1x2')}
        wrong += [] if found == {expected} else [f'{given}: {found}, expected {expected}']
    return wrong


def nccl_takes(mib, word):
    """NCCL takes that much for each kind of collective when it first uses it at its size: 64 MiB of a GPU then hold the arena
    of 33 MiB, or do not, which is found before the first step."""
    limit = {'memory.limit_bytes': 40 << 20}
    with environment(SHERD_EMULATED_MIB='64', SHERD_EMULATED_NCCL_MIB=str(mib)):
        if word:
            return refused('takes', 2, word, **limit, **MESHES['1x2'][1])
        return [] if run('takes', 'llama', CUDA, '1x2', **limit) else ['no steps']


def doctor(backend, says, **more):
    """It tests the GPUs' own backend, with the communicators of training, and names it. Muon has exchanges."""
    job.prepare('doctor', {'job.dump_folder': 'out', **config('llama', **CUDA, **HYBRID, **MUON, **{'comm.backend': backend})})
    with environment(**more):
        said = job.sherd('doctor', 'c.yaml', ranks=4, folder='doctor')
    word = rf'^collectives +ok +shard .* GB/s per rank \(2 ranks\); shard exchange .*; replicate .*; GPU to GPU, {says}$'
    return [] if re.search(word, said, re.M) else [f'no line matches {word}:', said]


def bench():
    """Every collective on every axis, on existing communicators."""
    job.prepare('bench', {'job.dump_folder': 'out', **config('llama', **CUDA, **HYBRID)})
    said = job.sherd('bench', 'comm', 'c.yaml', '--folder', '.', '--repeat', '1', '--max-bytes', '4096', ranks=4,
                     folder='bench')
    words = [f'{kind} {axis} ' for kind in ('all_gather', 'reduce_scatter', 'all_reduce')
             for axis in ('shard', 'replicate', 'world')]
    return [f'no line begins with "{word}": {said}' for word in words if not re.search(f'^{word}', said, re.M)]


def too_large():
    """Refused before the first step, with the name of the operation."""
    wrong = refused('heads', 1, r'model\.head_dim=520: attention on GPUs takes heads of at most 512 elements', **{'model.head_dim': 520})
    with environment(SHERD_EMULATED_SHARED_KIB='64'):
        return wrong + refused('shared', 1, r'forward layers\.0 attention: .* head size 256 takes 84224 bytes of shared memory, of '
                               'which a block on an emulated GPU has 65536; use another GPU', **{'model.head_dim': 256})


def without_cublaslt(what, shapes, model, precision):
    """Products that cuBLASLt has no kernel for: the same training, and a line in the log for each shape, once. Two gates
    are not as wide as the vocabulary's whole eights, so that all shapes differ."""
    with environment(SHERD_EMULATED_LT_REFUSE=what):
        wrong = as_on_cpu(model, '1x2', precision, {'model.ffn_dim': 26})
        job.prepare('told', {'job.dump_folder': 'out', **config(model, **CUDA, **MESHES['1x2'][1], **{
            'training.mixed_precision_param': precision, 'model.ffn_dim': 26})})
        said = job.launch('train', 'c.yaml', ranks=2, folder='told')[1]
    lines = re.findall(r'^product \[.* of b?f\d+: .*; a kernel of Sherd .*$', said, re.M)
    return wrong + ([] if len(lines) == shapes == len(set(lines)) else [f'expected {shapes} shapes, once each:', *lines])


def slow_heads():
    """Attention without tensor cores: a line for each size of heads, once."""
    job.prepare('slow', {'job.dump_folder': 'out', **config('llama', **CUDA, **{'training.mixed_precision_param': 'bfloat16', 'model.head_dim': 40})})
    lines = re.findall(r'^attention with heads of .*$', job.launch('train', 'c.yaml', ranks=1, folder='slow')[1], re.M)
    return [] if len(lines) == 1 and lines[0].startswith('attention with heads of 40 elements: no kernel for tensor cores') else lines or ['no line']


def query_fails():
    """Other than "not supported": an error, with the name of the operation."""
    with environment(SHERD_EMULATED_LT_REFUSE='3 error'):
        return refused('query', 1, r'forward \S+ linear: cuBLASLt refuses to plan \[.*: failed')


def faults():
    """A kernel with a wrong address shows at a later wait; with debug.sync_ops it is named."""
    os.environ['SHERD_EMULATED_FAULT'] = '20'
    try:
        wrong = refused('fault', 1, 'an error of the emulated runtime')
        return wrong + refused('fault', 1, r'step 1, (forward|backward) \S+ \w+: GPU 0: ', **{'debug.sync_ops': True})
    finally:
        del os.environ['SHERD_EMULATED_FAULT']


def shared():
    os.environ['SHERD_EMULATED_GPUS'] = '1'
    try:
        return (refused('shared', 2, '2 ranks of this node would use GPU 0')
                + as_on_cpu('llama', '1x2', 'float32', {'comm.share_gpu': True}))
    finally:
        os.environ['SHERD_EMULATED_GPUS'] = '8'


def no_gpu():
    os.environ['SHERD_EMULATED_GPUS'] = '0'
    try:
        return refused('none', 1, 'training.device=cuda: no CUDA-capable device')
    finally:
        os.environ['SHERD_EMULATED_GPUS'] = '8'


def double(variant, word):
    """Variables for a double of the driver's library (fake_libnvml.c)."""
    library = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).resolve() / f'tests/gpu/libnvml_{variant}.so'
    folder = pathlib.Path(f'nvml_{variant}').absolute()
    folder.mkdir(exist_ok=True)
    if not (folder / 'libnvidia-ml.so.1').exists():
        (folder / 'libnvidia-ml.so.1').symlink_to(library)
    return {'LD_LIBRARY_PATH': f'{folder}:{os.environ.get("LD_LIBRARY_PATH", "")}', 'SHERD_NVML': word}


def told(variant, word, **more):
    """What a run of two ranks records about its GPUs."""
    more = {'training.steps': 12, 'lr_scheduler.total_steps': 12, 'metrics.tensorboard': 'tb', 'metrics.openmetrics': 'run.prom', **more}
    with environment(**double(variant, word)):
        return [step['gpu'] for step in run('told', 'llama', CUDA, '1x2', **more) if 'gpu' in step]


def nvml():
    """The figures of both GPUs, the second of which is throttled; they appear in every form of output."""
    lines = told('whole', '', **{'metrics.gpu': 'must'})
    whole = {'told': 2, 'held': 1, 'held_by': ['power', 'heat'], 'power_watts': 575.25, 'limit_watts': 500.0, 'default_limit_watts': 700.0,
             'clock_mhz': 1200.0, 'median_clock_mhz': 1450.0, 'highest_clock_mhz': 1980.0, 'celsius': 81.0, 'slowest_rank': 1}
    node = lines[-1].pop('slowest_node') if lines else ''
    wrong = [] if lines and lines[-1] == whole and node else [f'expected {whole} and a node, found {lines[-1:]}']
    text = (pathlib.Path('told/out/run.prom')).read_text()
    wrong += [f'no {name} in the exposition' for name in (
        'sherd_gpu_power_watts{.*} 575.25', 'sherd_gpu_clock_hertz{.*} 1200000000', 'sherd_gpu_temperature_celsius{.*} 81',
        'sherd_gpus_held{.*} 1') if not re.search(f'^{name}$', text, re.M)]
    events = b''.join(path.read_bytes() for path in pathlib.Path('told/out/tb').iterdir())
    wrong += [f'no {name} in the events' for name in (b'gpu/power_watts', b'gpu/clock_mhz', b'gpu/celsius', b'gpu/held') if name not in events]
    return wrong + ([] if not told('whole', '', **{'metrics.gpu': 'off'}) else ['metrics.gpu=off reads GPUs'])


def no_nvml():
    """Each way in which the library fails: `auto` continues without it, `must` does not start."""
    wrong = []
    for variant, word in ('none', ''), ('few', ''), ('whole', 'start'), ('whole', 'lost'), ('whole', 'unsupported'), ('whole', 'late'):
        lines = told(variant, word)
        wrong += [f'{variant} {word}: {lines[-1]}'] if lines else []
    with environment(**double('whole', 'start')):
        return wrong + refused('must', 2, 'metrics.gpu=must: cannot be started: libnvidia-ml.so.1 says: Driver Not Loaded',
                               **{'metrics.gpu': 'must'})


def far():
    """The doctor names neighbours of a group whose GPUs no NVLink joins, and the order in which all would have one. With the driver's
    library all GPUs are joined, or what joins them is not known: then it has nothing to say."""
    order = 'if the node\'s ranks use their present GPUs in the order 0,2,1,3 (CUDA_VISIBLE_DEVICES), these neighbours are closer'
    wrong, four = [], {'model.n_heads': 4, 'model.n_kv_heads': 4}
    for axis, word in ('tensor', 'pairs'), ('context', 'pairs'), ('tensor', ''), ('tensor', 'lost'):
        folder = job.prepare('far', {'job.dump_folder': 'out', **config('llama', **CUDA, **{**four, f'parallelism.{axis}_parallel_degree': 2})})
        with environment(**double('whole', word)):
            said = job.sherd('doctor', 'c.yaml', ranks=4, folder=folder)
        line = re.search('^ranks .*', said, re.M)[0]
        note = (rf'ranks +note +{axis}: the GPUs of ranks 0 and 1 on \S+ \(00000000:01:00.0, 00000000:02:00.0\) meet over the link '
                rf'between processors, but exchange rows in each block; {re.escape(order)}')
        wrong += [] if re.fullmatch(note if word == 'pairs' else 'ranks +ok .*', line) else [f'{axis}, {word}: {line}']
    return wrong


def flipped(**more):
    """A flipped bit in the copy that a GPU has sent; the GPU has computed the sums from its own memory."""
    program = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).resolve() / 'tests/fault/sherd_flips'
    folder = job.prepare('flipped', {'job.dump_folder': 'out', **config(
        'llama', **CUDA, **{'checkpoint.async_mode': 'async', 'checkpoint.interval': 1, 'training.steps': 3,
                            'training.mixed_precision_param': 'bfloat16', **more})})
    words = job.command(2, ['train', 'c.yaml'])
    words[words.index(os.environ['SHERD'])] = str(program)
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=job.SECONDS, stdin=subprocess.DEVNULL,
                          env=job.environment(2) | {'FLIPS_STEP': '2', 'FLIPS_RANK': '1'})
    saved = sorted(path.name for path in (folder / 'out/checkpoint').glob('step-*'))
    if done.returncode or saved != ['step-00000001.h5', 'step-00000003.h5'] or 'changed between the copy' not in done.stderr:
        return [f'exit {done.returncode}, saved {saved}', done.stderr]
    return []


def counters(steps, mesh, **more):
    """What each rank has done in that many steps."""
    path = pathlib.Path('counters').absolute()
    path.unlink(missing_ok=True)
    os.environ['SHERD_EMULATED_COUNTERS'] = str(path)
    try:
        run('counted', 'llama', CUDA, mesh, **{'training.steps': steps, 'checkpoint.enable': False,
                                               'training.global_batch_size': 4, 'training.local_batch_size': 2, **more})
    finally:
        del os.environ['SHERD_EMULATED_COUNTERS']
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line['launches']]  # not the launcher's


def state_bytes():
    """Bytes of the model's parameters and both moments, plus the replicas' padding."""
    return 12 * 7820 * 1.1


def counted(mesh, most_waits, most_bytes, **more):
    """What a step may wait for and read; NCCL creates no thread. The order of the streams is random, so the ranks
    differ by a few waits at the start and at the end: 50 steps make those few less than half a wait a step."""
    few, many = counters(2, mesh, **more), counters(52, mesh, **more)
    waits, host_bytes = ((max(rank[what] for rank in many) - min(rank[what] for rank in few)) / 50
                         for what in ('waits', 'host_bytes'))
    wrong = [f'{waits} waits a step'] if waits > most_waits + 0.5 else []
    wrong += [f'{host_bytes} bytes to the host a step'] if host_bytes > most_bytes else []
    return wrong + [f'NCCL made {rank["threads"]} threads' for rank in many if rank['threads']]


def strategy(name, ranks, more):
    """Trains like one rank on the CPU."""
    batch = {'training.global_batch_size': 12, 'training.local_batch_size': 1}
    MESHES['any'] = (ranks, {'parallelism.sharding_strategy': name, **more})
    cuda = job.losses(run('strategy', 'gpt2', CUDA, 'any', **batch))
    return job.differ('losses', cuda, job.losses(on_cpu('gpt2', **batch)), BOUND['float32'])


def strategies():
    """Name, ranks, other keys. A few cases cover each strategy and each number of ranks."""
    groups = {2: [], 4: [(2, 2)], 6: [(3, 2), (2, 3)]}
    found = [(name, ranks, {}) for ranks in groups
             for name in ('no_shard', 'shard_optim', 'shard_grad_op', 'full_shard')]
    found += [(name, ranks, {'mesh.shard': shard, 'mesh.replicate': replicate})
              for ranks, axes in groups.items() for shard, replicate in axes for name in ('hybrid_shard', 'hybrid_shard_zero2')]
    found.append(('shard_optim', 4, {'mesh.shard': 2, 'mesh.replicate': 2}))
    found += [('full_shard', ranks, {'parallelism.reshard_after_forward': inner}) for ranks, inner in ((4, 2), (6, 3))]
    return found if LONG else [found[i] for i in (1, 2, 4, 10, 11, 13, 14, -1)]


def main():
    job.need_emulated_gpus()
    tiny.write_tokens()
    new = {'SHERD_EMULATED_NCCL_VERSION': '22907', 'NCCL_IB_RESILIENCY_PORT_FAILOVER': '0'}
    mpi, tree = {'comm.backend': 'mpi'}, {'training.reproducible': 'mesh'}
    rounded = {'training.mixed_precision_reduce': 'bfloat16'}
    trains = [('llama', '1x1', 'float32', {}), ('gpt2', '1x2', 'float32', {}), ('gpt2', '2x1', 'bfloat16', {}),
              ('llama', '2x2', 'float32', {}), ('llama', '2x2', 'float32', mpi),
              ('experts', '1x1', 'float32', {}), ('experts', '2x2', 'float32', {'moe.z_loss_coeff': 0.1}),
              ('experts', '1x2', 'bfloat16', EVEN), ('gpt_oss', '1x1', 'float32', {}),
              ('gpt_oss', '1x2', 'bfloat16', {**EVEN, **tiny.OSS}), ('llama', '2x2', 'bfloat16', rounded), ('gpt2', '1x2', 'bfloat16', {**rounded, **mpi}),
              ('llama', 'halves', 'float32', {'model.n_heads': 4}), ('llama', 'halves', 'float32', {'model.n_heads': 4, 'training.local_batch_size': 2, **mpi}),
              ('gpt2', 'gathered halves', 'float32', {'data.document_mask': True, 'data.document_separator': 0}),
              ('llama', 'gathered halves', 'bfloat16', {'model.head_dim': 32}),
              ('delta', '1x1', 'float32', {}), ('delta', '2x2', 'bfloat16', {'activation_checkpoint.mode': 'full'}),
              ('delta', '1x2', 'float32', {'data.document_mask': True, 'data.document_separator': 0}),
              ('scan', '1x1', 'float32', {'model.linear_least_step': 0.3}), ('granite', '1x1', 'float32', {}),
              ('scan', '1x2', 'float32', {'data.document_mask': True, 'data.document_separator': 0, 'model.linear_conv_size': 4}),
              ('granite', '1x2', 'bfloat16', {'activation_checkpoint.mode': 'full'}),
              ('scan', '1x2', 'float32', {'model.layer_types': 'linear,moe,mlp', 'model.n_layers': 3, 'model.n_experts': 4, 'model.n_experts_per_token': 2,
                                          'model.expert_ffn_dim': 6, 'model.shared_ffn_dim': 5}),
              ('gemma4', '1x1', 'float32', {}), ('gemma4', '1x2', 'bfloat16', {}),
              # Scores of 512 products make weights next to one-hot: after an update, roundings decide where the gradient goes.
              ('gemma4', '1x2', 'bfloat16', {'model.global_head_dim': 512, 'training.steps': 1}), ('sharing', '1x1', 'float32', {'model.n_layers': 6}),
              ('sharing', '1x2', 'bfloat16', {'model.n_layers': 6, 'activation_checkpoint.mode': 'full'}), ('latent', '1x1', 'float32', {}),
              ('latent', '1x2', 'bfloat16', {}), ('llama', '1x1', 'float32', MUON), ('gpt2', '1x2', 'float32', MUON), ('llama', '2x2', 'bfloat16', MUON),
              ('llama', '1x1', 'float32', INT8), ('llama', '1x2', 'float32', INT8), ('gpt2', '2x2', 'bfloat16', INT8),
              ('llama', '1x2', 'float32', {**INT8, **mpi, 'optimizer.name': 'lion', 'optimizer.lr': 1e-3}), ('experts', '2x2', 'float32', INT8),
              ('llama', 'two stages of matrices', 'float32', {**CUT_DEEP, **INT8}),
              ('llama', '1x1', 'float32', GATHERS), ('gpt2', '1x2', 'float32', GATHERS), ('llama', '2x2', 'bfloat16', GATHERS),
              ('llama', '2x1', 'float32', GATHERS), ('llama', '1x4', 'float32', {**GATHERS, **INT8, **mpi}),
              ('experts', '2x2', 'float32', GATHERS), ('llama', 'two stages of matrices', 'float32', {**CUT_DEEP, 'parallelism.gather_dtype': 'int8'}),
              ('llama', '1x1', 'bfloat16', NORMUON), ('llama', '1x4', 'float32', MUON), ('gpt2', '1x2', 'float32', {**NORMUON, 'optimizer.muon_split': 'heads'}),
              ('llama', '1x2', 'float32', {**NORMUON, **mpi, 'optimizer.groups': 'pattern=down optimizer=adamw'}),
              ('experts', '2x2', 'float32', NORMUON),
              ('llama', 'two stages', 'float32', {**DEEP, **mpi}), ('llama', 'two stages, each two ranks', 'float32', DEEP),
              ('gpt2', 'two late stages', 'bfloat16', {**DEEP, 'model.tie_word_embeddings': False, 'activation_checkpoint.mode': 'full'}),
              ('llama', 'chunks of two stages', 'float32', DEEP), ('llama', 'three stages', 'float32', {**DEEP, **MUON}),
              ('llama', 'chunks of three stages', 'float32', {**DEEP, 'model.n_layers': 6, 'training.global_batch_size': 12}), ('llama', 'four stages', 'bfloat16', DEEP),
              ('experts', 'two stages of experts', 'float32', DEEP), ('llama', 'two stages of matrices', 'float32', CUT_DEEP),
              ('llama', 'two stages of halves', 'float32', {**DEEP, 'model.n_heads': 4}),
              ('experts', '2x2', 'bfloat16', {**MUON, **EVEN, 'optimizer.muon_split': 'none', 'optimizer.muon_ranks': 1}),
              ('llama', '2x2', 'float32', {**MUON, 'optimizer.muon_ranks': 4, 'training.z_loss': 1e-2}),
              ('olmo2', 'halves of matrices', 'float32', {}), ('olmo2', 'halves of matrices', 'bfloat16', {'activation_checkpoint.mode': 'full'}),
              ('olmo2', 'halves of matrices', 'float32', {'activation_checkpoint.mode': 'selective', **mpi})]
    if LONG:
        trains += [(model, mesh, precision, more) for model in tiny.MODELS for mesh in MESHES for precision in BOUND
                   for more in ({}, mpi, rounded)]
    cases = [(' '.join([model, 'on', mesh, 'in', precision, *map(str, more.values()), 'learns as on the CPU']), as_on_cpu, model,
              mesh, precision, more) for model, mesh, precision, more in trains]
    cases += [
        ('two runs on one mesh have the same bits', same_bits, ('1x2', {}), ('1x2', {})),
        ('sums in a tree have the same bits on every mesh', same_bits, ('1x1', tree), ('1x2', tree)),
        *[(f'the same with gathers in codes, {mesh}', same_bits, ('1x1', {**tree, **GATHERS}), (mesh, {**tree, **GATHERS})) for mesh in ('1x2', '2x1', '1x4')],
        *tile_cases(),
        ('a checkpoint of GPUs goes on on the CPU', checkpoints, (CUDA, '1x2'), (CPU, '1x1'), 'disabled'),
        ('one of the CPU goes on on GPUs, and is saved behind them', checkpoints, (CPU, '1x1'), (CUDA, '1x2'), 'async'),
        *[(f'{name}, with rows on their owners, {mode}', functools.partial(checkpoints, steps=4, **NORMUON), *way, mode) for name, *way, mode in (
            ('from GPUs to the CPU', (CUDA, '1x2'), (CPU, '1x1'), 'async'), ('from GPUs to the CPU', (CUDA, '2x2'), (CPU, '1x1'), 'disabled'),
            ('from the CPU to GPUs', (CPU, '1x1'), (CUDA, '1x2'), 'async'), ('from the CPU to GPUs', (CPU, '1x1'), (CUDA, '1x4'), 'disabled'))],
        *[(f'{name}, with rows on their owners and an average', functools.partial(checkpoints, steps=4, **NORMUON, **mean), *way, 'async')
          for mean in [{**validation(), 'optimizer.ema_decay': 0.7, 'validation.ema': True}] for name, *way in (
              ('from GPUs to the CPU', (CUDA, '2x2'), (CPU, '1x1')), ('from the CPU to GPUs', (CPU, '1x1'), (CUDA, '1x2')))],
        *[(f'{name}, with states in codes, {mode}', functools.partial(checkpoints, steps=4, **CODED, **mean), *way, mode)
          for mean in [{**validation(), 'optimizer.ema_decay': 0.7, 'validation.ema': True}] for name, *way, mode in (
              ('from GPUs to the CPU', (CUDA, '2x2'), (CPU, '1x1'), 'async'), ('from GPUs to the CPU', (CUDA, '1x2'), (CPU, '1x1'), 'disabled'),
              ('from the CPU to GPUs', (CPU, '1x1'), (CUDA, '1x2'), 'async'), ('from the CPU to GPUs', (CPU, '1x1'), (CUDA, '2x1'), 'disabled'))],
        *[(f'a checkpoint of {first[1]} goes on on {second[1]}', functools.partial(checkpoints, **DEEP, **validation()), first, second, 'async')
          for first, second in (((CUDA, 'two stages, each two ranks'), (CPU, '1x1')), ((CPU, '1x1'), (CUDA, 'two late stages')))],
        ('a bit of a copy that changes on the host fails its save', flipped),
        ('the same of states whose home is there', functools.partial(flipped, **{'offload.optimizer': 'cpu'})),
        *[(f'{name} on {ranks} ranks{"".join(f", {key}={value}" for key, value in more.items())}', strategy, name, ranks, more)
          for name, ranks, more in strategies()],
        ('two waits a step, on one GPU', functools.partial(counted, '1x1', 2, 64, **{'training.local_batch_size': 4})),
        ('two waits a step, on two GPUs, with documents', functools.partial(
            counted, '1x2', 2, 64, **{'data.document_mask': True, 'data.document_separator': 0})),
        ('replicas are compared where they lie', functools.partial(
            counted, '2x1', 4, 64, **{'fault.replica_check_every': 1})),
        ('replicas are compared where they lie, with states in codes', functools.partial(
            counted, '2x1', 4, 64, **{**INT8, 'fault.replica_check_every': 1})),
        ('a save brings the state over once', functools.partial(
            counted, '2x1', 8, state_bytes(), **{'checkpoint.enable': True, 'checkpoint.interval': 1})),
        ('adapters upon a model of the CPU, on two GPUs', adapted, '1x2', 'float32'),
        ('adapters upon a model of the CPU, on replicas', adapted, '2x2', 'bfloat16'),
        ('adapters upon a model in codes', functools.partial(adapted, **GATHERS), '1x2', 'bfloat16'),
        ('adapters upon a model in four bits', functools.partial(adapted, **{'lora.quantize_base': 'nf4'}), '1x2', 'bfloat16'),
        ('validation', evaluates),
        ('validation of an average', functools.partial(evaluates, **AVERAGE)),
        ('the same, with states on the host', functools.partial(evaluates, **AVERAGE, **{'offload.optimizer': 'cpu'})),
        ('targets that weigh little or do not count', masked),
        ('a text continued as on the CPU, with sinks and experts', functools.partial(continued, **{**EVEN, **tiny.OSS}), 'gpt_oss'),
        *((f'the same with states in blocks, {model}', continued, model) for model in ('delta', 'scan', 'granite')),
        *((f'the same with halves of matrices and of words, {model}', functools.partial(continued, words=257, **more), model, 'halves of matrices')
          for model, more in (('llama', {'model.n_heads': 4, 'model.n_kv_heads': 2}), ('olmo2', {}),
                              ('gpt2', {'model.dim': 16, 'model.n_heads': 4, 'model.logits_softcap': 1.5}))),
        *((f'documents and windows, {model}', documents, model) for model in tiny.MODELS),
        ('a trace', traces),
        ('a gather that nothing waits for is found', forgotten, 3, 'nccl', "reads memory that 'ncclAllGather' writes"),
        ('a gather that waits for nothing is found', forgotten, 8, 'nccl', "'ncclAllGather' writes memory"),
        ('a reduction that waits for nothing is found', forgotten, 11, 'nccl', "'ncclReduceScatter' reads memory"),
        ('a copy to the host that waits for nothing is found', forgotten, 8, 'mpi', "'copy' reads memory"),
        *[(f'a message {what} waits for nothing is found', functools.partial(forgotten, **DEEP), wait, 'nccl', word, 'two stages')
          for what, wait, word in (('that', 2, "'ncclSend' reads memory that 'forward layers.1 add, micro-step 0' writes"),
                                   ('whose reader', 3, "'forward layers.2 norm, micro-step 0' reads memory that 'ncclRecv' writes"),
                                   ('into which the next one writes, and which', 7, "'ncclRecv' writes memory that 'ncclSend' reads"))],
        ('sums in a tree are not for NCCL', tree_by_nccl), ('a driver that is too old for stages', old_driver),
        ('memory as planned, on one GPU', planned, '1x1'),
        ('memory as planned, in a stage', functools.partial(planned, 'two stages', **DEEP)),
        *[(f'memory as planned, with gathers in codes, {mesh}', functools.partial(planned, mesh, **GATHERS)) for mesh in ('1x2', '2x1')],
        ('memory as planned, with matrices at their owners', functools.partial(planned, '1x2', **NORMUON)),
        ('memory as planned, with states in codes', functools.partial(
            planned, '1x2', **INT8, **{'checkpoint.async_mode': 'async', 'checkpoint.interval': 1})),
        ('memory as planned, with checkpoints in the background', functools.partial(
            planned, '2x2', **rounded, **{'checkpoint.async_mode': 'async', 'checkpoint.interval': 1})),
        ('room is kept for libraries and NCCL', margin),
        ('what NCCL takes before the arena', nccl_takes, 10, ''),
        ('an arena that no longer fits beside NCCL is refused before the first step', nccl_takes, 20,
         r'sherd: error: (rank \d: )?the arena of 3\d.* MiB cannot be allocated on GPU \d, which has 24.0 MiB free'),
        ('the doctor on GPUs, by NCCL', doctor, 'nccl', r'nccl 2\.\d+\.\d+'),
        ('a failed port ends the run', functools.partial(doctor, **new), 'nccl',
         r'nccl 2\.29\.7, ports do not fail over \(NCCL_IB_RESILIENCY_PORT_FAILOVER=1\)'),
        ('a failed port is replaced', functools.partial(doctor, **{**new, 'NCCL_IB_RESILIENCY_PORT_FAILOVER': '1'}), 'nccl',
         r'nccl 2\.29\.7, ports fail over'),
        ('the doctor on GPUs, through host memory', doctor, 'mpi', 'mpi'),
        ('a GPU without code is refused', no_code),
        ("ranks that do not see each other's GPUs are told", hidden),
        ('queues of the hardware', connections),
        ('collectives by NCCL, measured', bench),
        ('what no kernel can do is refused by its name', too_large),
        ('attention without tensor cores is said', slow_heads),
        ('biases that cuBLASLt cannot add', without_cublaslt, 'bias status', 4, 'gpt2', 'bfloat16'),
        ('products that it has no kernel for, with biases', without_cublaslt, 'all none', 19, 'gpt2', 'float32'),
        ('products that it has no kernel for, without', without_cublaslt, 'all unusable', 18, 'llama', 'bfloat16'),
        ('a question to cuBLASLt that fails', query_fails),
        ('a fault is known by its operation', faults),
        ('ranks share a GPU when they are let', shared),
        ('a host without GPUs is told from one', no_gpu),
        ('power and clocks of GPUs are recorded', nvml),
        ('GPUs that tell nothing stop nothing', no_nvml),
        ('neighbours whose GPUs are far from each other', far),
    ]
    return job.run_cases(cases)


if __name__ == '__main__':
    sys.exit(main())
