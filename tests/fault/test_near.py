#!/usr/bin/env python3
"""Near checkpoints: ranks are killed at any time, and the run goes on from memory with the same bits. Prints TAP.

A keeper holds the parts; the test plays the script that starts the run again. What the run ends with is compared with a
run that was never broken, byte for byte. SHERD_LONG=1: more deaths; SHERD_TEST_FEW=1: fewer.
"""
import contextlib
import functools
import json
import os
import pathlib
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import test_rollback
import tiny

STEPS, INTERVAL = 180, 60
DEATHS = 20 if os.environ.get('SHERD_LONG') else 2 if job.FEW else 3
BEGUN = re.compile(r'resumed from .* step (\d+)(?:, in memory)?$', re.M)
FROM_MEMORY = re.compile(r'resumed from the near checkpoint of step (\d+)')
COMMON = {**tiny.MODELS['llama'], 'job.dump_folder': 'out', 'training.steps': STEPS, 'lr_scheduler.total_steps': STEPS,
          'training.global_batch_size': 16, 'checkpoint.interval': INTERVAL, 'metrics.log_freq': 1}
NEAR = {'checkpoint.near_interval': 1}
DIES = pathlib.Path(os.environ.get('SHERD_BUILDDIR', '.')).absolute() / 'tests/fault/sherd_dies'
STEP = slice(112, 120)  # of the head of a part (src/near/slot.h)
# The ranks of each start in turn, what differs in the configuration, and on how many ranks the unbroken run is.
RUNS = {
    'shards of float32 on 4 ranks': ([4], {}, 4),
    'bfloat16 on 2 x 2 ranks, states in int8, saved in the background': (
        [4], {'training.mixed_precision_param': 'bfloat16', 'parallelism.sharding_strategy': 'hybrid_shard',
              'mesh.shard': 2, 'checkpoint.async_mode': 'async', 'optimizer.state_dtype': 'int8'}, 4),
    'states in bfloat16, every third step': (
        [3], {'training.global_batch_size': 24, 'checkpoint.near_interval': 3, 'optimizer.state_dtype': 'bfloat16', 'optimizer.ema_decay': 0.9}, 3),
    'states of rows, 4 ranks, then 2, 1, 4': ([4, 2, 1, 4], {'training.reproducible': 'mesh', 'optimizer.name': 'normuon'}, 2),
}
# The ranks that keep a state, those that write it to a file then, and what differs.
SAVED = {
    'full_shard': (8, (6, 4, 2), {}),
    'hybrid_shard, bfloat16, Muon, micro-steps': (4, (6, 2), {
        'training.mixed_precision_param': 'bfloat16', 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2,
        'optimizer.name': 'muon', 'training.local_batch_size': 2}),
    'shard_optim, states in bfloat16': (6, (4,), {'parallelism.sharding_strategy': 'shard_optim', 'optimizer.state_dtype': 'bfloat16'}),
    'gradients in a file, updates carried': (4, (8,), {
        'parallelism.sharding_strategy': 'shard_grad_op', 'training.mixed_precision_param': 'bfloat16', 'offload.gradients': 'nvme',
        'offload.nvme_path': '.'}),
    'no_shard, float16, states in int8': (2, (6,), {'parallelism.sharding_strategy': 'no_shard', 'training.mixed_precision_param': 'float16',
                                                   'optimizer.state_dtype': 'int8'}),
    'experts over 2 ranks': (4, (2,), {**{key: value for key, value in tiny.EXPERTS.items() if key.startswith(('model.', 'moe.'))},
                                       'parallelism.expert_parallel_degree': 2}),
}
# Where ranks die, by the stage's number in a start. A generation is sent in two messages; the second one is its head.
PLACES = [('filling', 8), ('sending', 15), ('loading', 1), ('sending', 16), ('loaded', 1), ('kept', 8)]


def config(**changes):
    return {**COMMON, 'training.dataset_path': tiny.write_tokens(), **changes}


def descriptors(pid):
    """[(path, what it is)] of a process, by number; one that is closed meanwhile is left out."""
    found = []
    for path in sorted(pathlib.Path(f'/proc/{pid}/fd').iterdir(), key=lambda p: int(p.name)):
        with contextlib.suppress(FileNotFoundError):
            found.append((path, os.readlink(path)))
    return found


class Keeper:
    """A keeper of a folder, as a script has one; `ready`: it has its name, or has ended."""

    def __init__(self, folder, *words, node=None, ready=True, **environment):
        environment |= {} if node is None else {'SLURMD_NODENAME': f'node{node}'}
        self.process = subprocess.Popen([os.environ['SHERD'], 'keep', 'c.yaml', *words], cwd=folder, stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, env=job.environment(0) | environment)
        self.first = self.process.stderr.readline()
        while ready and self.process.poll() is None and not name_of(self):
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def parts(self):
        """The files in memory, oldest first."""
        return [path for path, link in descriptors(self.process.pid) if 'sherd-near' in link]


def name_of(keeper):
    """The abstract name at which it takes calls; None: it has none yet, or has ended."""
    links = [link for _, link in descriptors(keeper.process.pid)]
    found = [line.split() for line in pathlib.Path('/proc/net/unix').read_text().splitlines()]
    listens = '00010000'  # among the flags
    return next((words[-1] for words in found if f'socket:[{words[6]}]' in links and words[3] == listens and words[-1].startswith('@')), None)


def ranks_of(folder, program=None):
    """{rank: process}"""
    found = {}
    for entry in pathlib.Path('/proc').iterdir():
        try:
            if entry.name.isdigit() and (entry / 'cwd').resolve() == folder.resolve() and os.path.samefile(
                    entry / 'exe', program or os.environ['SHERD']) and b'\0train\0' in (entry / 'cmdline').read_bytes():
                words = re.search(rb'(?:OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)=(\d+)', (entry / 'environ').read_bytes())
                found[int(words[1]) if words else 0] = int(entry.name)
        except OSError:
            pass
    return found


def begin(folder, ranks, *words, program=None, **environment):
    words = [str(program) if program and word == os.environ['SHERD'] else word for word in job.command(ranks, ['train', 'c.yaml', *words])]
    return subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=job.environment(ranks) | environment)


def kill_one(folder, run, draw):
    """Kill a rank; false: the run was over."""
    while run.poll() is None:
        ranks = ranks_of(folder)
        if ranks:
            try:
                os.kill(ranks[draw.choice(sorted(ranks))], signal.SIGKILL)
                return True
            except ProcessLookupError:
                pass
        time.sleep(0.01)
    return False


def wait_for_step(folder, run, step):
    """Until the log has a later step than this one."""
    path = folder / 'out/metrics.jsonl'
    while run.poll() is None and not (path.exists() and newest(folder) > step):
        time.sleep(0.02)


def newest(folder):
    text = (folder / 'out/metrics.jsonl').read_text() if (folder / 'out/metrics.jsonl').exists() else ''
    return max((int(n) for n in re.findall(r'"step": ?(\d+), ?"loss"', text)), default=0)


def kept(folder, **environment):
    done = subprocess.run([os.environ['SHERD'], 'keep', 'c.yaml', '--step'], cwd=folder, capture_output=True, text=True,
                          env=job.environment(0) | environment, check=True)
    return int(done.stdout)


def finish(run):
    said = run.communicate(timeout=job.SECONDS)[1]
    return run.returncode, re.sub(r'^step .*lr.*\n', '', said, flags=re.M)


