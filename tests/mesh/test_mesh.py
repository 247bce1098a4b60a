#!/usr/bin/env python3
"""The same training on every mesh: strategies, numbers of ranks, recompute, prefetch, accumulation. Prints TAP.

In float32 the losses of all steps agree with those of one rank to LOSS_BOUND, and to ROUNDED_BOUND if gradients are
sent in bfloat16. Two runs on one mesh, and runs that differ only in what is recomputed, in when units are gathered, or
in what the ranks of a node share, agree to the bit. SHERD_LONG=1 runs every combination, otherwise a sample: each mesh
with one of the models, and alternating choices of recomputation and gathering (tests/unit/test_pass_simulate has all of
them on each mesh). SHERD_TEST_FEW=1 leaves out settings that another MPI does not affect: recomputation, the time of
gathers, widths.
"""
import functools
import itertools
import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

LOSS_BOUND = 1e-5
ROUNDED_BOUND = 1e-2  # for gradients that are rounded to 8 bits when they are sent
STEPS = 5
LONG = bool(os.environ.get('SHERD_LONG'))

RANKS = (1, 2, 3, 4, 6, 8)
FLAT = ('no_shard', 'shard_optim', 'shard_grad_op', 'full_shard')
HYBRID = ('hybrid_shard', 'hybrid_shard_zero2')
GRIDS = ((1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2))  # replicate, shard


# Within a node nothing is gathered, so gathers are tested without shared memory.
APART = {'comm.shared_memory': 'off'}


def flat(strategy, ranks, **more):
    return ranks, {'parallelism.sharding_strategy': strategy, **more}


def grid(strategy, replicate, shard, **more):
    return replicate * shard, {'parallelism.sharding_strategy': strategy, 'mesh.replicate': replicate,
                               'mesh.shard': shard, **more}


def replicas(ranks):
    """Each rank holds everything, although the ranks of a node could hold it once."""
    return flat('no_shard', ranks, **{'mesh.replicate': ranks})


ROUNDED = {'training.mixed_precision_reduce': 'bfloat16'}


def inner(strategy, n, replicate, shard):
    changes = {'parallelism.reshard_after_forward': n, **APART}
    return flat(strategy, shard, **changes) if replicate == 1 else grid(strategy, replicate, shard, **changes)


INNER = [inner('full_shard', 2, 1, 4), inner('full_shard', 4, 1, 4), inner('full_shard', 2, 1, 6),
         inner('full_shard', 3, 1, 6), inner('hybrid_shard', 2, 2, 4)]
EVERY_MESH = ([flat(*pair) for pair in itertools.product(FLAT, RANKS)]
              + [grid(strategy, *sizes) for strategy in (*HYBRID, 'shard_optim') for sizes in GRIDS] + INNER)
# Each strategy, each number of ranks and each kind of grid at least once.
SAMPLE = [flat('full_shard', 1), replicas(2), flat('no_shard', 4, **{'mesh.ranks_per_node': 2}),
          flat('shard_optim', 3), flat('shard_grad_op', 4),
          flat('full_shard', 6), grid('hybrid_shard', 2, 2), grid('hybrid_shard', 4, 2),
          grid('hybrid_shard_zero2', 2, 3), grid('hybrid_shard_zero2', 3, 1), grid('shard_optim', 2, 2), INNER[0]]
# Meshes on which bits are compared: all collectives and both axes.
BIT_MESHES = [grid('hybrid_shard', 2, 2), flat('full_shard', 3), flat('shard_grad_op', 2)] + (
    [replicas(3), flat('shard_optim', 4), grid('hybrid_shard_zero2', 2, 3), grid('shard_optim', 2, 2), INNER[0]]
    if LONG else [])
# Cases of no_shard held once per node: ranks, ranks per node, other settings.
ONCE = [(2, 2, {}), (3, 3, {}), (4, 4, {'training.mixed_precision_param': 'bfloat16'}), (4, 2, {}), (3, 3, ROUNDED)]

