#!/usr/bin/env python3
"""fault.replay_every: a kernel that from some call on flips one bit of what one operation makes, on one rank: the rank is
named and the run ends before it saves; without it nothing is said, and no number changes. Prints TAP."""
import os
import pathlib
import random
import re
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import test_wrong as wrong
import tiny

RANKS, EACH = 4, 2  # on nodes of so many ranks
LONG = bool(os.environ.get('SHERD_LONG'))
FLIPS = 100 if LONG else 3
REPLAYS = 625 if LONG else 8  # of a rank on each mesh, without a flip
BASE = {**tiny.MODELS['llama'], 'training.global_batch_size': 8, 'comm.shared_memory': 'off', 'checkpoint.interval': 2,
        'checkpoint.keep_latest_k': 0, 'training.steps': 4, 'fault.replay_every': 2, 'lr_scheduler.total_steps': 10}
EXPERTS = {name: value for name, value in tiny.EXPERTS.items() if name.startswith(('model.', 'moe.'))}
MESHES = [
    {'parallelism.sharding_strategy': 'full_shard', 'training.mixed_precision_param': 'bfloat16', 'activation_checkpoint.mode': 'full'},
    {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'training.reproducible': 'mesh'},
    {'parallelism.sharding_strategy': 'no_shard', 'training.local_batch_size': 2},
    {**EXPERTS, 'parallelism.sharding_strategy': 'shard_grad_op', 'training.reproducible': 'mesh'},
]
# Two ranks make each micro-step together, of three at a time; stages make all of a step's.
SHARED = {'parallelism.sharding_strategy': 'full_shard', 'model.n_heads': 2, 'model.n_kv_heads': 2, 'model.ffn_dim': 32,
          'training.global_batch_size': 12, 'training.local_batch_size': 1}
TOGETHER = [{**SHARED, 'parallelism.tensor_parallel_degree': 2}, {**SHARED, 'parallelism.context_parallel_degree': 2},
            {**SHARED, 'parallelism.pipeline_parallel_degree': 2, 'parallelism.sharding_strategy': 'shard_grad_op'},
            {**EXPERTS, **SHARED, 'parallelism.expert_parallel_degree': 2},
            {**EXPERTS, **SHARED, 'parallelism.tensor_parallel_degree': 2, 'model.expert_ffn_dim': 8, 'model.shared_ffn_dim': 8}]
# Sums of parts of sequences, which end in padding.
LEAVES = {'training.reproducible': 'mesh', 'training.row_leaves': 2, 'training.seq_len': 32, 'model.max_seq_len': 32}
# Sums over ranks, and what an update reads and writes, are not replayed.
ELSEWHERE = re.compile(r'(update|init) |(accumulate|sumsq|exact_round|cast|copy|unpack)$')
NODES = {'LD_PRELOAD': job.launcher.preload(pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).absolute() / 'tests/fault/nodes.so'),
         'SHERD_TEST_NODE': str(EACH)}


def run(folder, config, statuses=(0,), ranks=RANKS, **env):
    return wrong.run(folder, ranks, {**BASE, **config}, statuses=statuses, more=NODES, **env)


def count_calls(config, ranks=RANKS):
    return [int(word) for word in re.search(r'^calls (.*)', run('count', config, ranks=ranks, CALL='count'), re.M)[1].split()]