def differences(folder, whole, may_lack=False):
    names = [path.name for path in sorted((whole / 'out/checkpoint').glob('*.h5'))]
    mine = [path.name for path in sorted((folder / 'out/checkpoint').glob('*.h5'))]
    same = set(mine) <= set(names) and mine[-1:] == names[-1:] if may_lack else mine == names
    return ([] if same else [f'checkpoints {mine}, of the unbroken run {names}']) + [
        f'{name} is not that of the unbroken run' for name in names if name in mine
        and (folder / 'out/checkpoint' / name).read_bytes() != (whole / 'out/checkpoint' / name).read_bytes()]


def survive(name, ranks, changes, whole_ranks):
    """Deaths at random times of runs that have got further than the one before."""
    number = list(RUNS).index(name)
    draw, every = random.Random(name), changes.get('checkpoint.near_interval', 1)
    whole = job.prepare(f'whole-{number}', config(**changes) | {'checkpoint.near_interval': 0})
    job.sherd('train', 'c.yaml', ranks=whole_ranks, folder=whole)
    folder = job.prepare(f'near-{number}', config(**NEAR | changes))
    wrong, last, before = [], 0, 0
    with Keeper(folder) as keeper:
        for death in range(DEATHS):
            run = begin(folder, ranks[death % len(ranks)])
            if death % 3 != 2:
                wait_for_step(folder, run, last + draw.randrange(40))
            time.sleep(draw.random() * (0.05 if death % 3 != 2 else 1.5))
            last = newest(folder)
            killed = kill_one(folder, run, draw)
            status, said = finish(run)
            wrong += [f'start {death}: exit 0 after a kill'] if killed and status == 0 and newest(folder) < STEPS else []
            begun = BEGUN.search(said)
            if begun and int(begun[1]) < before - every:
                wrong.append(f'start {death}: step {before} was done, but {said}')
            before = newest(folder)
        status, said = finish(begin(folder, ranks[DEATHS % len(ranks)]))
        begun = BEGUN.search(said)
        wrong += [] if status == 0 and begun and int(begun[1]) >= before - every else [f'the last start: exit {status}, {said}']
        last = 2 * ranks[DEATHS % len(ranks)]
        if begun and int(begun[1]) < STEPS - 2 * every and len(keeper.parts()) != last:
            wrong.append(f'{len(keeper.parts())} parts are kept, not {last}')
    # A file that was written in the background may have died with its run, which goes on from memory behind it.
    wrong += differences(folder, whole, may_lack=changes.get('checkpoint.async_mode') == 'async')
    return wrong + leftovers()


def still_there():
    """{process: command line} of keepers and ranks of this test."""
    found = {}
    for entry in pathlib.Path('/proc').iterdir():
        try:
            if entry.name.isdigit() and os.path.samefile(entry / 'exe', os.environ['SHERD']) and \
                    pathlib.Path.cwd() in (entry / 'cwd').resolve().parents:
                found[int(entry.name)] = (entry / 'cmdline').read_bytes()
        except OSError:
            pass
    return found


def leftovers():
    found = still_there()
    return [f'left behind: {found}'] if found else []


PP = 'parallelism.pipeline_parallel_degree'
STAGES = {'training.steps': 90, 'model.n_layers': 5, 'model.tie_word_embeddings': False, 'training.reproducible': 'mesh',
          'training.local_batch_size': 1, 'training.global_batch_size': 8, 'parallelism.sharding_strategy': 'shard_grad_op'}


def stages():
    """What stages keep is loaded by the same stages, by others, and by one; the end is that of one stage, and a part has the
    bytes that the plan says of its rank. Starts die by themselves: one rank is done before a busy machine finds and kills it."""
    whole = job.prepare('whole-stages', config(**STAGES))
    job.sherd('train', 'c.yaml', folder=whole)
    folder = job.prepare('stages', config(**NEAR | STAGES))
    before, wrong, planned = 0, [], {}
    for rank in range(4):
        said = job.sherd('plan', 'c.yaml', '--ranks', 4, '--rank', rank, f'--{PP}=2', folder=folder)
        planned[rank] = int(re.search(r'near checkpoints, 2 slots\s+(\d+)', said)[1]) // 2
    with Keeper(folder) as keeper:
        for ranks, degree in ((4, 2), (4, 2), (2, 2), (1, 1), (4, 4)):
            last = degree == 4
            dies = {} if last else {'DIES_AT': 'filling', 'DIES_SAVE': '12', 'DIES_RANK': str(ranks - 1), 'DIES_HOW': 'kill'}
            status, said = finish(begin(folder, ranks, f'--{PP}={degree}', program=DIES, **dies))
            if (before and not came_from_memory(BEGUN.search(said), said, before)) or (status == 0) != last:
                wrong.append(f'{ranks} ranks, {degree} stages: step {before} was done, but exit {status}, {said}')
            if not before:
                sizes = {int.from_bytes(path.read_bytes()[32:36], 'little'): path.stat().st_size for path in keeper.parts()}
                wrong += [] if sizes == planned and len(set(sizes.values())) > 1 else [f'parts of {sizes} bytes, planned {planned}']
            before = newest(folder)
    return wrong + differences(folder, whole) + leftovers()


def broken_once(folder, keeper, ranks=2, step=INTERVAL + 10):
    """A run on two ranks that has died behind its first file; returns the newest step in memory."""
    run = begin(folder, ranks)
    wait_for_step(folder, run, step)
    kill_one(folder, run, random.Random(1))
    finish(run)
    return kept(folder)


def flip(path, at):
    with open(path, 'r+b') as part:
        part.seek(at)
        byte = part.read(1)[0]
        part.seek(at)
        part.write(bytes([byte ^ 16]))


def damaged():
    """A changed byte of the newest generation costs a step; of both, the steps since the file. Each in one line."""
    whole = job.prepare('whole-damaged', config())
    job.sherd('train', 'c.yaml', ranks=2, folder=whole)
    wrong = []
    for both in False, True:
        folder = job.prepare(f'damaged-{both}', config(**NEAR))
        with Keeper(folder) as keeper:
            step = broken_once(folder, keeper)
            # Rows and units come first, then sums, texts, arrays: somewhere in the arrays of rank 0's two parts, or all.
            for path in keeper.parts():
                data = path.read_bytes()
                head = int.from_bytes(data[STEP], 'little', signed=True)  # step
                if both or head == step:
                    flip(path, len(data) - 5000)
            status, said = finish(begin(folder, 2))
        passed = re.findall(r'near checkpoint of step (\d+) passed over: .*has changed', said)
        source = FROM_MEMORY.search(said)
        wrong += [] if status == 0 else [f'exit {status}: {said}']
        if both:
            wrong += [] if len(passed) >= 1 and f'resumed from out/checkpoint/step-{INTERVAL:08}.h5' in said else [said]
        else: # the death may have come while the step after was copied over the one before
            before = int(source[1]) == step - 1 if source else f'resumed from out/checkpoint/step-{INTERVAL:08}.h5' in said
            wrong += [] if passed == [str(step)] and before else [f'{step}, {passed}: {said}']
        wrong += differences(folder, whole)
    return wrong + damaged_heads(whole)


def damaged_heads(whole):
    """A head that has changed is said, whatever it claims: here to be nothing, and to be of another step."""
    folder = job.prepare('damaged-heads', config(**NEAR))
    with Keeper(folder) as keeper:
        broken_once(folder, keeper)
        for number, path in enumerate(keeper.parts()):
            flip(path, STEP.start + 2 if number % 2 else 0)
        status, said = finish(begin(folder, 2))
    left_out = said.count('is left out: its head has changed')  # a torn one is none
    good = status == 0 and 3 <= left_out <= 4 and f'resumed from out/checkpoint/step-{INTERVAL:08}.h5' in said
    return ([] if good else [f'exit {status}: {said}']) + differences(folder, whole)


