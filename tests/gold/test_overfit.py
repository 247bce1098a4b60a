#!/usr/bin/env python3
"""A model that can learn at all learns a few sequences by heart: tests everything from data to update together. Prints
TAP."""
import array
import random
import sys

import job

LOSS = 0.05
SEQ_LEN, SEQUENCES = 24, 4
CONFIG = {
    'model.n_layers': 2, 'model.dim': 32, 'model.n_heads': 4, 'model.ffn_dim': 64, 'model.vocab_size': 50,
    'model.max_seq_len': SEQ_LEN,
    'training.dataset_path': '../tokens.bin', 'training.seq_len': SEQ_LEN, 'training.local_batch_size': 2,
    'training.global_batch_size': SEQUENCES, 'training.steps': 150, 'training.threads': 1,
    'optimizer.lr': 1e-2, 'optimizer.weight_decay': 0.0, 'lr_scheduler.warmup_steps': 10, 'checkpoint.enable': False,
}
RUNS = {
    'gpt2, float32': (0, {'model.family': 'gpt2', 'training.mixed_precision_param': 'float32'}),
    'llama, bfloat16, full_shard over 2': (2, {'model.family': 'llama', 'model.n_kv_heads': 2}),
}


def write_tokens(path):
    draw = random.Random(3)
    tokens = array.array('H', [draw.randrange(CONFIG['model.vocab_size']) for _ in range(SEQUENCES * SEQ_LEN + 1)])
    with open(path, 'wb') as file:
        tokens.tofile(file)


def case(ranks, changes):
    steps = job.train('run', {**CONFIG, **changes}, ranks)
    first, last = steps[0]['loss'], steps[-1]['loss']
    return [] if last < LOSS < first else [f'loss from {first:.4f} to {last:.4f}, expected less than {LOSS}']


if __name__ == '__main__':
    write_tokens('tokens.bin')
    sys.exit(job.run_cases([(name, case, *run) for name, run in RUNS.items() if run[0] == 0 or job.can_launch()]))
