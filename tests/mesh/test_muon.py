#!/usr/bin/env python3
"""Muon: the same bits on every mesh, with states in memory and in a file, and after interruptions. Prints TAP.

Whole matrices travel to owners and back, so what is compared is everything: losses, norms, and the bytes of checkpoints.
"""
import functools
import itertools
import pathlib
import re
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny
import xxh

STEPS, HALF = 6, 3
FILE = {'offload.optimizer': 'nvme', 'offload.nvme_path': '.', 'offload.allow_network': True}
GROUPS = {'optimizer.groups': 'pattern=down optimizer=adamw; pattern=q_proj lr=0.5 weight_decay=0.3'}
NORMUON = {'optimizer.name': 'normuon', 'optimizer.muon_split': 'heads'}
NARROW = {'training.mixed_precision_param': 'bfloat16', 'optimizer.state_dtype': 'bfloat16'}
WAYS = {
    'llama': ('llama', {}),
    'llama, by heads, bfloat16': ('llama', {**NARROW, 'optimizer.muon_split': 'heads', 'model.ffn_dim': 256}),  # slices of matrices alone
    'llama, bfloat16, averaged': ('llama', {**NARROW, 'optimizer.ema_decay': 0.9}),  # slices are moved three times
    'llama, groups': ('llama', GROUPS),
    'gpt2': ('gpt2', {'optimizer.nesterov': False}),
    'experts': ('experts', {}),
    'llama, NorMuon': ('llama', NORMUON),
    'experts, NorMuon, cautious': ('experts', {**NORMUON, 'optimizer.cautious_decay': True, 'optimizer.ema_decay': 0.9}),
    'llama of 18 blocks, NorMuon': ('llama', {**NORMUON, 'model.n_layers': 18}),  # several waves, which replicas share
}


def flat(strategy, ranks, **more):
    return ranks, {'parallelism.sharding_strategy': strategy, **more}


MESHES = {
    '2 threads': flat('full_shard', 0, **{'training.threads': 2}),
    'full_shard over 2': flat('full_shard', 2),
    'full_shard over 4, by messages': flat('full_shard', 4, **{'comm.shared_memory': 'off'}),
    'full_shard over 8': flat('full_shard', 8),
    'full_shard over 4, not carried': flat('full_shard', 4, **{'offload.overlap_update': 'off'}),
    'no_shard over 2, once, saved in the background': flat('no_shard', 2, **{'checkpoint.async_mode': 'async'}),
    'no_shard, 2 replicas': flat('no_shard', 2, **{'mesh.replicate': 2}),
    'shard_optim over 4': flat('shard_optim', 4),
    'full_shard over 4, 1 owner': flat('full_shard', 4, **{'optimizer.muon_ranks': 1}),
    'full_shard over 4, 2 owners, carried': flat('full_shard', 4, **FILE, **{'optimizer.muon_ranks': 2}),
    'shard_grad_op over 4, 3 owners, by messages': flat('shard_grad_op', 4, **{'optimizer.muon_ranks': 3, 'comm.shared_memory': 'off'}),
    'shard_optim over 2, 1 owner': flat('shard_optim', 2, **{'optimizer.muon_ranks': 1}),
    'no_shard over 2, once, 1 owner': flat('no_shard', 2, **{'optimizer.muon_ranks': 1}),
    'hybrid_shard_zero2 2 x 2, 1 owner': flat('hybrid_shard_zero2', 4, **{'mesh.shard': 2, 'optimizer.muon_ranks': 1}),
    'hybrid_shard 2 x 2': flat('hybrid_shard', 4, **{'mesh.shard': 2}),
    'hybrid_shard 2 x 2, not carried': flat('hybrid_shard', 4, **{'mesh.shard': 2, 'offload.overlap_update': 'off'}),
    'hybrid_shard_zero2 2 x 2': flat('hybrid_shard_zero2', 4, **{'mesh.shard': 2}),
    # Replicas share the work, all or neighbours, or none does.
    'hybrid_shard 2 x 2, each replica by itself': flat('hybrid_shard', 4, **{'mesh.shard': 2, 'optimizer.muon_ranks': 2}),
    'hybrid_shard 4 x 2, by messages': flat('hybrid_shard', 8, **{'mesh.shard': 2, 'comm.shared_memory': 'off'}),
    'hybrid_shard 4 x 2, 2 share': flat('hybrid_shard', 8, **{'mesh.shard': 2, 'optimizer.muon_ranks': 4}),
    'hybrid_shard_zero2 2 x 2, carried': flat('hybrid_shard_zero2', 4, **FILE, **{'mesh.shard': 2}),
    'shard_optim 2 x 2': flat('shard_optim', 4, **{'mesh.shard': 2}),
    'no_shard, 4 replicas, 2 share, by messages': flat('no_shard', 4, **{'mesh.replicate': 4, 'optimizer.muon_ranks': 2,
                                                                       'comm.shared_memory': 'off'}),
}
# Of them, how many replicas share the matrices of a rank, if there are four blocks.
SHARERS = {'no_shard, 2 replicas': '2 of 2', 'hybrid_shard 2 x 2': '2 of 2', 'hybrid_shard 2 x 2, not carried': '2 of 2', 'hybrid_shard_zero2 2 x 2': '2 of 2',
           'hybrid_shard 4 x 2, by messages': '4 of 4', 'hybrid_shard 4 x 2, 2 share': '2 of 4', 'shard_optim 2 x 2': '2 of 2',
           'no_shard, 4 replicas, 2 share, by messages': '2 of 4'}
