#!/usr/bin/env python3
"""A checkpoint of the first version of the format reads as when it was written, to the bit, and a new run starts from the
same values and has the same losses as before. Prints TAP."""
import hashlib
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import golden
import job

STATES = ('model', 'exp_avg', 'exp_avg_sq')
TENSORS = 21
# SHA-256 of the values of all tensors, in the order of the file, by h5py when the file was made.
VALUES = {
    'model': 'ab6caeb79dd707492c3ccc9d984e4291cfb1cc5cc2559a79ea4ccad86d8ecd79',
    'exp_avg': 'c894f7a3006044e41744961596c5e1601fea68af4c5dbccd5a815cbee77bfb6c',
    'exp_avg_sq': '63252c0976cbd5411e299ad3ff6d8b3e32a4e870ff87d38abb2eb6888a2c35fa',
}
INFO = ('step 3, updates 3, samples 36, tokens 288', '21 tensors, 468 elements; for each:', '  lm_head.weight f32 [16,4]')
RESUMED = {4: 2.8194155}  # the loss that follows
HEAD_BYTES = 192  # of a .npy file as sherd writes it


# A new run in float32: SHA-256 of the initial values, and the loss of each step. They may change only on purpose.
NEW = ('--training.mixed_precision_param=float32', '--checkpoint.create_seed_checkpoint=true', *golden.OPTIONS)
INITIAL = '36211757d9fddaa051cda00ef5c80fbdd13746bfc128b15306743c21c94a15ef'
LOSSES = [2.8254645114599, 2.822610099656367, 2.820361780131602]
MESHES = {0: (), 4: ('--parallelism.sharding_strategy=hybrid_shard', '--mesh.replicate=2', '--mesh.shard=2')}


def place(kind=''):
    folder = golden.prepare('golden')
    path = golden.checkpoint(folder, golden.STEP)
    path.write_bytes(golden.read(kind))
    return folder, path.relative_to(folder)


def info(folder, path):
    return job.sherd('ckpt', 'info', '--tensors', '--config', path, folder=folder)


def check_info():
    folder, path = place()
    found = info(folder, path)
    wrong = [] if f'sherd-checkpoint {golden.VERSION},' in found else [f'of another format: {found.splitlines()[0]}']
    wrong += [f'info does not say: {line}' for line in INFO if line not in found]
    said = job.sherd('ckpt', 'verify', path, folder=folder)
    return wrong + ([] if 'all digests match' in said else [said])


def digest(folder, path, state):
    """SHA-256 of the values of all tensors in one state, in the order of the file."""
    names = [line.split()[0] for line in info(folder, path).splitlines() if ' f32 [' in line]
    if len(names) != TENSORS:
        return f'{len(names)} tensors'
    values = hashlib.sha256()
    for name in names:
        job.sherd('ckpt', 'extract', path, name, '--state', state, '-o', 'x.npy', folder=folder)
        values.update((folder / 'x.npy').read_bytes()[HEAD_BYTES:])
    return values.hexdigest()


def check_values():
    folder, path = place()
    found = {state: digest(folder, path, state) for state in STATES}
    return [f'{state}: {found[state]}' for state in STATES if found[state] != VALUES[state]]


def check_resume():
    """A run goes on from it, and what it saves has the same version."""
    folder, _ = place()
    job.sherd('train', 'tiny.yaml', '--training.steps=4', *golden.OPTIONS, folder=folder)
    losses = {step['step']: step['loss'] for step in job.metrics(folder)}
    wrong = job.differ('losses', list(losses.values()), list(RESUMED.values()), 1e-4)
    newest = golden.checkpoint(folder, 4).relative_to(folder)
    return wrong + ([] if f'sherd-checkpoint {golden.VERSION},' in info(folder, newest) else ['saved in another format'])


def check_muon(*ranks):
    """A run of Muon goes on from a file with zeros where matrices have no mean of squares; it saves a file without them, and
    says so in one line."""
    folder, old = place('muon-')
    job.sherd('train', 'tiny.yaml', '--training.steps=4', '--optimizer.name=muon', *golden.OPTIONS, ranks=sum(ranks), folder=folder)
    newest = golden.checkpoint(folder, 4).relative_to(folder)
    wrong = job.differ('losses', job.losses(job.metrics(folder)), [2.8199594], 1e-4)
    said = job.sherd('ckpt', 'verify', newest, folder=folder) + info(folder, newest)
    wrong += [] if 'all digests match' in said and 'sherd-checkpoint 3.1,' in said and 'exp_avg_sq (7 of them)' in said else [said]
    done = subprocess.run(job.command(0, ['ckpt', 'diff', old, newest]), capture_output=True, text=True, cwd=folder,
                          env=job.environment(0), timeout=job.SECONDS, check=False)
    lines = [line for line in done.stdout.splitlines() if line.endswith(' only')]
    wrong += [] if lines == [f'optimizer/exp_avg_sq of {TENSORS - 7} tensors: in {old} only'] else [done.stdout]
    return wrong + ([] if 'exp_avg_sq\n' in info(folder, old) else ['the old file has zeros'])


def refused(where, by, says):
    """The file with these bytes in that place."""
    folder, path = place()
    data = bytearray((folder / path).read_bytes())
    data[where] = by
    (folder / path).write_bytes(data)
    done = subprocess.run(job.command(0, ['ckpt', 'info', path]), capture_output=True, text=True, cwd=folder,
                          env=job.environment(0), timeout=job.SECONDS, check=False)
    return [] if done.returncode == 3 and says in done.stderr else [f'status {done.returncode}: {done.stderr}']


def check_unclosed():
    """A file whose writer never closed it, which HDF5 notes in byte 11, is refused with that reason."""
    return refused(slice(11, 12), b'\1', 'was never closed by its writer')


def check_no_index():
    """A file whose last bytes are not those of a checkpoint, as when another program has rewritten it."""
    return refused(slice(-64, None), bytes(64), 'an HDF5 file without the index that ends a checkpoint')


def check_later_version():
    return refused(slice(-32, -31), b'\4', 'has format version 4, but this program reads 3')


def check_new(ranks):
    """A new run starts from the same values as before, and has the same losses."""
    folder = golden.prepare(f'golden-new-{ranks}')
    job.sherd('train', 'tiny.yaml', *NEW, *MESHES[ranks], ranks=ranks, folder=folder)
    found = digest(folder, golden.checkpoint(folder, 0).relative_to(folder), 'model')
    wrong = [] if found == INITIAL else [f'initial values: {found}']
    return wrong + job.differ('losses', job.losses(job.metrics(folder)), LOSSES, 1e-5)


if __name__ == '__main__':
    cases = [(f'format {golden.VERSION}: {check.__name__[6:]}', check)
             for check in (check_info, check_values, check_resume, check_muon, check_unclosed, check_no_index,
                           check_later_version)]
    cases += [('a file of Muon, by two ranks', check_muon, 2)] if job.can_launch() else []
    cases += [(f'a new run on {max(ranks, 1)} ranks', check_new, ranks) for ranks in MESHES if ranks == 0 or job.can_launch()]
    sys.exit(job.run_cases(cases))
