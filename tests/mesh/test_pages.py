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


def same(tokens, ranks, more):
    small, large = (losses(name, tokens, ranks, more, name == 'large') for name in ('small', 'large'))
    return [] if small == large and len(small) == tiny.STEPS else [f'{large} under pages of 64 KiB', f'{small} otherwise']


def main():
    if not job.can_launch():
        print('1..0 # SKIP no MPI launcher')
        return 0
    tokens, failed = tiny.write_tokens(), 0
    print(f'1..{len(CASES)}')
    for number, (name, (ranks, more)) in enumerate(CASES.items(), 1):
        wrong = same(tokens, ranks, more)
        failed += bool(wrong)
        print(*(f'# {line}' for line in wrong), f"{'not ok' if wrong else 'ok'} {number} - {name}", sep='\n', flush=True)
    return int(failed != 0)


if __name__ == '__main__':
    sys.exit(main())
