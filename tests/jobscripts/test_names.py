#!/usr/bin/env python3
"""The job scripts with folders and files of any name, and their outputs where others may write. Prints TAP.

Three small programs that come first in PATH stand in for Slurm; tests/cluster/run uses the same names on a real Slurm.
"""
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(TOP / 'tests/gold'), str(TOP / 'tests/mesh')]
import job
import odd_names
import tiny

SCRIPTS = TOP / 'jobscripts'
STEPS = 2
SECONDS = job.SECONDS
FAKES = {
    # One rank; the doctor has its own tests.
    'srun': '''[ "$1" != --mpi=list ] || { printf 'MPI plugins:\\npmix\\npmi2\\n'; exit; }
[ "$2" != doctor ] || exit 0
[ -z "${PLACED:-}" ] || printf %s "$(printenv SLURM_DISTRIBUTION)" >"$PLACED"
exec "$@"''',
    'squeue': 'exit 0',
    'scontrol': 'exit 0',
    'sbatch': 'for word; do printf "%s\\0" "$word"; done >>"$SUBMITTED"; printf "\\n" >>"$SUBMITTED"; echo 17',
}


def environment(**more):
    found = {**job.environment(0), 'PATH': f'{fakes}:{os.environ["PATH"]}', 'SHERD_JOBSCRIPTS': str(SCRIPTS), 'SLURM_JOB_ID': '1',
             'SLURM_JOB_NUM_NODES': '1', 'SLURM_JOB_NODELIST': 'n1', 'SLURM_MPI_TYPE': 'none', **more}
    return {name: value for name, value in found.items() if value is not None}