RECOMPUTE = [{'activation_checkpoint.mode': 'full'}, {'activation_checkpoint.mode': 'selective'},
             {'activation_checkpoint.mode': 'every_k', 'activation_checkpoint.every_k': 2}]
PREFETCH = [{**APART, 'parallelism.forward_prefetch': forward, 'parallelism.backward_prefetch': backward,
             'parallelism.limit_all_gathers': limit}
            for forward, backward, limit in [(0, 0, 1), (0, 0, 2), (2, 2, 0), (3, 1, 2), (1, 3, 3)]]


def label(ranks, changes):
    words = [value if isinstance(value, str) else f'{name.split(".")[1]} {value}' for name, value in changes.items()]
    return f'{ranks} ranks, ' + ', '.join(words)


def with_local(changes, ranks, accumulate):
    """With accumulation a micro-step is one sequence per rank, without accumulation it is the whole batch."""
    return {**changes, 'training.local_batch_size': 1 if accumulate else tiny.GLOBAL_BATCH // ranks}


folders = itertools.count()


def train(family, ranks, changes):
    """Returns (numbers that must agree, the last checkpoint's bytes)."""
    folder = pathlib.Path(f'run-{next(folders)}')
    steps = job.train(folder, {**tiny.MODELS[family], 'training.dataset_path': tokens, 'training.steps': STEPS, **changes}, ranks)
    saved = (folder / f'out/checkpoint/step-{STEPS:08}.h5').read_bytes()
    shutil.rmtree(folder)
    return [step[key] for step in steps for key in ('loss', 'grad_norm')], saved


@functools.lru_cache(None)
def one_rank(family):
    return train(family, 0, {'training.local_batch_size': tiny.GLOBAL_BATCH})[0]


@functools.lru_cache(None)
def once(family, ranks, changes):
    return train(family, ranks, dict(changes))


def case_mesh(family, ranks, changes):
    return job.differ('loss or norm', train(family, ranks, changes)[0], one_rank(family), LOSS_BOUND)


def case_rounded(family, ranks, changes):
    """Near the losses of one rank, but not as near as when float32 is sent, and the same bits for any transport."""
    numbers, _ = once(family, ranks, tuple({**changes, **ROUNDED}.items()))
    return (job.differ('loss or norm', numbers, one_rank(family), ROUNDED_BOUND)
            + ([] if job.differ('loss or norm', numbers, one_rank(family), LOSS_BOUND) else ['nothing was rounded'])
            + case_same_bits(family, ranks, {**changes, **ROUNDED}, [*({}, APART) * LONG, {**APART, 'mesh.ranks_per_node': 1}]))


def case_again(family, ranks, changes):
    """The checkpoint holds all weights, moments and the configuration, so equal files say more than equal losses."""
    numbers, saved = once(family, ranks, tuple(changes.items()))
    again, saved_again = train(family, ranks, changes)
    return job.differ('loss or norm', again, numbers, 0) + ([] if saved == saved_again else ['the checkpoints differ'])


def case_same_bits(family, ranks, changes, kinds):
    expected, _ = once(family, ranks, tuple(changes.items()))
    return [line for kind in kinds for line in
            job.differ(label(ranks, {**changes, **kind}), train(family, ranks, {**changes, **kind})[0], expected, 0)]


def case_once(family, ranks, node, more):
    """Held once per node or by each rank: the same losses, norms and state, to the bit."""
    changes = {'parallelism.sharding_strategy': 'no_shard', **with_local({}, ranks, True), **more}
    numbers = []
    for name, where in ('apart', APART), ('once', {'mesh.ranks_per_node': node}):
        found, saved = train(family, ranks, {**changes, **where})
        pathlib.Path(f'{name}.h5').write_bytes(saved)
        numbers.append(found)
    return (job.differ('loss or norm', numbers[1], numbers[0], 0)
            + job.sherd('ckpt', 'diff', 'apart.h5', 'once.h5').splitlines())


def once_cases():
    return [(f'{family}, {label(ranks, more)}, nodes of {node}: no_shard held once', case_once, family, ranks, node, more)
            for family, (ranks, node, more) in zip(itertools.cycle(tiny.MODELS), ONCE)]


def mesh_cases():
    both = [(family, ranks, {**apart, **with_local(changes, ranks, accumulate)}, accumulate)
            for family in tiny.MODELS for accumulate in (False, True) for apart in (({}, APART) if LONG else ({},))
            for ranks, changes in (EVERY_MESH if LONG else SAMPLE)]
    if not LONG:  # each mesh once, alternating between the models, and with or without accumulation
        both = [row for i, row in enumerate(both) if divmod(i % len(SAMPLE) % 4, 2) == (row[3], row[0] == 'llama')]
        both = [(family, ranks, {**APART, **changes} if i % 2 else changes, accumulate)
                for i, (family, ranks, changes, accumulate) in enumerate(both)]
    return [(f'{family}, {label(ranks, changes)}', case_mesh, family, ranks, changes)
            for family, ranks, changes, _ in both]


def bit_cases():
    cases = []
    for turn, (family, (ranks, changes)) in enumerate(zip(itertools.cycle(tiny.MODELS), BIT_MESHES)):
        every = slice(None) if LONG else slice(turn % len(RECOMPUTE), None, len(RECOMPUTE))
        where, changes = f'{family}, {label(ranks, changes)}', with_local(changes, ranks, True)
        # That bits come again is in all that follows; here also that all of the checkpoint's do.
        cases += [] if turn and not LONG else [(f'{where}: again', case_again, family, ranks, changes)]
        cases.append((f'{where}: nothing shared', case_same_bits, family, ranks, changes,
                      [APART] * job.FEW + [{**APART, 'mesh.ranks_per_node': 1}]))
        if not job.FEW:
            cases += [(f'{where}: recompute', case_same_bits, family, ranks, changes, RECOMPUTE[every]),
                      (f'{where}: prefetch', case_same_bits, family, ranks, changes, PREFETCH[every])]
    return cases


def tied_cases():
    """Tied weights are used by the first and the last operation of a micro-step, and reduced once. The
    norm's squares are summed in blocks of 64 elements, which a row may cut; each step is clipped."""
    wide = {'model.dim': 64, 'model.n_heads': 4, 'model.head_dim': 16, 'training.max_norm': 0.1}
    meshes = [(flat('full_shard', 3), False), (flat('shard_optim', 2), True), (grid('shard_optim', 2, 2), True), (grid('hybrid_shard', 2, 2), False),
              (flat('full_shard', 2, **wide), False), (flat('full_shard', 3, **wide), False)]
    meshes = [mesh for mesh in meshes if not job.FEW or 'model.dim' not in mesh[0][1]]
    return [(f'gpt2, {label(ranks, changes)}: tied', case_same_bits, 'gpt2', ranks,
             with_local(changes, ranks, accumulate), [APART] if accumulate else [{**APART, 'training.threads': 2}])
            for (ranks, changes), accumulate in meshes]


def sync_cases():
    meshes = [flat('full_shard', 3), flat('no_shard', 2), grid('hybrid_shard_zero2', 2, 2)] + (
        EVERY_MESH if LONG else [])
    return [(f'llama, {label(ranks, changes)}, gradients of {sync}', case_mesh, 'llama', ranks,
             {**with_local(changes, ranks, True), 'parallelism.gradient_sync': sync})
            for ranks, changes in meshes for sync in ('every_micro_step', 'last_micro_step')]


def rounded_cases():
    meshes = [flat('full_shard', 3), replicas(2), grid('hybrid_shard', 2, 2)] + (
        [flat('shard_optim', 4), grid('shard_optim', 2, 2), grid('hybrid_shard_zero2', 3, 2), INNER[0]] if LONG else [])
    return [(f'{family}, {label(ranks, changes)}, bf16 sent', case_rounded, family, ranks,
             with_local(changes, ranks, family == 'llama'))
            for family, (ranks, changes) in zip(itertools.cycle(tiny.MODELS), meshes)]


if __name__ == '__main__':
    job.need_launcher()
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(mesh_cases() + bit_cases() + tied_cases() + once_cases() + sync_cases()
                           + rounded_cases()))
