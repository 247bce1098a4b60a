#!/usr/bin/env python3
"""What stages of a pipeline wait for each other, measured on two ranks, and what `sherd plan --machine` predicts of it:
within 3 points, for even and uneven stages. Prints TAP.

The work is an operation that sleeps (sleepy.c), whose seconds the machine file has: so the figures are known, and a busy
machine delays both stages alike.
"""
import json
import os
import pathlib
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / 'tests/gold'))
import job
import tiny

job.need_launcher()
SECONDS = 0.06  # of a forward; a backward takes twice as long
POINTS = 0.03
TRIES = 3  # other programs may delay every step of one run
STEPS, ROWS = 5, 16
CONFIG = {**tiny.MODELS['llama'], 'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS,
          'metrics.log_freq': 1, 'comm.shared_memory': 'off',
          'model.ffn_op': 'sleepy', 'plugin.numbers': f'sleepy.seconds={SECONDS}', 'checkpoint.enable': False,
          'parallelism.sharding_strategy': 'shard_optim', 'parallelism.pipeline_parallel_degree': 2}
# Blocks and micro-steps; the first stage has the block more of three.
CASES = {'even stages, 8 micro-steps': (2, 8), 'uneven stages, 4 micro-steps': (3, 4), 'one micro-step': (2, 1)}


def machine(config):
    """Two ranks on a node that compute in no time, but for the operation that sleeps."""
    elems = config['training.seq_len'] * config['model.ffn_dim']
    points = ''.join(f'  - {{kind: {name}, type: float32, dims: [{bytes_}], seconds: {seconds}, rounds: 1}}\n'
                     for name, bytes_, seconds in (('sleepy', 12 * elems, SECONDS), ('sleepy_bwd', 20 * elems, 2 * SECONDS)))
    pathlib.Path('m.yaml').write_text('device: {kind: cpu}\nnode: {devices: 2}\npoints:\n' + points)


def predict(config, ranks):
    pathlib.Path('c.yaml').write_text(job.yaml(config))
    job.launch('plan', 'c.yaml', '--ranks', ranks, '--machine', 'm.yaml', '--json', 'p.json')
    stage = json.loads(pathlib.Path('p.json').read_text())['stages'][0]
    idle = stage['bubble'] + sum(row['exposed'] for row in stage['split'].values())
    return idle / (stage['seconds'] - idle)


def measure(folder, config):
    """Of the fastest step, which other programs have delayed least; the first one is left out."""
    seconds = min((step['seconds'] for step in job.train(folder, config, 2)[1:]), key=lambda seconds: seconds['step'])
    return seconds['exposed_comm'] / (seconds['step'] - seconds['exposed_comm'])


def case(name):
    blocks, micros = CASES[name]
    config = {**CONFIG, 'model.n_layers': blocks, 'training.global_batch_size': micros, 'training.dataset_path': tokens,
              'plugin.files': plugin}
    machine(config)
    predicted = predict(config, 2)
    for number in range(TRIES):
        measured = measure(f'{blocks}-{micros}-{number}', config)
        print(f'# {name}: waits for {100 * measured:.1f} % of its work, {100 * predicted:.1f} % predicted')
        if abs(predicted - measured) <= POINTS:
            return []
    return [f'{predicted} predicted, {measured} measured at last, and no closer in {TRIES} runs']


plugin = str(pathlib.Path('sleepy.so').absolute())
subprocess.run(['cc', '-O1', '-shared', '-fPIC', f'-DELEMS={CONFIG["training.seq_len"] * CONFIG["model.ffn_dim"]}', f'-I{TOP}/include', '-o', plugin, TOP / 'tests/mesh/sleepy.c'], check=True)
tokens = tiny.write_tokens()
sys.exit(job.run_cases([(name, case, name) for name in CASES]))