def case_flips(meshes, ranks, flips):
    """Damage begins in step 1 or 2 and is found by the replay of step 2: no checkpoint of step 2 is there. Of ranks that make
    a micro-step together the one is named that has made it first."""
    draw, bad, found, tried = random.Random(11), [], 0, 0
    calls = {}
    while tried < flips:
        mesh, rank = draw.choice(range(len(meshes))), draw.randrange(ranks)
        if mesh not in calls:
            calls[mesh] = count_calls({**meshes[mesh], 'fault.replay_every': 0}, ranks)
        call = draw.randrange(calls[mesh][1], calls[mesh][2])
        said = run('flip', meshes[mesh], (0, 7), ranks, CALL=call, HOW='flip', RANK=rank, AGAIN=True)
        changes = re.findall(r'^wrong: (.*): (\w+)$', said, re.M)
        label = changes[0][0]
        if changes[0][1] == 'nothing' or ELSEWHERE.search(label):
            continue
        if 'run again: from' not in said and any(change == 'unread' for _, change in changes):
            continue  # a call at least of the operation was wrong only in room for rows that have not come
        tried += 1
        named = re.search(rf'step 2, run again: from the same sequences rank {rank} on \S+ makes other numbers than others, first in '
                          r'(.*); memory or a processor has failed silently: leave that node out and start again', said)
        saved = (pathlib.Path('flip/out/checkpoint') / 'step-00000002.h5').exists()
        bad += [f'{meshes[mesh]}: call {call}, {label} on rank {rank}: {said[-900:]}'] * (not named or saved)
        found += bool(named) and named[1] == label
    print(f'# {tried - len(bad)} of {tried} right ranks, {found} with the operation itself')
    return bad


def case_pair():
    """Of two ranks both are named; one that is wrong only once is named alone."""
    calls = count_calls({'fault.replay_every': 0}, 2)
    said = run('two', {}, (7,), 2, CALL=calls[1] + 2, HOW='flip', RANK=1, AGAIN=True)
    bad = [said] * (not re.search(r'rank 0 on \S+, rank 1 on \S+ make other numbers than each other, first in forward .*; memory or a '
                                  r'processor of one of them', said))
    short = {'training.steps': 2, 'checkpoint.interval': 10}
    last = count_calls(short, 2)[-1]  # of the last replay
    once = run('two', short, (7,), 2, CALL=last - 30, HOW='flip', RANK=1, AGAIN=False)
    label = re.search(r'^wrong: (.*): changed$', once, re.M)[1]
    bad += [said] * ('step 2 or before' not in run('two', {'training.steps': 4}, (7,), 2, CALL=count_calls({'training.steps': 4}, 2)[-1] - 30,
                                                   HOW='flip', RANK=0, AGAIN=True))
    return bad + [once] * ('rank 1 on' not in once or f' makes other numbers each time, first in {label};' not in once)


def case_watched():
    """The keeper tells the watch which node is unfit and what is sure to be right, before it says that the node lives; near
    checkpoints are empty. So it does if the base of adapters has changed between two saves."""
    replayed = watched({}, CALL=count_calls({}, 2)[-1] - 30, HOW='flip', AGAIN=True)
    job.train('base', {**BASE, 'fault.replay_every': 0, 'training.steps': 2, 'training.dataset_path': wrong.tokens})
    upon = {'lora.rank': 2, 'checkpoint.initial_load_path': str(pathlib.Path('base/out/checkpoint').resolve()),
            'parallelism.sharding_strategy': 'no_shard', 'fault.replay_every': 0}
    frozen = watched(upon, CALL=count_calls(upon, 2)[3], HOW='weight')
    return [f'unfit at {step}: {found}' for step, found in ((2, replayed), (4, frozen)) if not (
        re.fullmatch(rf'here (\S+)\nunfit \1 {step}\n', found[0] + found[1]) and found[2:] == ['all\n', '-1'])]


def watched(config, **env):
    """Three lines of the watch, and what the keeper has, after rank 1 went wrong."""
    folder = wrong.prepare('watched', {**BASE, **config, 'checkpoint.near_interval': 1})
    watch = subprocess.Popen([os.environ['SHERD'], 'keep', 'c.yaml', '--watch'], cwd=folder, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, text=True, env=job.environment(0))
    address = watch.stdout.readline().split()[1]
    keeper = subprocess.Popen([os.environ['SHERD'], 'keep', 'c.yaml'], cwd=folder, stdin=subprocess.DEVNULL,
                              env=job.environment(0) | {'SHERD_WATCH': address})
    try:
        wrong.go(folder, 2, statuses=(7,), RANK=1, **env)
        watch.send_signal(signal.SIGUSR1)
        said = [watch.stdout.readline() for _ in range(3)]
        left = job.sherd('keep', 'c.yaml', '--step', folder=folder).strip()
    finally:
        for process in watch, keeper:
            process.terminate()
            process.wait(job.SECONDS)
        watch.stdout.close()
    return [*said, left]