def on_nodes():
    """What puts the ranks of one machine on nodes of EACH ranks."""
    return {'LD_PRELOAD': job.launcher.preload(pathlib.Path(os.environ['SHERD_BUILDDIR']).absolute() / 'tests/fault/nodes.so'),
            'SHERD_TEST_NODE': str(EACH)}


EACH = 2
COPIES = NEAR | {'checkpoint.near_copies': 2, 'training.reproducible': 'mesh', 'parallelism.sharding_strategy': 'full_shard'}


def lose_node(folder, run, keepers, node, program=None):
    """All that is on a node ends at once."""
    while run.poll() is None and len(ranks_of(folder, program)) < (node + 1) * EACH:
        time.sleep(0.01)
    ranks = ranks_of(folder, program)
    keepers[node].process.kill()
    for rank in range(node * EACH, (node + 1) * EACH):
        try:
            os.kill(ranks[rank], signal.SIGKILL)
        except (KeyError, ProcessLookupError):
            pass
    keepers[node].process.wait()


def came_from_memory(begun, said, before):
    """At most one step behind; a file of the same step comes first."""
    return begun and int(begun[1]) >= before - 1 and (FROM_MEMORY.search(said) or int(begun[1]) % INTERVAL == 0)


@functools.lru_cache(None)
def whole_nodes():
    whole = job.prepare('whole-nodes', config(**COPIES) | {'checkpoint.near_interval': 0, 'checkpoint.near_copies': 1})
    job.sherd('train', 'c.yaml', ranks=2, folder=whole)
    return whole


def lost_nodes():
    """Nodes are lost at random times, and the run goes on with a new one in its place or on one less, from memory, at most
    one finished step behind, to the bits of the unbroken run."""
    whole = whole_nodes()
    folder, draw, wrong, before = job.prepare('nodes', config(**COPIES)), random.Random(5), [], 0
    keepers = {node: Keeper(folder, node=node) for node in (0, 1)}
    try:
        for death in range(DEATHS):
            run = begin(folder, 2 * EACH, **on_nodes())
            wait_for_step(folder, run, before + 5 + draw.randrange(30))
            time.sleep(draw.random() * 0.05)
            lost = draw.randrange(2)
            over = run.poll() is not None
            lose_node(folder, run, keepers, lost)
            said = finish(run)[1]
            begun = BEGUN.search(said)
            if death > 0 and not came_from_memory(begun, said, before):
                wrong.append(f'start {death}: step {before} was done, but {said}')
            before = newest(folder)
            keepers[lost].__exit__()
            if over:
                break
            keepers[lost] = Keeper(folder, node=lost)
        print(f'# {death + 1} nodes were lost', flush=True)
        # The last start has one node: the other one is left.
        left = 1 - lost
        keepers[lost].__exit__()
        if left:
            os.environ['SHERD_TEST_SHIFT'] = '1'
        status, said = finish(begin(folder, EACH, **on_nodes()))
        os.environ.pop('SHERD_TEST_SHIFT', None)
        begun = BEGUN.search(said)
        if status or not came_from_memory(begun, said, before) or 'all ranks are on' not in said:
            wrong.append(f'the last start, step {before}: exit {status}, {said}')
    finally:
        for keeper in keepers.values():
            keeper.__exit__()
    return wrong + differences(folder, whole) + leftovers()