def run(words, folder, **more):
    return subprocess.run(['bash', *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors='replace',
                          cwd=folder, env=environment(**more), timeout=SECONDS)


def train(folder, *words, **more):
    return run([str(SCRIPTS / 'train.sbatch'), 'c.yaml', *words], folder, **more)


def prepare(name, **more):
    return job.prepare(name, {**tiny.MODELS['llama'], 'training.dataset_path': tokens, 'training.steps': STEPS,
                              'training.local_batch_size': tiny.GLOBAL_BATCH, 'lr_scheduler.warmup_steps': 1,
                              'lr_scheduler.total_steps': STEPS, **more})


def everything(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob('*'))


def beside(folder, name):
    """Files in the work folder other than the configuration and the folder of that name."""
    found = {path.name for path in folder.iterdir()} - {'c.yaml', name}
    return [f'made beside it: {sorted(found)}'] if found else []


def judge(done, status, words):
    wrong = [] if done.returncode == status else [f'exit {done.returncode}, expected {status}']
    wrong += [f'it does not say "{word}"' for word in words if word not in done.stderr]
    return wrong + (done.stderr.splitlines() if wrong else [])


def case_folder(name, by_file):
    """A run in a folder of that name; a second start finds it finished and changes nothing."""
    folder = prepare('named', **({'job.dump_folder': name} if by_file else {}))
    words = [] if by_file else [f'--job.dump_folder={name}']
    wrong = judge(train(folder, *words), 0, ['from the beginning'])
    checkpoint = folder / name / f'checkpoint/step-{STEPS:08}.h5'
    wrong += [] if checkpoint.exists() else ['no checkpoint']
    before = everything(folder)
    wrong += judge(train(folder, *words), 0, [f'has step {STEPS} of {STEPS}'])
    return wrong + beside(folder, name) + ([] if everything(folder) == before else ['the second start has made files'])


def case_container():
    """A program in a container, whose image and folder have spaces in their names."""
    folder = prepare('in a container').absolute()
    (folder / 'bin').mkdir(exist_ok=True)
    apptainer = folder / 'bin/apptainer'
    apptainer.write_text('#!/bin/sh\n[ "$1" = run ] && [ "$2" = "$SHERD_IMAGE" ] || exit 9\nshift 2\nexec "$INSIDE" "$@"\n')
    apptainer.chmod(0o755)
    more = {'SHERD': str(SCRIPTS / 'sherd-in-container'), 'INSIDE': os.path.abspath(os.environ['SHERD']),
            'PATH': f'{folder}/bin:{fakes}:{os.environ["PATH"]}'}
    done = train(folder, '--job.dump_folder=a run', SHERD_IMAGE='an image.sif', **more)
    wrong = [] if done.returncode == 0 and (folder / f'a run/checkpoint/step-{STEPS:08}.h5').exists() else [done.stderr]
    done = train(folder, '--job.dump_folder=a run', SHERD_IMAGE=None, **more)
    return wrong + ([] if done.returncode == 2 and 'SHERD_IMAGE is not set' in done.stderr else [done.stderr])


def case_refused(name):
    folder = prepare('refused')
    return judge(train(folder, f'--job.dump_folder={name}'), 2, ['job.dump_folder']) + beside(folder, '')


def case_checkpoint_folder(name):
    """The same with checkpoint.folder of that name."""
    folder = prepare('checkpoints', **{'checkpoint.folder': name, 'job.dump_folder': 'out'})
    wrong = judge(train(folder), 0, ['from the beginning'])
    return wrong + judge(train(folder), 0, [f'has step {STEPS} of {STEPS}']) + beside(folder, 'out')


def case_files():
    """Files among the checkpoints, planted before and after the run."""
    folder = prepare('planted', **{'job.dump_folder': 'out'})
    (folder / 'out/checkpoint').mkdir(parents=True)
    odd_names.plant(folder / 'out/checkpoint')
    # Training refuses the FIFO in its own words, or skips it; this test looks only at the scripts.
    (folder / 'out/checkpoint' / odd_names.LATE_CHECKPOINT).unlink()
    wrong = judge(train(folder), 0, ['from the beginning'])
    os.mkfifo(folder / 'out/checkpoint' / odd_names.LATE_CHECKPOINT)
    wrong += judge(train(folder), 0, [f'has step {STEPS} of {STEPS}', 'passed over'])
    return wrong + [f'made: {path}' for path in folder.rglob(odd_names.OWNED)] + beside(folder, 'out')


def case_renamed():
    """A checkpoint whose name makes it look newer: the step inside counts."""
    folder = prepare('renamed', **{'job.dump_folder': 'out'})
    wrong = judge(train(folder), 0, [])
    checkpoints = folder / 'out/checkpoint'
    (checkpoints / f'step-{STEPS + 1:08}.h5').write_bytes((checkpoints / f'step-{STEPS:08}.h5').read_bytes())
    return wrong + judge(train(folder), 0, ['passed over', f'has step {STEPS} of {STEPS}'])


def case_export():
    """A job that was killed between its last checkpoint and the export of it is started again, and once only."""
    folder = prepare('export', **{'job.dump_folder': 'out', 'checkpoint.last_save_in_hf': True})
    wrong = judge(train(folder), 0, ['from the beginning'])
    exported = folder / f'out/checkpoint/hf-{STEPS:08}'
    shutil.rmtree(exported)
    wrong += judge(train(folder), 0, [f'from step {STEPS}', 'only the export for transformers is left to do'])
    wrong += [] if exported.exists() else ['no export']
    return wrong + judge(train(folder), 0, [f'has step {STEPS} of {STEPS}'])


CHAINS = [f'a[$({odd_names.RUN})]', '08', '-1', '99999999999999999999', '1 1', '']


def case_chain_line(starts):
    """FOLDER/chain with any content."""
    folder = prepare('line', **{'job.dump_folder': 'out'})
    (folder / 'out').mkdir()
    (folder / 'out/chain').write_text(f'chain=1 at=-1 starts={starts} stopped=\n')
    return judge(train(folder), 0, ['from the beginning']) + beside(folder, 'out')


def case_chain_planted():
    """FOLDER/chain and its old temporary name are links; then FOLDER/chain is a FIFO."""
    folder = prepare('chain', **{'job.dump_folder': 'out', 'training.steps': 1})
    (folder / 'out').mkdir()
    (folder / 'victim').write_text('precious')
    for name in ('chain', 'chain.tmp'):
        (folder / 'out' / name).symlink_to('../victim')
    wrong = judge(train(folder), 0, [])
    wrong += [] if (folder / 'victim').read_text() == 'precious' else ['the file behind the link was written']
    wrong += [] if not (folder / 'out/chain').is_symlink() else ['the link is still there']
    (folder / 'out/chain').unlink()
    os.mkfifo(folder / 'out/chain')
    return wrong + judge(train(folder, '--training.steps=2'), 0, ['from step 1'])


def case_umask(umask):
    """Outputs of scripts and run under this umask: nobody else may write, and only those whom the umask allows may
    read."""
    folder = prepare('umask', **{'job.dump_folder': 'deep/out'})
    before = os.umask(umask)
    try:
        wrong = judge(train(folder), 0, [])
    finally:
        os.umask(before)
    forbidden = umask | stat.S_IWGRP | stat.S_IWOTH
    return wrong + [f'{path.relative_to(folder)} has mode {stat.S_IMODE(path.stat().st_mode):o}'
                    for path in (folder / 'deep').rglob('*') if path.stat().st_mode & forbidden]


def case_arranged(words, lines, hybrid):
    """Between nodes the script chooses the strategy if neither file nor arguments do."""
    folder = prepare('arranged', **{'job.dump_folder': 'out', 'training.steps': 1})
    with open(folder / 'c.yaml', 'a') as more:
        more.write(lines)
    script = f'. {SCRIPTS}/common.sh; run_arguments "$@"; printf "%s\\n" "${{run[@]}}"'
    done = run(['-c', script, 'bash', 'c.yaml', *words], folder, SLURM_JOB_NUM_NODES='2')
    found = '--parallelism.sharding_strategy=hybrid_shard' in done.stdout.splitlines()
    return ([] if found == hybrid else [f'chooses: {found}']) + ([] if done.returncode == 0 else done.stderr.splitlines())


def case_placed(given, expected):
    """Neighbours among the ranks share a node, as the axes of a mesh expect, unless the user places ranks otherwise."""
    folder = prepare('placed', **{'job.dump_folder': 'out', 'training.steps': 1})
    wrong = judge(train(folder, SLURM_DISTRIBUTION=given, PLACED='placed'), 0, ['from the beginning'])
    found = (folder / 'placed').read_text()
    return wrong + [f'placed by {found!r}'] * (found != expected)


OUTSIDE = [(script, start) for script in ('train.sbatch', 'sweep.sbatch', 'study.sbatch') for start in ([], ['-c', '"$0" "$@"'])]
OUTSIDE += [('common.sh', [])]


def case_outside():
    """A script that was not handed to sbatch says so in one line, read by bash or started by its name."""
    wrong, folder = [], prepare('outside')
    for script, start in OUTSIDE:
        done = run([*start, str(SCRIPTS / script), 'c.yaml'], folder, SLURM_JOB_ID=None)
        wrong += judge(done, 2, ['submit t', 'with sbatch'])
        wrong += [] if done.stderr.count('\n') == 1 else done.stderr.splitlines()
    return wrong


def case_no_program():
    """Without sherd a job says what to set."""
    folder = prepare('no program')
    return [line for script in ('train.sbatch', 'scaling-study')
            for line in judge(run([str(SCRIPTS / script), 'c.yaml'], folder, SHERD='no-such-sherd'), 127,
                              ['no program no-such-sherd: load its module, or set SHERD=/path/to/sherd'])]


def submitted(path):
    """The arguments of each call of sbatch."""
    return [line.split('\0')[:-1] for line in path.read_text().split('\n')[:-1]]


def case_study(name):
    """A scaling study in a folder of that name: submitted jobs have the name unchanged, and no shell interprets it for
    the report."""
    folder = prepare('study')
    done = run([str(SCRIPTS / 'scaling-study'), '--nodes=1', '--steps=2', f'--folder={name}', 'c.yaml'], folder,
               SUBMITTED=str(folder.absolute() / 'submitted'), SLURM_JOB_ID=None)
    wrong = judge(done, 0, []) + [f'made: {path}' for path in folder.rglob(odd_names.OWNED)]
    if wrong:
        return wrong
    point, report = submitted(folder / 'submitted')
    run_name = 'weak-full_shard-b24-n1'
    told = f'./{name}' if name.startswith('-') else name
    wrong += [] if point[-2:] == [told, 'points-n1'] and '--array=1-1' in point else point
    wrong += [] if f'--job.dump_folder={told}/{run_name}' in (folder / name / run_name / 'arguments').read_text().splitlines() else [
        'another folder is asked for']
    made = [run_name, 'points-n1', 'study.yaml', *(f'{run_name}/{file}' for file in ('arguments', 'config.yaml', 'metrics.jsonl'))]
    wrong += [] if everything(folder / name) == sorted(made) else everything(folder)
    wrong += [] if '--wrap=exec "$SHERD" report "$SHERD_STUDY"' in report else report
    (folder / 'submitted').unlink()
    done = run([str(SCRIPTS / 'study.sbatch'), told, 'points-n1'], folder, SLURM_ARRAY_JOB_ID='17', SLURM_ARRAY_TASK_ID='1')
    log = folder / name / f'{run_name}.out'
    wrong += [] if done.returncode == 0 and not done.stderr and 'done: 2 steps' in log.read_text() else [str(done), log.read_text()]
    return wrong + beside(folder, name)


def case_degrees():
    """Degrees are factors: a point for each product of them that the plan takes, with its name and its arguments."""
    done = run([str(SCRIPTS / 'scaling-study'), '--dry-run', '--nodes=1', '--ranks-per-node=4', '--strategies=shard_optim',
                '--micro-batches=1', '--tensor=1,2', '--context=1,2', '--pipeline=1,4', 'c.yaml'],
               prepare('degrees', **{'model.n_heads': 4, 'model.n_kv_heads': 4, 'model.n_layers': 4}))
    found = {line.split(':')[0][2:]: re.findall(r'(\w+)_parallel_degree=(\d)', line)
             for line in done.stdout.splitlines() if line.startswith('# ')}
    left = set(re.findall(r'(\S+) is left out', done.stderr))
    products = [(t, c, p) for t in '12' for c in '12' for p in '14']
    named = {f'weak-shard_optim-b1-t{t}-c{c}-p{p}-n1': [*zip(('tensor', 'context', 'pipeline'), (t, c, p))] for t, c, p in products}
    fit = {name: degrees for name, degrees in named.items() if name not in left}
    too_many = {f'weak-shard_optim-b1-t{t}-c{c}-p{p}-n1' for t, c, p in products if p == '4' and '2' in (t, c)}
    return [] if found == fit and left == too_many else [str(found), str(left), done.stderr]


ARRANGED = [
    ('nobody', [], '', True),
    ('a comment in the file', [], '# parallelism: sharding_strategy\n', True),
    ('the file', [], 'parallelism:\n  sharding_strategy: full_shard\n', False),
    ('the file in one line', [], 'parallelism: {zero_stage: 3}\n', False),
    ('the mesh in the file', [], 'mesh:\n  shard: 2\n', False),
    ('an argument', ['--mesh.replicate=1'], '', False),
    ('an argument in two words', ['--parallelism.sharding_strategy', 'full_shard'], '', False),
    ('an argument of another name', ['--job.description=sharding_strategy'], '', True),
]


def shown(name):
    """Escape a name for TAP, in which a # begins a directive."""
    return ascii(name).replace('#', '\\x23')


def case_study_refused(name):
    """A name that no job could use is refused before anything is submitted."""
    folder = prepare('study-refused')
    done = run([str(SCRIPTS / 'scaling-study'), '--nodes=1', f'--folder={name}', 'c.yaml'], folder,
               SUBMITTED=str(folder.absolute() / 'submitted'), SLURM_JOB_ID=None)
    right = done.returncode == 2 and 'has a line break or another control character' in done.stderr
    return ([] if right else [f'exit {done.returncode}: {done.stderr}']) + beside(folder, 'c.yaml')


CASES = [(f'the folder {shown(name)}, from {"the file" if i % 2 else "an argument"}', case_folder, name, i % 2 == 1)
         for i, name in enumerate(odd_names.FOLDERS)]
CASES += [(f'the folder {shown(name)} is refused', case_refused, name) for name in odd_names.REFUSED]
CASES += [(f'the checkpoint folder {shown(name)}', case_checkpoint_folder, name) for name in ('-n', f'a[$({odd_names.RUN})]', 'a"b\\')]
CASES += [('files among the checkpoints', case_files), ('a checkpoint with another name', case_renamed),
          ('an export that is missing', case_export)]
CASES += [(f'starts={starts} in chain', case_chain_line, starts) for starts in CHAINS]
CASES += [('chain is a link, then a FIFO', case_chain_planted), ('umask 000', case_umask, 0), ('umask 027', case_umask, 0o027)]
CASES += [(f'the strategy is chosen by {who}', case_arranged, words, lines, hybrid) for who, words, lines, hybrid in ARRANGED]
CASES += [('ranks are placed in blocks', case_placed, None, 'block:block'), ('ranks are placed as is asked', case_placed, 'cyclic', 'cyclic')]
CASES += [('outside Slurm', case_outside), ('no program', case_no_program), ('a program in a container', case_container)]
CASES += [(f'a study in {shown(name)}', case_study, name) for name in odd_names.STUDIES]
CASES += [(f'a study in {shown(name)} is refused', case_study_refused, name) for name in ('a\nb', 'a\x1b[2J')]
CASES += [('degrees are factors of a study', case_degrees)]

if __name__ == '__main__':
    tokens = tiny.write_tokens()
    fakes = pathlib.Path('fakes').absolute()
    fakes.mkdir(exist_ok=True)
    for program, text in FAKES.items():
        (fakes / program).write_text(f'#!/bin/bash\n{text}\n')
        (fakes / program).chmod(0o755)
    sys.exit(job.run_cases(CASES))