def case_clean_biases():
    """Experts with biases: the gradient of weights has rows from each rank's leaf, and each is compared when it is there."""
    model = {key: value for key, value in {**tiny.EXPERTS, **tiny.OSS}.items() if value is not None}
    job.train('biases', {**model, 'training.dataset_path': wrong.tokens, 'training.steps': 2, 'lr_scheduler.warmup_steps': 0,
                         'lr_scheduler.total_steps': 2, 'training.global_batch_size': 8, 'training.local_batch_size': 2, 'training.seq_len': 32, 'model.max_seq_len': 32,
                         'model.n_experts': 8, 'model.n_layers': 4, 'training.reproducible': 'mesh', 'fault.replay_every': 1, 'mesh.shard': 2,
                         'parallelism.sharding_strategy': 'hybrid_shard', 'parallelism.expert_parallel_degree': 2}, ranks=4)
    return []


def case_clean():
    """Nothing is said, and the losses are those of a run without replays."""
    bad = []
    for mesh in [*MESHES, *TOGETHER, LEAVES]:
        ranks = 6 if mesh in TOGETHER else RANKS
        config = {**BASE, **mesh, 'training.dataset_path': wrong.tokens, 'training.steps': REPLAYS, 'checkpoint.interval': 10 * REPLAYS}
        twice = job.losses(job.train('twice', {**config, 'fault.replay_every': 1}, ranks=ranks))
        if LONG or mesh is MESHES[1]:
            plain = job.losses(job.train('plain', {**config, 'fault.replay_every': 0}, ranks=ranks))
            bad += job.differ(f'{mesh}', twice, plain, 0)
    return bad


def case_refused():
    """What cannot be replayed is refused; sherd plan says what a replay costs."""
    bad = []
    for ranks, config, text in (
            (0, {}, 'start more ranks'), (2, TOGETHER[0], 'no other rank that makes another micro-step has'),
            (2, TOGETHER[2], 'no other rank that makes another micro-step has'),
            (2, {**EXPERTS, 'parallelism.expert_parallel_degree': 2}, 'no other rank that makes another micro-step has')):
        said = wrong.run('no', ranks, {**BASE, **config}, statuses=(2,))
        bad += [said] * ('fault.replay_every' not in said or text not in said)
    job.prepare('no', {**BASE, 'fault.replay_every': 20})
    said = job.sherd('plan', 'c.yaml', '--ranks=2', folder='no')
    alone = job.sherd('plan', 'c.yaml', '--ranks=1', folder='no')
    bad += [alone] * ('a run refuses fault.replay_every on one rank' not in alone)
    stages = job.sherd('plan', 'c.yaml', '--ranks=4', *(f'--{key}={value}' for key, value in TOGETHER[2].items()), folder='no')
    bad += [stages] * ('2 times all micro-steps of a step every 20 steps: 10 % of all' not in stages)
    shared = job.sherd('plan', 'c.yaml', '--ranks=2', *(f'--{key}={value}' for key, value in TOGETHER[0].items()), folder='no')
    bad += [shared] * ('refuses fault.replay_every on ranks that all make one' not in shared)
    return bad + [said] * ('2 micro-steps of each rank every 20 steps: 2.5 % of its micro-steps' not in said)


if __name__ == '__main__':
    wrong.tokens = tiny.write_tokens()
    sys.exit(job.run_cases([('one bit, lasting', case_flips, MESHES if LONG else MESHES[::3], RANKS, FLIPS),
                            ('of ranks that share a micro-step', case_flips, TOGETHER, 6, FLIPS if LONG else 2), ('of two ranks', case_pair), ('the watch', case_watched), ('no flip', case_clean), ('no flip, experts with biases', case_clean_biases),
                            ('what cannot be replayed', case_refused)] if job.can_launch() else [('skipped', list)]))