IN_A_FILE = {
    'states in a file, carried': flat('full_shard', 2, **FILE),
    'states in a file, not carried': flat('full_shard', 0, **FILE, **{'offload.overlap_update': 'off'}),
    'half of the states in a file': flat('hybrid_shard_zero2', 4, **FILE, **{'mesh.shard': 2, 'offload.optimizer_ratio': 0.5}),
}
# Their sums are not those of a tree, so only what no sum comes into has the same bits.
UNEVEN = {f'full_shard over {ranks}': flat('full_shard', ranks, **{'training.global_batch_size': 12, 'training.reproducible': 'none'})
          for ranks in (3, 6)}
SAMPLE = ('full_shard over 2', 'full_shard over 4, by messages', 'full_shard over 4, 1 owner', 'hybrid_shard 2 x 2')
folders = itertools.count()


def new_folder():
    return pathlib.Path(f'run-{next(folders)}')


def config(way, changes):
    model, own = WAYS[way]
    base = tiny.EXPERTS if model == 'experts' else tiny.MODELS[model]
    return {**base, 'training.dataset_path': tokens, 'training.reproducible': 'mesh', 'training.global_batch_size': 16,
            'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS, 'checkpoint.interval': HALF, 'optimizer.name': 'muon', **own, **changes}


def saved(folder, step=STEPS):
    return folder / f'out/checkpoint/step-{step:08}.h5'


def numbers(steps):
    return [step[key] for step in steps for key in ('loss', 'grad_norm')]


@functools.lru_cache(None)
def one_rank(way):
    folder = new_folder()
    return folder, numbers(job.train(folder, config(way, {})))


def judge(folder, steps, way):
    first, right = one_rank(way)
    found = numbers(steps)
    return (job.differ('loss or norm', found, right[-len(found):], 0)
            + ([] if saved(folder).read_bytes() == saved(first).read_bytes() else ['the last checkpoints differ']))


def case_mesh(way, mesh):
    ranks, changes = {**MESHES, **IN_A_FILE}[mesh]
    folder = new_folder()
    return judge(folder, job.train(folder, config(way, changes), ranks), way)


def take_up(first, changes, ranks):
    """Continue from the middle of a run; returns (folder, the finished process)."""
    folder = job.prepare(new_folder(), {'job.dump_folder': 'out', **changes})
    saved(folder).parent.mkdir(parents=True)
    shutil.copy(saved(first, HALF), saved(folder, HALF))
    return folder, subprocess.run(job.command(ranks, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, cwd=folder, env=job.environment(ranks), timeout=job.SECONDS)


def case_taken_up(way, mesh):
    """Saved by one rank, continued by several: to the bit as if there had been no interruption."""
    ranks, changes = {**MESHES, **IN_A_FILE}[mesh]
    folder, done = take_up(one_rank(way)[0], config(way, changes), ranks)
    return [done.stderr] if done.returncode else judge(folder, job.metrics(folder), way)


def case_uneven(mesh):
    ranks, changes = UNEVEN[mesh]
    one, several = (numbers(job.train(new_folder(), config('llama, NorMuon', changes), n)) for n in (0, ranks))
    return job.differ('loss or norm', several, one, 1e-5)


def case_skipped(mesh, scale=None):
    """Steps that the guard leaves out, or whose loss scale was too much, leave momentum, means of squares and parameters as
    they are, carried or not."""
    ranks, changes = {**MESHES, **IN_A_FILE, **UNEVEN}[mesh]
    first = one_rank('llama, NorMuon')[0]
    over = {'training.mixed_precision_param': 'float16', **(scale or {'training.loss_scale': 2**40, 'guard.max_skips': 2 * STEPS})}
    folder, done = take_up(first, config('llama, NorMuon', {**changes, **over}), ranks)
    if done.returncode or sum('skipped' in step for step in job.metrics(folder)) != STEPS - HALF:
        return [done.stderr]
    same = subprocess.run(job.command(0, ['ckpt', 'diff', saved(first, HALF), saved(folder)]), capture_output=True, text=True)
    right = 'differ in 4 places' in same.stderr and same.stdout.startswith('step: 3 -> 6\nsamples: ') and f'\n{list(over)[-1]}: ' in same.stdout
    return [] if right else [same.stdout + same.stderr]


def case_refused(changes, text, way='llama'):
    """Continuing with other states is refused, and the message says what works."""
    _, done = take_up(one_rank(way)[0], config('llama', changes), 0)
    return [] if done.returncode == 2 and text in done.stderr else [f'{done.returncode}: {done.stderr}']


def case_other_numbers():
    """Groups that leave each matrix to its optimizer may have other numbers, and other patterns."""
    groups = {'optimizer.groups': 'pattern=q_proj lr=0.4; pattern=norm weight_decay=0; pattern=mlp.down optimizer=adamw lr=0.5'}
    _, done = take_up(one_rank('llama, groups')[0], config('llama', groups), 0)
    return [done.stderr] * (done.returncode != 0)


def case_never_starts(changes, text):
    folder = job.prepare(new_folder(), config('llama', changes))
    done = subprocess.run(job.command(0, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          cwd=folder, env=job.environment(0), timeout=job.SECONDS)
    return [] if done.returncode == 2 and text in done.stderr else [f'{done.returncode}: {done.stderr}']


def case_from_adamw():
    """A group by muon makes a run by adamw one by muon, which does not continue from AdamW's states."""
    first, mixed = new_folder(), {'optimizer.name': 'adamw', 'optimizer.groups': 'pattern=q_proj optimizer=muon'}
    job.train(first, config('llama', {'optimizer.name': 'adamw', 'training.steps': HALF}))
    _, done = take_up(first, config('llama', mixed), 0)
    return [] if done.returncode == 2 and 'give --optimizer.name=AdamW and no group by muon, or ' in done.stderr else [done.stderr]


def case_rows_elsewhere():
    """Whoever wants the model alone takes a checkpoint with states of rows; Muon and NorMuon do not take up each other."""
    first = one_rank('llama, NorMuon')[0]
    _, other = take_up(first, config('llama', {}), 0)
    _, reverse = take_up(one_rank('llama')[0], config('llama', NORMUON), 0)
    start = {'optimizer.name': 'adamw', 'checkpoint.initial_load_path': f'../{saved(first)}', 'checkpoint.initial_load_model_only': True}
    job.train(new_folder(), config('llama', start))
    job.sherd('ckpt', 'average', saved(first), saved(first), '-o', 'mean')
    job.sherd('ckpt', 'verify', saved(first))
    job.sherd('ckpt', 'export', saved(first), '-o', 'exported')
    return ([] if 'has the state of NorMuon, from which Muon' in other.stderr else [other.stderr]) + (
        [] if 'has the state of Muon, from which NorMuon' in reverse.stderr else [reverse.stderr])


def planned(changes, *words):
    folder = job.prepare(new_folder(), config('llama', changes))
    return ' '.join(job.sherd('plan', 'c.yaml', *words, folder=folder).split())


def case_plan():
    """Means of squares that nobody needs, with their bytes, if they are many."""
    unused, off = ' KiB of exp_avg_sq on each rank are of elements that it does not update: ', {'checkpoint.async_mode': 'disabled'}
    rows = ((planned({**GROUPS, **off}, '--ranks', 4), 'each rank has as many'), (planned(FILE, '--ranks', 2), 'states in a file'))
    return [f'not {why}: {said}' for said, why in rows if why not in said or unused not in said] + [
        said for said in (planned(off), planned({'checkpoint.async_mode': 'async'})) if unused in said]


def case_sharers(mesh):
    """So many replicas share the work, of which the busiest rank then has less. With as many blocks for each."""
    ranks, changes = MESHES[mesh]
    said, alone = (planned({**changes, 'model.n_layers': 4, **more}, '--ranks', ranks) for more in ({}, {'optimizer.muon_ranks': changes.get('mesh.shard', 1)}))
    work, of_all = (float(re.search(r' ([\d.e+-]+) GFLOP for orthogonal', text)[1]) for text in (said, alone))
    sharers = int(SHARERS[mesh].split()[0])
    wrong = [] if f'{SHARERS[mesh]} replicas share the matrices of a rank' in said else [said]
    wrong += [] if of_all / sharers <= work * 1.001 <= 1.2 * of_all / sharers else [f'{work} of {of_all} GFLOP']
    return wrong + ([] if 'makes all matrices itself: optimizer.muon_ranks=' in alone else [alone])


def case_size(way):
    """The plan has the bytes of the tensors in a file, to the byte; a changed list of tensors is refused, also with a digest
    that is right."""
    path = saved(one_rank(way)[0])
    data = path.read_bytes()
    at, size = struct.unpack('<2q', data[-64:-48])
    begin = struct.unpack('<q', data[at + 24:at + 32])[0]
    folder = job.prepare(new_folder(), config(way, {}))
    said = ' '.join(job.sherd('plan', 'c.yaml', folder=folder).split())
    wrong = [] if f' tensors in a checkpoint: {at - begin} bytes, without exp_avg_sq of matrices ' in said else [f'{at - begin}: {said}']
    states = data[at:].index(b'model\0')  # after their number
    offsets = data.index(b'proj.weight', at) + len(b'proj.weight') + 2 * 8
    mask = offsets + 8 * data[at + states - 8]
    rows = [(offsets + 16 + 5, 4, False, 'does not match its digest'), (at + size - 1, 4, False, 'does not match its digest'), (mask, 64, True, 'a tensor has impossible states'),
            (offsets + 16, 1, True, 'a tensor lies where it has no state'), (mask, 4, True, 'a tensor lies outside of the data'),
            (mask, 1, True, 'a tensor of states alone comes before one of the model')]
    for place, bits, signed, why in rows:
        bad = bytearray(data)
        bad[place] ^= bits
        if 'alone' in why:
            bad[offsets:offsets + 8] = bytes(8)
        if signed:
            bad[-48:-32] = xxh.hash128(bytes(bad[at:at + size]))
        (folder / 'bad.h5').write_bytes(bad)
        done = subprocess.run(job.command(0, ['ckpt', 'verify', 'bad.h5']), capture_output=True, text=True, cwd=folder, env=job.environment(0))
        wrong += [] if done.returncode == 3 and done.stderr.count('\n') == 1 and 'damaged' in done.stderr and why in done.stderr else [f'{why}: {done.stderr}']
    return wrong


if __name__ == '__main__':
    tokens = tiny.write_tokens()
    cases = [(f'{way}, {mesh}', case_mesh, way, mesh) for i, way in enumerate(WAYS)
             for mesh in (SAMPLE[(i + i // 5) % 2::2] if job.FEW or way != 'llama' else MESHES)
             if 'averaged' not in way and MESHES[mesh][0] == 0 or job.can_launch()]
    cases += [(f'{way}, {mesh}', case_mesh, way, mesh) for way in ('llama', 'llama, by heads, bfloat16', 'llama, bfloat16, averaged') for mesh in IN_A_FILE
              if IN_A_FILE[mesh][0] == 0 or job.can_launch()]
    cases += [(f'llama, NorMuon, {mesh}', case_mesh, 'llama, NorMuon', mesh) for mesh in
              ('no_shard over 2, once, saved in the background', 'states in a file, carried') if job.can_launch()]
    cases += [('states of rows elsewhere', case_rows_elsewhere), ('a group by muon, from AdamW', case_from_adamw), ('what the plan says', case_plan)]
    cases += [(f'shared work, {mesh}', case_sharers, mesh) for mesh in SHARERS]
    cases += [(f'{way}, bytes of a checkpoint', case_size, way) for way in ('llama', 'llama, groups', 'experts, NorMuon, cautious')]
    cases += [(f'{way}, taken up by {mesh}', case_taken_up, way, mesh) for way, mesh in
              (('llama, NorMuon', 'full_shard over 4, by messages'), ('llama, NorMuon', 'full_shard over 4, 1 owner'), ('llama', 'full_shard over 4, by messages'), ('llama', 'states in a file, carried'), ('experts', 'full_shard over 2'),
               ('llama, groups', 'full_shard over 2')) if job.can_launch()]
    cases += [(f'skipped, {mesh}', case_skipped, mesh) for mesh in ('2 threads', 'states in a file, carried', *UNEVEN) if MESHES.get(mesh) or job.can_launch()]
    cases.append(('skipped, a dynamic loss scale', case_skipped, '2 threads', {'training.loss_scale_init': 2**40}))
    cases += [(f'llama, NorMuon, {mesh}', case_uneven, mesh) for mesh in UNEVEN if job.can_launch()]
    cases += [('not taken up by AdamW', case_refused, {'optimizer.name': 'adamw'}, 'from which AdamW cannot continue'),
              ('not taken up with other groups', case_refused, GROUPS, 'has states by other optimizer.groups'),
              ('AdamW of what is no matrix', case_never_starts, {'optimizer.name': 'adamw', 'optimizer.groups': 'pattern=norm optimizer=muon'},
               "pattern 'norm': optimizer=muon is for matrices of products"),
              ('not taken up with an earlier group', case_refused, {'optimizer.groups': 'pattern=down lr=0.5; ' + GROUPS['optimizer.groups'].replace('down', 'down|o_proj')},
               'has states by other optimizer.groups', 'llama, groups'),
              ('taken up with other numbers of groups', case_other_numbers),
              ('AdamW of none of the matrices', case_never_starts, {'optimizer.groups': 'pattern=norm eps=0.5; pattern=q_proj eps=0.5'},
               "pattern 'q_proj': beta1, beta2 and eps are AdamW's, and Muon updates all"),
              ('a pattern without a tensor', case_never_starts, {'optimizer.groups': 'pattern=nothing lr=2'},
               "pattern 'nothing' is in the name of no trained tensor"),
              ('all matrices by AdamW', case_never_starts, {'optimizer.groups': 'pattern=_proj optimizer=adamw'},
               'none of them is trained by it')]
    sys.exit(job.run_cases(cases))