def places(places):
    """A rank dies, or its node is lost, in each stage of a generation and of its load: the next start goes on from memory, at most one
    finished step behind, to the bits of the unbroken run."""
    folder, wrong, before = job.prepare('places', config(**COPIES)), [], 0
    keepers = {node: Keeper(folder, node=node) for node in (0, 1)}
    try:
        for number, (stage, times) in enumerate([*places, (None, 0)]):
            rank, silent = (3 * number + 1) % (2 * EACH), number % 3 != 1
            (folder / 'died').unlink(missing_ok=True)
            run = begin(folder, 2 * EACH, program=DIES, **on_nodes(), **({'DIES_AT': stage, 'DIES_SAVE': str(times), 'DIES_RANK': str(rank),
                                                                          'DIES_HOW': 'stop' if silent else 'kill'} if stage else {}))
            while stage and run.poll() is None and not (folder / 'died').exists():
                time.sleep(0.01)
            if stage and silent:
                lose_node(folder, run, keepers, rank // EACH, DIES)
                keepers[rank // EACH].__exit__()
                keepers[rank // EACH] = Keeper(folder, node=rank // EACH)
            status, said = finish(run)
            begun = BEGUN.search(said)
            if (status == 0) != (stage is None) or bool(stage) != (folder / 'died').exists():
                wrong.append(f'{stage} of rank {rank}: exit {status}, {said}')
            if before and stage not in ('loading', 'loaded') and not came_from_memory(begun, said, before):
                wrong.append(f'{stage} of rank {rank}: step {before} was done, but {said}')
            before = newest(folder)
    finally:
        for keeper in keepers.values():
            keeper.__exit__()
    return wrong + differences(folder, whole_nodes()) + leftovers()


def saved(ranks, others, changes):
    """Ranks of other meshes find in memory what a file of that step holds: they write the same bytes."""
    changes = {'training.global_batch_size': 24, 'training.steps': 3, 'checkpoint.interval': 3, **changes}
    folder, wrong = job.prepare('saved', config(**NEAR | changes)), []
    path = folder / 'out/checkpoint/step-00000003.h5'
    with Keeper(folder):
        status, said = finish(begin(folder, ranks))
        if status:
            return [f'exit {status}: {said}']
        whole = path.read_bytes()
        for other in others:
            path.unlink()
            status, said = finish(begin(folder, other))
            wrong += [] if status == 0 and FROM_MEMORY.search(said) else [f'{other} ranks: exit {status}, {said}']
            wrong += [] if path.exists() and path.read_bytes() == whole else [f'{other} ranks write another file']
    return wrong


def hung():
    """A save in the background whose write never ends: training goes on, and so does the next start, from memory."""
    whole = job.prepare('whole-hung', config())
    job.sherd('train', 'c.yaml', ranks=2, folder=whole)
    folder = job.prepare('hung', config(**NEAR, **{'checkpoint.async_mode': 'async'}))
    shim = {'LD_PRELOAD': job.launcher.preload(pathlib.Path(os.environ['SHERD_BUILDDIR']).absolute() / 'tests/fault/shim.so'),
            'SHIM_FOLDER': 'out/checkpoint/', 'SHIM_RANK': '1', 'SHIM_CALL': 'write', 'SHIM_NUMBER': '1', 'SHIM_FAULT': 'hang'}
    with Keeper(folder):
        run = begin(folder, 2, **shim)
        wait_for_step(folder, run, INTERVAL + 30)
        files = sorted(path.name for path in (folder / 'out/checkpoint').glob('step-*'))
        if run.poll() is not None:
            return [f'ended before it was killed: {finish(run)}']
        os.kill(ranks_of(folder)[0], signal.SIGKILL)
        said, before = finish(run)[1], newest(folder)
        status, said = finish(begin(folder, 2))
    begun = FROM_MEMORY.search(said)
    good = status == 0 and not files and begun and int(begun[1]) >= before - 1 >= INTERVAL + 29
    return ([] if good else [f'{files}, step {before}: exit {status}, {said}']) + differences(folder, whole, may_lack=True)


def lost_stage():
    """Nodes have a stage each, whose parts differ in size. Either is lost, and the other one has what it kept, in as many bytes as
    planned; the end is that of one stage."""
    changes = STAGES | {'training.steps': STEPS // 2}
    whole = job.prepare('whole-stage', config(**changes))
    job.sherd('train', 'c.yaml', folder=whole)
    folder = job.prepare('lost-stage', config(**NEAR | changes | {'checkpoint.near_copies': 2}))
    before, wrong, planned = 0, [], {}
    for rank in range(2 * EACH):
        said = job.sherd('plan', 'c.yaml', '--ranks', 2 * EACH, '--rank', rank, f'--{PP}=2', f'--mesh.ranks_per_node={EACH}', folder=folder)
        planned[rank] = [int(re.search(what + r', 2 slots\s+(\d+)', said)[1]) // 2 for what in ('near checkpoints', "copies of another node's")]
    keepers = {node: Keeper(folder, node=node) for node in (0, 1)}
    try:
        for lost in 1, 0, None:
            run = begin(folder, 2 * EACH, f'--{PP}=2', **on_nodes())
            if lost is not None:
                wait_for_step(folder, run, before + 10)
                sizes = {int.from_bytes(path.read_bytes()[32:36], 'little'): path.stat().st_size for path in keepers[1 - lost].parts()}
                expected = {rank: planned[rank][0] for rank in planned} | {
                    (rank + EACH) % (2 * EACH): planned[rank][1] for rank in range((1 - lost) * EACH, (2 - lost) * EACH)}
                if run.poll() is not None:  # this test was late; a start with no step left to do has copied nothing
                    finish(run)
                    break
                wrong += [] if sizes == expected else [f'parts of {sizes} bytes, planned {expected}']
                lose_node(folder, run, keepers, lost)
            status, said = finish(run)
            wrong += [] if not before or came_from_memory(BEGUN.search(said), said, before) else [f'step {before} was done, but {said}']
            wrong += [f'exit {status}: {said}'] if lost is None and status else []
            before = newest(folder)
            if lost is not None:
                keepers[lost].__exit__()
                keepers[lost] = Keeper(folder, node=lost)
    finally:
        for keeper in keepers.values():
            keeper.__exit__()
    return wrong + differences(folder, whole) + leftovers()


def copies():
    """A part that has changed is taken from the other node; the plan says what copies take, to the byte."""
    folder, wrong = job.prepare('copies', config(**COPIES)), []
    with Keeper(folder, node=0) as first, Keeper(folder, node=1):
        run = begin(folder, 2 * EACH, **on_nodes())
        wait_for_step(folder, run, INTERVAL + 10)
        kill_one(folder, run, random.Random(3))
        finish(run)
        sizes = {path.stat().st_size for path in first.parts()}
        step = max(int.from_bytes(path.read_bytes()[STEP], 'little', signed=True) for path in first.parts())
        for path in first.parts():
            data = path.read_bytes()
            if int.from_bytes(data[32:36], 'little') in range(EACH):  # own parts, not copies
                flip(path, len(data) - 5000)
        run = begin(folder, 2 * EACH, **on_nodes())
        status, said = finish(run)
        longer = f'--training.steps={STEPS + 200}'
        run = begin(folder, 2 * EACH, longer, **on_nodes())
        wait_for_step(folder, run, STEPS + 5)
        kill_one(folder, run, random.Random(4))
        finish(run)
        wrong += [] if kept(folder, SLURMD_NODENAME='node1') > STEPS else ['nothing is kept']
    with Keeper(folder, node=0), Keeper(folder, node=1):  # a node and the one with its copies are lost
        both, last = finish(begin(folder, 2 * EACH, f'--training.steps={STEPS + 20}', **on_nodes()))
    wrong += [] if both == 0 and f'resumed from out/checkpoint/step-{STEPS:08}' in last else [f'both keepers are new: exit {both}, {last}']
    begun = FROM_MEMORY.search(said)
    if status or not begun or int(begun[1]) < step - 1 or ', a copy is taken: ' not in said:
        wrong.append(f'step {step}: exit {status}, {said}')
    planned = job.sherd('plan', 'c.yaml', '--ranks', 2 * EACH, f'--mesh.ranks_per_node={EACH}', folder=folder)
    own = re.search(r'near checkpoints, 2 slots\s+(\d+)', planned)
    copy = re.search(r"copies of another node's, 2 slots\s+(\d+)", planned)
    sent = re.search(r'sent for each near checkpoint\s+(\d+)', planned)
    if not (own and copy and sent) or {int(own[1]) // 2, int(copy[1]) // 2} - sizes or int(sent[1]) * 2 != int(own[1]):
        wrong.append(f'parts of {sizes} bytes, planned {planned}')
    return wrong


def distance():
    """checkpoint.near_distance says who holds whose copy."""
    wrong = []
    for far, held in (0, {0, 2}), (2, {0, 1}), (3, {0, 2}):
        changes = {'checkpoint.near_copies': 2, 'checkpoint.near_distance': far, 'training.global_batch_size': 3, 'training.steps': 2}
        folder = job.prepare(f'distance-{far}', config(**NEAR, **changes))
        nodes = on_nodes() | {'SHERD_TEST_NODE': '1'}
        with Keeper(folder, node=0) as first, Keeper(folder, node=1), Keeper(folder, node=2):
            status, said = finish(begin(folder, 3, **nodes))
            if far == 3:
                uneven = finish(begin(folder, 3, **on_nodes()))
                wrong += [] if uneven[0] == 2 and 'nodes with 2 and with 1' in uneven[1] else [f'uneven nodes: {uneven}']
            found = {int.from_bytes(path.read_bytes()[32:36], 'little') for path in first.parts()}
        wrong += [] if status == 0 and found == held and (far == 3) == ('near_distance=3 is a multiple of the 3 nodes and leads back' in said) else [f'{far}: {found}, {said}']
    return wrong


def watched():
    """The watch names a node that says nothing, and a keeper that has ended; keepers end with it."""
    folder = job.prepare('watched', config(**NEAR, **{'checkpoint.near_silence_seconds': job.stretch(2)}))
    watch = subprocess.Popen([os.environ['SHERD'], 'keep', 'c.yaml', '--watch'], cwd=folder, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, text=True, env=job.environment(0))
    address = watch.stdout.readline().split()[1]
    keepers = [Keeper(folder, node=node, SHERD_WATCH=address) for node in range(3)]
    wrong = []
    try:
        here = {watch.stdout.readline() for _ in keepers}
        wrong += [] if here == {f'here node{node}\n' for node in range(3)} else [f'{here} have called']
        drill = subprocess.Popen([os.environ['SHERD'], 'drill', 'c.yaml', '--lose=node'], cwd=folder, stdout=subprocess.PIPE,
                                 stdin=subprocess.DEVNULL, env=job.environment(0) | {'SLURMD_NODENAME': 'node1'})
        begin_ns = time.monotonic()
        wrong += [] if watch.stdout.readline() == 'lost node1\n' else ['the silent node is not named']
        took = time.monotonic() - begin_ns
        wrong += [] if took > 0.7 else [f'named after {took} s: checkpoint.near_silence_seconds is ignored']
        wrong += [] if b'node1 says nothing any more' in drill.stdout.readline() else ['the drill does not say so']
        drill.kill()
        drill.wait()
        drill.stdout.close()
        keepers[1].process.send_signal(signal.SIGCONT)
        left_out = keepers[1].process.wait(60) == 0 and 'goes on without it' in keepers[1].process.stderr.read()
        wrong += [] if left_out else ['the keeper of a node that is back does not end']
        keepers[2].process.kill()
        wrong += [] if watch.stdout.readline() == 'ended node2\n' else ['the ended keeper is not named']
        watch.send_signal(signal.SIGUSR1)
        wrong += [] if watch.stdout.readline() == 'all\n' else ['the others are not all that live']
        watch.terminate()
        wrong += [] if watch.wait(60) == 0 and keepers[0].process.wait(60) == 0 else ['the keeper does not end with its watch']
    finally:
        for keeper in keepers:
            keeper.__exit__()
        watch.kill()
        watch.stdout.close()
    follow = {word: subprocess.run([os.environ['SHERD'], 'keep', 'c.yaml', '--follow'], cwd=folder, capture_output=True, timeout=job.SECONDS,
                                   env=job.environment(0) | {'SHERD_WATCH': word}).returncode for word in ('no', address)}
    wrong += [] if list(follow.values()) == [2, 5] else [f'without a keeper --follow ends with {follow}']
    wrong += turned()
    with Keeper(folder, SHERD_WATCH='no') as keeper:
        wrong += [] if 'HOST:PORT:TOKEN' in keeper.first and keeper.process.wait(60) == 2 else ['a wrong address is taken']
    return wrong + leftovers()


class Callers:
    """A watch, and keepers' sides that are played."""

    def __init__(self, name, names, limit='-Sn 256', **changes):
        self.folder = job.prepare(name, config(**NEAR, **changes))
        self.watch = subprocess.Popen(['sh', '-c', f'ulimit {limit}; exec "$0" keep c.yaml --watch', os.environ['SHERD']], cwd=self.folder,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=job.environment(0))
        self.address = self.watch.stdout.readline().split()[1]
        _, port, token = self.address.split(':')
        self.sockets = []
        for node in names:
            self.sockets.append(socket.create_connection(('127.0.0.1', int(port)), timeout=job.SECONDS))
            self.sockets[-1].sendall(f'{token} {node}\n'.encode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for line in self.sockets:
            line.close()
        self.watch.kill()
        self.watch.wait()
        self.watch.stdout.close()

    def lines(self, n):
        return [self.watch.stdout.readline() for _ in range(n)]

    def deaths(self, *said):
        """What the watch answers once it has heard (caller, microseconds ago, start) of each."""
        for caller, ago, start in said:
            self.sockets[caller].sendall(f'D{ago} {start}\n'.encode())
        self.watch.send_signal(signal.SIGUSR1)
        while not select.select([self.watch.stdout], [], [], 0.1)[0]:  # it may hear a beat before the signal
            for line in self.sockets:
                line.sendall(b'.')
        return [*iter(self.watch.stdout.readline, 'all\n')]


def unread():
    """A watch whose lines nobody reads, of more nodes than a pipe holds and than a process may usually call, goes on to beat."""
    names = [f'{number:03}'.rjust(100, 'n') for number in range(700)]
    with Callers('unread', names, **{'checkpoint.near_silence_seconds': 600}) as callers:
        try:
            beat = callers.sockets[-1].recv(1)
        except TimeoutError:
            return ['the watch is silent while nobody reads what it says']
        return [] if beat == b'.' and callers.lines(700) == [f'here {name}\n' for name in names] else ['lines are lost or torn']


def crowded():
    """A watch that may open no more files waits, with the calls that it has taken, and does not spin."""
    with Callers('crowded', [f'n{number}' for number in range(30)], '-n 20', **{'checkpoint.near_silence_seconds': 600}) as callers:
        time.sleep(2)
        used = sum(map(int, pathlib.Path(f'/proc/{callers.watch.pid}/stat').read_text().rsplit(')')[1].split()[11:13]))
        wrong = [] if used < os.sysconf('SC_CLK_TCK') else [f'{used} ticks of a processor in two seconds']
        return wrong + ([] if callers.watch.poll() is None and callers.sockets[0].recv(1) == b'.' else ['the first caller hears no watch'])


def booked():
    """The watch names the first death of the newest start, and forgets those of a start before, however late it hears of them."""
    with Callers('booked', ['n1', 'n2', 'n3'], **{'checkpoint.near_silence_seconds': 600}) as callers:
        callers.lines(3)
        found = [callers.deaths((0, 2000000, 1), (1, 3000000, 1)), callers.deaths((0, 9000000, 1), (2, 1000, 2), (1, 500000, 2)),
                 callers.deaths((0, 1000, 1)), callers.deaths((0, 1000, 2)), callers.deaths((0, 100, 3))]
    wrong = [] if found == [['died n2 1\n'], ['died n2 2\n'], [], ['died n1 2\n'], ['died n1 3\n']] else [f'{found}']
    with Callers('booked-ranks', []) as callers, Keeper(callers.folder, node=5, SHERD_WATCH=callers.address):
        run = begin(callers.folder, 2, SLURMD_NODENAME='node5', SHERD_START='7')
        wait_for_step(callers.folder, run, 1)
        kill_one(callers.folder, run, random.Random(7))
        finish(run)
        said = callers.lines(1) + callers.deaths()
        return wrong + ([] if said == ['here node5\n', 'died node5 7\n'] else [f'{said}'])


def turned():
    """A keeper turns to another watch when it is told, outlives the one before, and ends with the new one."""
    folder = job.prepare('turned', config(**NEAR, **{'checkpoint.near_silence_seconds': 600}))
    watches = [subprocess.Popen([os.environ['SHERD'], 'keep', 'c.yaml', '--watch'], cwd=folder, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, text=True, env=job.environment(0)) for _ in range(2)]
    first, second = (watch.stdout.readline().split()[1] for watch in watches)
    keeper = Keeper(folder, SHERD_WATCH=first)
    wrong = []
    try:
        wrong += [] if watches[0].stdout.readline().startswith('here ') else ['the keeper does not call its watch']
        watches[0].send_signal(signal.SIGSTOP)
        told = subprocess.run([os.environ['SHERD'], 'keep', 'c.yaml', '--follow'], cwd=folder, timeout=job.SECONDS, capture_output=True,
                              env=job.environment(0) | {'SHERD_WATCH': second})
        wrong += [] if told.returncode == 0 else [f'--follow ended with {told.returncode}: {told.stderr}']
        wrong += [] if watches[1].stdout.readline().startswith('here ') else ['the keeper does not call the other watch']
        watches[0].send_signal(signal.SIGCONT)
        watches[0].terminate()
        watches[0].wait(60)
        time.sleep(job.stretch(0.5))
        wrong += [] if keeper.process.poll() is None else ['the keeper ends with the watch that it has left']
        watches[1].terminate()
        wrong += [] if keeper.process.wait(60) == 0 else ['the keeper does not end with its watch']
    finally:
        for process in keeper.process, *watches:
            process.kill()
            process.wait()
        for stream in keeper.process.stderr, *(watch.stdout for watch in watches):
            stream.close()
    return wrong


def pulse():
    """Keepers and their watch beside a load of 30 are not named; one that is stopped then is. SHERD_PULSE_SECONDS: for how long."""
    folder, wrong = job.prepare('pulse', config(**NEAR)), []
    load = [subprocess.Popen(['nice', 'sh', '-c', 'while :; do :; done']) for _ in range(30)]
    watch = subprocess.Popen([os.environ['SHERD'], 'keep', 'c.yaml', '--watch'], cwd=folder, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, text=True, env=job.environment(0))
    keepers = []
    try:
        address = watch.stdout.readline().split()[1]
        keepers = [Keeper(folder, node=node, SHERD_WATCH=address) for node in range(4)]
        said = {watch.stdout.readline() for _ in keepers}
        readable, _, _ = select.select([watch.stdout], [], [], float(os.environ.get('SHERD_PULSE_SECONDS', 600)))
        wrong += [f'a false alarm: {watch.stdout.readline()}'] if readable or len(said) != 4 else []
        keepers[1].process.send_signal(signal.SIGSTOP)
        began, line = time.monotonic(), watch.stdout.readline()
        print(f'# {line.strip()} after {time.monotonic() - began:.1f} s', flush=True)
        wrong += [] if line == 'lost node1\n' else [f'{line} is named']
    finally:
        for process in [*load, *(keeper.process for keeper in keepers), watch]:
            process.kill()
            process.wait()
    return wrong


def keeper_dies():
    """Training goes on, says so once, and ends as ever."""
    folder = job.prepare('keeper-dies', config(**NEAR))
    with Keeper(folder) as keeper:
        run = begin(folder, 2)
        wait_for_step(folder, run, 20)
        keeper.process.kill()
        status, said = finish(run)
    said_so = said.count('no near checkpoints until one is there again')
    return [] if status == 0 and said_so == 1 else [f'exit {status}, said {said_so} times: {said}']


def take_place(keeper, by):
    """Kill the keeper, and take calls at its name."""
    name = name_of(keeper)
    keeper.process.kill()
    keeper.process.wait()
    by.bind('\0' + name[1:])
    by.listen()


def keeper_says_nothing():
    """What has the keeper's name and is stopped holds training for ten times near_silence_seconds, once."""
    folder = job.prepare('says-nothing', config(**NEAR, **{'checkpoint.near_silence_seconds': 1}))
    with Keeper(folder) as keeper, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stopped:
        run = begin(folder, 2)
        wait_for_step(folder, run, 20)
        began = time.monotonic()
        take_place(keeper, stopped)
        status, said = finish(run)
        took = time.monotonic() - began
    pauses = re.findall(r'has not answered for 10 s; .* it is asked again after (\d+) s', said)  # by each rank
    good = len(pauses) == 2 and all(int(pause) >= 1000 for pause in pauses)
    return [] if status == 0 and good and took >= 10 else [f'exit {status} after {took} s: {said}']


def keeper_ends_while_it_is_asked():
    """A keeper that is being killed may take a rank's call and hang up; the next one is joined all the same."""
    folder = job.prepare('hangs-up', config(**NEAR | LONGER))
    with Keeper(folder) as keeper, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dying:
        run = begin(folder, 2)
        wait_for_step(folder, run, 20)
        take_place(keeper, dying)
        dying.settimeout(job.SECONDS)
        calls = [dying.accept()[0]]  # a rank waits for an answer; the other one may wait for that rank
        time.sleep(0.5)
        other = Keeper(folder, ready=False)  # the run does not wait for one that begins
        while calls[-1].recv(1000)[:1] != b'\2':  # SH_WIRE_LIST, by which that keeper asks whether there is one
            calls.append(dying.accept()[0])
        dying.close()
        for call in calls:
            call.close()
        with other:
            status, said = finish(run)
            parts = len(other.parts())
    again = said.count('is there again: near')
    return [] if status == 0 and again == 1 and parts == 4 else [f'exit {status}, there again {again} times, {parts} parts: {said}']


def answer_of(rc, text):
    """A struct sh_wire with SH_WIRE_ANSWER."""
    return struct.pack('@4I2Qqi256s4x', 9, 0, 0, 0, 7, 0, 0, rc, text)


ANSWER = answer_of(0, b'')


@contextlib.contextmanager
def ending(folder):
    """The socket of a keeper that was killed: the kernel takes calls for it until all of its memory is free."""
    with Keeper(folder) as keeper:
        name = name_of(keeper)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind('\0' + name[1:])
        left.listen()
        left.settimeout(job.SECONDS)
        yield left


def keeper_is_ending():
    """Ranks and the next keeper come while one is ending, and it hangs up: they go on with the next one. If it had answered some
    ranks of the node, the start ends, to be made again."""
    folder, wrong = job.prepare('ending', config(**NEAR, **{'training.steps': 2})), []
    with ending(folder) as left:
        run = begin(folder, 2)
        calls = [left.accept()[0] for _ in range(2)]
        keeper = Keeper(folder, ready=False)
        calls.append(left.accept()[0])
        for call in calls:
            call.close()
    with keeper:
        status, said = finish(run)
        wrong += [] if status == 0 and keeper.process.poll() is None else [f'exit {status}: {said}']
    with ending(folder) as left:
        run = begin(folder, 2)
        calls = [left.accept()[0] for _ in range(2)]
        calls[0].recv(1000)
        calls[0].send(ANSWER)
        calls.append(left.accept()[0])
        for call in calls:
            call.close()
    with Keeper(folder):
        status, said = finish(run)
    wrong += [] if status == 5 and 'has ended as the ranks came to it' in said else [f'two keepers in turn: exit {status}, {said}']
    return wrong + leftovers()


def answer_hellos(left, calls, answer=ANSWER):
    """Be a keeper that stops each time that it has let a rank in, or answers otherwise."""
    with contextlib.suppress(OSError):
        while True:
            calls.append(left.accept()[0])
            if calls[-1].recv(1000)[:4] == bytes(4):  # SH_WIRE_HELLO
                calls[-1].send(answer)


def is_stopped(pid):
    return pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] == 'T'


def keeper_stops():
    """A keeper that stops before it drops what is left of others, or after it has let ranks in, holds training for ten times
    near_silence_seconds, too."""
    wrong, calls = [], []
    folder = job.prepare('stops', config(**NEAR, **{'checkpoint.near_silence_seconds': 1, 'comm.train_timeout_seconds': job.stretch(60)}))
    for again in False, True:
        (folder / 'died').unlink(missing_ok=True)
        with Keeper(folder) as keeper, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
            run = begin(folder, 2, *['--training.steps=220'] * again, program=DIES, DIES_AT='filling', DIES_SAVE='20' if again else '1', DIES_RANK='1',
                        DIES_HOW='stop')
            while run.poll() is None and not ((folder / 'died').exists() and is_stopped(ranks_of(folder, DIES)[1])):
                time.sleep(0.01)
            if again:
                take_place(keeper, left)
                threading.Thread(target=answer_hellos, args=(left, calls), daemon=True).start()
            else:
                keeper.process.send_signal(signal.SIGSTOP)
            os.kill(ranks_of(folder, DIES)[1], signal.SIGCONT)
            status, said = finish(run)
        wrong += [] if status == 0 and said.count('it is asked again after') == 2 * again else [f'{again}: exit {status}, {said}']
    for call in calls:
        call.close()
    return wrong


def keeper_refuses():
    """The next keeper is of another script: each rank says so once, and training goes on."""
    folder, calls = job.prepare('refuses', config(**NEAR)), []
    with Keeper(folder) as keeper, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        run = begin(folder, 2)
        wait_for_step(folder, run, 20)
        take_place(keeper, other)
        threading.Thread(target=answer_hellos, args=(other, calls, answer_of(5, b'too late')), daemon=True).start()
        status, said = finish(run)
    for call in calls:
        call.close()
    told = [len(re.findall(rf'rank {rank}: the keeper on \S+ does not let it in: too late; no near checkpoints', said)) for rank in (0, 1)]
    return [] if status == 0 and told == [1, 1] else [f'exit {status}, told {told} times: {said}']


LONGER = {'training.steps': 2 * STEPS, 'lr_scheduler.total_steps': 2 * STEPS}


def keeper_comes_back():
    """What takes the keeper's place holds what follows, copies too: the loss of the other node costs a step. One that has no
    memory is asked once, and training goes on as its partner's node waits for copies."""
    whole = job.prepare('whole-back', config(**COPIES | LONGER) | {'checkpoint.near_interval': 0, 'checkpoint.near_copies': 1})
    job.sherd('train', 'c.yaml', ranks=2, folder=whole)
    wrong = []
    for room in True, False:
        folder = job.prepare(f'back-{room}', config(**COPIES | LONGER))
        keepers = {node: Keeper(folder, node=node) for node in (0, 1)}
        try:
            run = begin(folder, 2 * EACH, **on_nodes())
            wait_for_step(folder, run, 20)
            keepers[1].__exit__()
            wait_for_step(folder, run, newest(folder) + 3)
            keepers[1] = Keeper(folder, *([] if room else ['--checkpoint.near_limit_bytes=4096']), node=1)
            while room and run.poll() is None and len(keepers[1].parts()) < 4 * EACH:  # each rank joins on its own
                time.sleep(0.01)
            wait_for_step(folder, run, newest(folder) + 5)
            if room:
                lose_node(folder, run, keepers, 0)
            status, said = finish(run)
            before = newest(folder)
            told = [said.count(words) for words in ('until one is there again', 'is there again: near', 'until the next start: ')]
            wrong += [] if told == ([1, 1, 0] if room else [1, 0, EACH]) and (room or status == 0) else [f'{told}, exit {status}: {said}']
            if room:
                keepers[0].__exit__()
                os.environ['SHERD_TEST_SHIFT'] = '1'  # the node that is left
                status, said = finish(begin(folder, EACH, **on_nodes()))
                wrong += [] if status == 0 and came_from_memory(BEGUN.search(said), said, before) else [f'step {before} was done, exit {status}: {said}']
        finally:
            os.environ.pop('SHERD_TEST_SHIFT', None)
            for keeper in keepers.values():
                keeper.__exit__()
        wrong += differences(folder, whole)
    return wrong + leftovers()


def begun(folder):
    """start_seconds, which only the first step of each start has."""
    lines = [json.loads(line) for line in (folder / 'out/metrics.jsonl').read_text().splitlines()]
    # A start at a step whose file was not finished may write that first.
    first = [next((later['step'] for later in lines[i:] if 'loss' in later), None)
             for i, line in enumerate(lines) if line.get('event') == 'start']
    found = [line['start_seconds'] for line in lines if 'start_seconds' in line]
    return found if [line['step'] for line in lines if 'start_seconds' in line] == first else []


def script():
    """jobscripts/keep-going starts the run again, ends as it ends, and takes its keeper along."""
    whole = job.prepare('whole-script', config())
    job.sherd('train', 'c.yaml', ranks=2, folder=whole)
    folder = job.prepare('script', config(**NEAR, **{'metrics.openmetrics': 'run.prom'}))
    words = job.command(2, [])
    launch = {'LAUNCH': ' '.join(words[:words.index(os.environ['SHERD'])])}
    run = subprocess.Popen([job.TOP / 'jobscripts/keep-going', 'c.yaml'], cwd=folder, stdin=subprocess.DEVNULL, text=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=job.environment(2) | launch | {'SHERD_LOST_NODES': 'n7 n9 '})
    wait_for_step(folder, run, INTERVAL + 30)
    drill = job.sherd('drill', 'c.yaml', '--lose=rank', folder=folder)
    found = re.search(r'rank 0 on .* was killed; the log has step (\d+)\n.*step (\d+) followed after', drill)
    status, said = finish(run)
    wrong = [] if status == 0 and 'starting again' in said and FROM_MEMORY.search(said) else [f'exit {status}: {said}']
    wrong += [] if found and int(found[1]) >= INTERVAL + 30 and int(found[2]) >= int(found[1]) else [f'the drill said {drill}']
    starts = begun(folder)
    good = len(starts) == 2 and all(part > 0 for start in starts for part in start.values())
    wrong += [] if good and said.count('s from the launch to the first step: ') == 2 else [f'starts: {starts}']
    lines = [json.loads(line) for line in (folder / 'out/metrics.jsonl').read_text().splitlines()]
    counts = [(line.get('recoveries'), line['lost_nodes']) for line in lines if line.get('event') == 'start']
    counted = re.findall(r'^sherd_recoveries_total\{.*\} (\d+)$', (folder / 'out/run.prom').read_text(), re.M)
    wrong += [] if counts == [(None, 'n7 n9'), (1, 'n7 n9')] and counted == ['1'] else [f'recoveries: {counts}, counted {counted}']
    broken = subprocess.run([job.TOP / 'jobscripts/keep-going', 'c.yaml', '--training.steps=no'], cwd=folder, capture_output=True,
                            env=job.environment(2) | launch, timeout=job.SECONDS)
    wrong += [] if broken.returncode == 2 else [f'a wrong key: exit {broken.returncode}']
    return wrong + differences(folder, whole) + leftovers()


def script_goes_on():
    """A keeper that has ended is started again with the next start, which takes the file. A script that is stopped between two starts
    makes no other."""
    whole = job.prepare('whole-goes-on', config())
    job.sherd('train', 'c.yaml', ranks=2, folder=whole)
    folder, words = job.prepare('goes-on', config(**NEAR)), job.command(2, [])
    run = subprocess.Popen([job.TOP / 'jobscripts/keep-going', 'c.yaml'], cwd=folder, stdin=subprocess.DEVNULL, text=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, env=job.environment(2) | {'LAUNCH': ' '.join(words[:words.index(os.environ['SHERD'])])})
    wait_for_step(folder, run, INTERVAL + 10)
    for pid, words in still_there().items():
        if b'\0keep\0' in words:
            os.kill(pid, signal.SIGKILL)
    kill_one(folder, run, random.Random(1))
    status, said = finish(run)
    wrong = [] if status == 0 and 'resumed from out/checkpoint/step-' in said and not FROM_MEMORY.search(said) else [f'exit {status}: {said}']
    wrong += differences(folder, whole)
    for name, text in ('launch', 'echo >>starts; echo $PPID >script; exit 5'), (
            'sherd', 'case "$1 $#" in "config "*) echo out; echo checkpoint;; "ckpt "*) [ ! -e script ] || kill -TERM "$(cat script)";; '
            '"keep 2") exec sleep 600;; esac; echo 0'):
        (folder / name).write_text(f'#!/bin/sh\n{text}\n')
        (folder / name).chmod(0o755)
    stopped = subprocess.run([job.TOP / 'jobscripts/keep-going', 'c.yaml'], cwd=folder, stderr=subprocess.DEVNULL, timeout=job.SECONDS,
                             env=job.environment(0) | {'LAUNCH': './launch', 'SHERD': './sherd'})
    starts = (folder / 'starts').read_text()
    wrong += [] if stopped.returncode == 5 and starts == '\n' else [f'stopped: exit {stopped.returncode} after {len(starts)} starts']
    return wrong + leftovers()


def script_is_killed():
    """Its keeper ends with it, which nobody else would end; then with all else, and nothing is left."""
    folder, words = job.prepare('killed-script', config(**NEAR, **{'training.steps': 100000})), job.command(2, [])
    run = subprocess.Popen([job.TOP / 'jobscripts/keep-going', 'c.yaml'], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, start_new_session=True,
                           env=job.environment(2) | {'LAUNCH': ' '.join(words[:words.index(os.environ['SHERD'])])})
    wait_for_step(folder, run, 5)
    trains, end = ranks_of(folder), time.monotonic() + job.SECONDS
    while not (keeps := kept(folder) > 0) and time.monotonic() < end:  # of the first steps copies may still be under way
        time.sleep(0.02)
    run.kill()
    run.wait()
    end = time.monotonic() + job.SECONDS
    while any(b'\0keep\0' in words for words in still_there().values()) and time.monotonic() < end:
        time.sleep(0.02)
    wrong = [] if keeps and trains and not any(b'\0keep\0' in words for words in still_there().values()) else [f'{keeps}, {trains}: {still_there()}']
    for pid in trains.values():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    while still_there() and time.monotonic() < end:
        time.sleep(0.02)
    return wrong + leftovers()


def rolled_back():
    """The guard goes back to a file, and what was kept before the spike is forgotten: here the only near checkpoint there is."""
    test_rollback.write_data()
    folder = job.prepare('rolled-back', {'job.dump_folder': 'out', **test_rollback.config(
        'noisy.bin', 2, **test_rollback.GUARD, **{'checkpoint.near_interval': test_rollback.BAD - 5})})
    with Keeper(folder) as keeper:
        status, said = finish(begin(folder, 2))
        left, parts = kept(folder), len(keeper.parts())
    return [] if status == 0 and 'rollback_from' in (folder / 'out/metrics.jsonl').read_text() and left == -1 and parts == 4 else [
        f'exit {status}: step {left} is kept, in {parts} parts: {said}']


def no_room():
    """More than the limit is refused with class 4; less is what the plan says, to the byte."""
    folder = job.prepare('no-room', config(**NEAR))
    planned = re.search(r'near checkpoints, 2 slots\s+(\d+)', job.sherd('plan', 'c.yaml', '--ranks', 2, folder=folder))
    with Keeper(folder, '--checkpoint.near_limit_bytes=100000'):
        status, said = finish(begin(folder, 2))
    wrong = [] if status == 4 and 'checkpoint.near_limit_bytes' in said else [f'exit {status}: {said}']
    with Keeper(folder) as keeper:
        status, said = finish(begin(folder, 2, '--training.steps=2'))
        sizes = [path.stat().st_size for path in keeper.parts()]
    wrong += [] if status == 0 and planned and sizes[0] * 2 == int(planned[1]) else [f'{sizes}, planned {planned}']
    return wrong


def two_keepers():
    """A folder has one keeper, and a run that makes none of it needs none."""
    folder = job.prepare('two-keepers', config(**NEAR))
    with Keeper(folder), Keeper(folder) as second:
        wrong = [] if second.process.wait(60) == 2 and 'already' in second.first + second.process.stderr.read() else ['a second keeper']
    with Keeper(folder, '--checkpoint.enable=false') as keeper:
        wrong += [] if keeper.process.wait(60) == 2 and 'go on from the files' in keeper.first else [keeper.first]
    folder = job.prepare('other-keepers', config(**NEAR))
    (folder / 'ranks').write_text(f'#!/bin/sh\nSLURMD_NODENAME=node${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} exec {os.environ["SHERD"]} "$@"\n')
    (folder / 'ranks').chmod(0o755)
    with Keeper(folder, node=0), Keeper(folder, node=1):
        status, said = finish(begin(folder, 2, program='./ranks'))
    wrong += [] if status == 2 and 'reach different keepers' in said else [f'ranks of two keepers: exit {status}, {said}']
    folder = job.prepare('no-near', config())
    with Keeper(folder) as keeper:
        wrong += [] if keeper.process.wait(60) == 2 and 'near_interval is 0' in keeper.first else [keeper.first]
    return wrong


def doctored():
    """The doctor tries a step of Slurm unless each node has a keeper, and the way between nodes."""
    folder, wrong = job.prepare('doctored', config(**NEAR)), []
    for name, text in ('srun', 'touch tried'), ('scontrol', ''), ('ranks', f'SLURM_JOB_ID=7 PATH=$PWD:$PATH exec {os.environ["SHERD"]} "$@"'):
        (folder / name).write_text(f'#!/bin/sh\n{text}\n')
        (folder / name).chmod(0o755)
    command = [word if word != os.environ['SHERD'] else './ranks' for word in job.command(2, ['doctor', 'c.yaml'])]
    with Keeper(folder, node=0, SLURM_JOB_ID='7'):
        for row, tried in (r'possible, .*; srun --overlap starts a step', True), ('one is here, ', False):
            with Keeper(folder, node=0 if tried else 1, SLURM_JOB_ID='7'):
                said = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                      env=job.environment(2) | on_nodes() | {'SHERD_TEST_NODE': '1'}).stdout
            wrong += [] if re.search(rf'^keepers +ok +{row}', said, re.M) and (folder / 'tried').exists() == tried else [said]
            (folder / 'tried').unlink(missing_ok=True)
        # A Slurm that hangs, and one that starts no step, cost what the slower of step and way may take.
        for name, text, row, most in ('scontrol', 'exec sleep 60', 'note +possible, .*was not tried', 10), ('srun', 'exec sleep 60', 'BAD +.*waited for 10 s', 25):
            healthy = (folder / name).read_text()
            (folder / name).write_text(f'#!/bin/sh\n{text}\n')
            begun = time.monotonic()
            said = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  env=job.environment(2) | on_nodes() | {'SHERD_TEST_NODE': '1'}).stdout
            took = time.monotonic() - begun
            wrong += [] if re.search(rf'^keepers +{row}', said, re.M) and took < job.stretch(most) else [f'{name} hangs: {took} s', said]
            (folder / name).write_text(healthy)
    return wrong


if __name__ == '__main__':
    job.need_launcher()
    sys.exit(job.run_cases([(name, survive, name, *run) for name, run in RUNS.items()] + [
        (f'in memory as in a file: {name}', saved, *row) for name, row in list(SAVED.items())[:2 if job.FEW else None]] + [
        ('stages', stages), ('a stage is lost', lost_stage), ('each place of a generation', places, PLACES[3:5] if job.FEW else PLACES), ('files hang', hung), ('changed bytes are passed over', damaged), ('nodes are lost', lost_nodes), ('copies', copies), ('the distance of copies', distance), ('the watch', watched), ('a watch that nobody reads', unread), ('a watch with too many calls', crowded), ('a death and its start', booked),
        *([('the pulse beside a load', pulse)] if os.environ.get('SHERD_LONG') else []), ('the keeper dies', keeper_dies), ('a keeper says nothing', keeper_says_nothing), ('a keeper ends while it is asked', keeper_ends_while_it_is_asked), ('a keeper refuses', keeper_refuses), ('a keeper is ending', keeper_is_ending), ('a keeper stops', keeper_stops), ('another keeper takes its place', keeper_comes_back), ('jobscripts/keep-going', script), ('the script goes on', script_goes_on), ('the script is killed', script_is_killed), ('the guard goes back', rolled_back), ('the limit, and the plan', no_room),
        ('one keeper a folder', two_keepers), ('the doctor', doctored)]))
