#!/usr/bin/env python3
"""Training under pages of 64 KiB (pages.c): the ranks of a node share a segment, checkpoints go through a writer's ring, states
lie in a file. The losses are those of pages of 4 KiB, to the bit. Prints TAP."""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

SHIM = pathlib.Path(os.environ['SHERD_BUILDDIR']) / 'tests/mesh/pages.so'
CASES = {
    'full_shard': (2, {'parallelism.sharding_strategy': 'full_shard'}),
    'no_shard, once a node': (2, {'parallelism.sharding_strategy': 'no_shard'}),
    'hybrid_shard': (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.replicate': 2, 'mesh.shard': 2}),
    'messages': (2, {'parallelism.sharding_strategy': 'full_shard', 'comm.shared_memory': 'off'}),
    'states in a file': (2, {'parallelism.sharding_strategy': 'full_shard', 'offload.optimizer': 'nvme', 'offload.nvme_path': 'scratch'}),
}


def losses(name, tokens, ranks, more, shim):
    config = {**tiny.MODELS['llama'], 'training.dataset_path': tokens, 'job.dump_folder': 'out', 'checkpoint.enable': True,
              'checkpoint.interval': 5, **more}
    folder = job.prepare(name, config)
    (folder / 'scratch').mkdir()
    env = job.environment(ranks) | ({'LD_PRELOAD': job.launcher.preload(SHIM)} if shim else {})
    done = subprocess.run(job.command(ranks, ['train', 'c.yaml']), cwd=folder, env=env, capture_output=True, text=True,
                          timeout=job.SECONDS, stdin=subprocess.DEVNULL)
    return job.losses(job.metrics(folder)) if done.returncode == 0 else [done.stderr]


def quickstart(shim):
    """What ./quickstart runs, in fewer steps: losses, and a text."""
    folder = job.prepare(f'quickstart-{shim}', {})
    env = {'LD_PRELOAD': job.launcher.preload(SHIM)} if shim else {}

    def sherd(*words, ranks=0):
        done = subprocess.run(job.command(ranks, words), cwd=folder, env=job.environment(ranks) | env, capture_output=True, text=True,
                              timeout=job.SECONDS, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise job.Failed(f'{words}: {done.stderr}')
        return done.stdout

    train = ['train', job.TOP / 'examples/quickstart.yaml', '--job.dump_folder=out', '--metrics.log_freq=1', '--lr_scheduler.warmup_steps=1']
    sherd('tokenize', job.TOP / 'COPYING', '-o', 'train.bin', '--val', 'val.bin', '--val-fraction', '0.05')
    sherd(*train, '--training.steps=2', '--parallelism.sharding_strategy=hybrid_shard', '--mesh.ranks_per_node=2', ranks=4)
    sherd(*train, '--training.steps=4', '--parallelism.sharding_strategy=full_shard', '--checkpoint.resume=must', ranks=2)
    return sherd('generate', '--checkpoint', 'out', '--prompt', 'A hacker is ', '--tokens', '20'), job.losses(job.metrics(folder))


def same_quickstart():
    large, small = quickstart(True), quickstart(False)
    return [] if large == small and len(small[1]) == 4 else [f'{large} under pages of 64 KiB', f'{small} otherwise']


def same(tokens, ranks, more):
    small, large = (losses(name, tokens, ranks, more, name == 'large') for name in ('small', 'large'))
    return [] if small == large and len(small) == tiny.STEPS else [f'{large} under pages of 64 KiB', f'{small} otherwise']


if __name__ == '__main__':
    job.need_launcher()
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases([(name, same, tokens, *row) for name, row in CASES.items()] + [('the quickstart', same_quickstart)]))
