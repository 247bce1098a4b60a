#!/usr/bin/env python3
"""keep-going.sbatch takes lost nodes back, and leaves out those that compute wrong numbers. Prints TAP.

The whole script, with programs that stand in for srun, scontrol and squeue, and for sherd's keeper, watch and ranks; what it
plans and configures is sherd's own. tests/cluster/run does it on a real Slurm.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(TOP / 'tests/gold'), str(TOP / 'tests/mesh')]
import job
import tiny

# A node answers a probe if the file of its name says so; "late" never ends by itself.
FAKES = {
    'srun': r'''nodes= quiet=
while [[ $1 = --* ]]; do
    case $1 in --nodelist=*) nodes=${1#*=} ;; --quiet) quiet=yes ;; esac
    shift
done
[ -z "$quiet" ] || { echo "$nodes" >>"$STAGE/probes"; read -r how <"$STAGE/$nodes"; }
[[ $* != *' standby' ]] || exec sleep 600
case ${how:-} in late) sleep 600 ;; gone) exit 1 ;; esac
NODES=$nodes exec "$@"''',
    'scontrol': r'''[ "$1" = requeue ] || [ "$2" != hostnames ] || printf '%s\n' n1 n2 n3 n4''',
    'squeue': 'exit 0',
    # Ranks do a step every 20 ms. `keep --step` on a node: 5 if it has no keeper.
    'double': r'''case "$1 $*" in
keep*--watch*)
    trap 'cat "$STAGE/fell" 2>/dev/null; echo all' USR1
    trap 'rm -f "$STAGE/alive"; exit' TERM
    echo watch here:1:aa
    while [ -e "$STAGE/alive" ]; do
        [ ! -e "$STAGE/say" ] || { cat "$STAGE/say"; rm "$STAGE/say"; }
        sleep 0.05
    done ;;
keep*--step*)
    [ -z "${NODES:-}" ] || [ -e "$STAGE/keeper-$NODES" ] || exit 5
    cat "$STAGE/step" 2>/dev/null || echo -1 ;;
keep*) while [ -e "$STAGE/alive" ]; do sleep 0.2; done ;;
doctor*) ;;
train*)
    for why in broken fails; do
        [[ ! -e "$STAGE/$why" || $why = broken && $NODES != *n3* ]] || {
            echo "$NODES" >>"$STAGE/starts"
            ends=$(cat "$STAGE/$why")
            rm "$STAGE/$why"
            exit "$ends"
        }
    done
    if read -r node late <"$STAGE/falls"; then
        sed -i 1d "$STAGE/falls"
        echo "died $node ${late:-$SHERD_START}" >"$STAGE/fell"
        echo "$NODES" >>"$STAGE/starts"
        exit 5
    fi 2>/dev/null
    trap 'while [ -e "$STAGE/saves" ]; do sleep 0.05; done; exit "$(cat "$STAGE/ends" 2>/dev/null || echo 75)"' USR1
    step=$(cat "$STAGE/step" 2>/dev/null || echo 0)
    echo "${SHERD_LOST_NODES% }" >>"$STAGE/lost"
    echo "$NODES" >>"$STAGE/starts"
    while [ -e "$STAGE/alive" ]; do
        step=$((step + 1))
        echo "$step" >"$STAGE/step.new" && mv "$STAGE/step.new" "$STAGE/step"
        [ ! -e "$STAGE/kill" ] || { rm "$STAGE/kill"; exit "$(cat "$STAGE/ends" 2>/dev/null || echo 137)"; }
        sleep 0.02
    done ;;
plan*) echo "$*" | grep -o 'ranks [0-9]*' >>"$STAGE/plans"; exec "$REAL" "$@" ;;
*) exec "$REAL" "$@" ;;
esac''',
}


class Stage:
    """A job of four nodes of two ranks that runs."""

    def __init__(self, name, *words, waits=60):
        self.folder = job.prepare(pathlib.Path(name).absolute(), {**tiny.MODELS['llama'], 'training.dataset_path': 'none.bin', 'training.steps': 100000,
                                         'training.global_batch_size': 48, 'checkpoint.near_interval': 1, 'job.dump_folder': 'out'})
        self.stage = self.folder / 'stage'
        self.stage.mkdir()
        (self.stage / 'alive').touch()
        for node in 'n1', 'n2', 'n3', 'n4':
            self.answers(node, 'back')
        for name, text in FAKES.items():
            path = self.folder / 'bin' / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f'#!/bin/bash\n{text}\n')
            path.chmod(0o755)
        scripts = shutil.copytree(TOP / 'jobscripts', self.folder / 'scripts')
        script = scripts / 'keep-going.sbatch'
        text = script.read_text()
        for slow, fast in (('\nlook_seconds=30 ', '\nlook_seconds=0.5 '), ('\nprobe_seconds=10 ', '\nprobe_seconds=1 '),
                           (' wait_seconds=60\n', f' wait_seconds={waits}\n')):
            assert slow in text
            text = text.replace(slow, fast)
        script.write_text(text)
        environment = {**job.environment(0), 'PATH': f'{self.folder / "bin"}:{os.environ["PATH"]}', 'SHERD': 'double',
                       'REAL': os.environ['SHERD'], 'STAGE': str(self.stage), 'SHERD_JOBSCRIPTS': str(scripts), 'SLURM_JOB_ID': '1',
                       'SLURM_JOB_NUM_NODES': '4', 'SLURM_JOB_NODELIST': 'n[1-4]', 'SLURM_NTASKS_PER_NODE': '2', 'SLURM_MPI_TYPE': 'none',
                       'SHERD_END_TIME': ''}
        self.log = open(self.folder / 'log', 'w+')
        self.process = subprocess.Popen(['bash', str(script), 'c.yaml', *words], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log)

    def __enter__(self):
        self.wait_for_starts(1)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        with contextlib.suppress(FileNotFoundError):
            (self.stage / 'alive').unlink()
        try:
            self.process.wait(job.SECONDS)
        finally:
            self.process.kill()
            self.log.close()

    def answers(self, node, how):
        (self.stage / node).write_text(f'{how}\n')

    def lose(self, *nodes):
        """The watch says so, and the nodes do not answer."""
        for node in nodes:
            self.answers(node, 'gone')
        (self.stage / 'part').write_text(''.join(f'lost {node}\n' for node in nodes))
        (self.stage / 'part').rename(self.stage / 'say')

    def accuse(self, *lines):
        """The watch says so, and the ranks end."""
        (self.stage / 'part').write_text(''.join(f'unfit {line}\n' for line in lines))
        (self.stage / 'part').rename(self.stage / 'say')
        self.wait('the accusation', lambda: not (self.stage / 'say').exists())
        (self.stage / 'ends').write_text('7\n')
        self.kill_rank()

    def kill_rank(self):
        (self.stage / 'kill').touch()

    def lines(self, name):
        path = self.stage / name
        return path.read_text().split() if path.exists() else []

    def starts(self):
        return self.lines('starts')

    def text(self):
        return (self.folder / 'log').read_text()

    def wait(self, what, condition):
        end = time.monotonic() + job.SECONDS
        while not condition():
            if time.monotonic() > end or self.process.poll() is not None and not condition():
                raise job.Failed(f'{what}: not seen; starts on {self.starts()}\n{self.text()}')
            time.sleep(0.05)

    def wait_for_starts(self, n):
        self.wait(f'{n} starts', lambda: len(self.starts()) >= n)

    def wait_for_text(self, words):
        self.wait(words, lambda: words in self.text())

    def wait_for_probes(self, more=3):
        n = len(self.lines('probes'))
        self.wait('probes', lambda: len(self.lines('probes')) >= n + more)

    def shrink(self):
        self.lose('n3')
        self.wait_for_starts(2)


def expect(found, expected, stage):
    return [] if found == expected else [f'{found}, expected {expected}', *stage.text().splitlines()]


def case_worth():
    """The ranks save and stop once the node answers, and go on with it; a line says what that is worth."""
    with Stage('worth', '--job.grow_seconds=1') as stage:
        stage.shrink()
        stage.wait_for_probes()
        stage.answers('n3', 'back')
        stage.wait_for_starts(3)
        stage.wait_for_text('going on with 4 nodes, n1,n2,n4,n3')
        said = [words for words in ('n3 answers again, and is spare', '4 nodes instead of 3 save about', 'ended with 75') if words not in stage.text()]
        return expect(stage.starts(), ['n1,n2,n3,n4', 'n1,n2,n4', 'n1,n2,n4,n3'], stage) + expect(said, [], stage)


def case_not_worth():
    """Otherwise it is spare, and takes part after the next loss."""
    wrong = []
    for grow in 100000, 0:
        with Stage(f'not-worth-{grow}', f'--job.grow_seconds={grow}') as stage:
            stage.shrink()
            stage.answers('n3', 'back')
            stage.wait_for_text('n3 answers again, and is spare')
            time.sleep(3)
            wrong += expect(len(stage.starts()), 2, stage)
            stage.lose('n2')
            stage.wait_for_starts(3)
            wrong += expect(stage.starts()[2], 'n1,n4,n3', stage)
    return wrong


def case_ahead():
    """What a loss would ask is asked before it, once, and not again after it."""
    with Stage('ahead') as stage:
        def plans():
            return stage.lines('plans').count('6')
        stage.wait('the plan of six ranks', plans)
        time.sleep(job.stretch(2))
        before = plans()
        stage.shrink()
        return expect((before, plans(), stage.starts()[1:]), (1, 1, ['n1,n2,n4']), stage)


def case_rank_dies():
    """A restart for another reason takes all that are there, and so does one in which ranks die while they stop."""
    with Stage('dies', '--job.grow_seconds=0') as stage:
        stage.shrink()
        stage.answers('n3', 'back')
        stage.wait_for_text('n3 answers again, and is spare')
        stage.kill_rank()
        stage.wait_for_starts(3)
        wrong = expect(stage.starts()[2], 'n1,n2,n4,n3', stage)
    with Stage('dies-late', '--job.grow_seconds=1') as stage:
        (stage.stage / 'ends').write_text('137\n')
        stage.shrink()
        stage.answers('n3', 'back')
        stage.wait_for_starts(3)
        stage.wait_for_text('ended with 137')
        return wrong + expect(stage.starts()[2], 'n1,n2,n4,n3', stage)


def case_halves():
    """A switch cuts the job in halves: that of the script waits for as long as the other one could take its place, then goes on."""
    with Stage('halves', waits=6) as stage:
        stage.lose('n3', 'n4')
        stage.wait_for_text('half of the nodes or more are lost: waiting 6 s')
        began, starts = time.monotonic(), len(stage.starts())
        stage.wait_for_starts(2)
        waited = time.monotonic() - began
        return expect((starts, stage.starts()[1:], waited > 3), (1, ['n1,n2'], True), stage)


def case_not_free():
    """A node that does not answer in time, or on which a keeper still waits for a rank, is left alone, and holds nothing up."""
    wrong = []
    for name in 'late', 'kept':
        with Stage(name, '--job.grow_seconds=1') as stage:
            (stage.stage / 'keeper-n3').touch()
            stage.shrink()
            stage.answers('n3', 'late' if name == 'late' else 'back')
            stage.wait_for_probes(4)
            stage.kill_rank()
            stage.wait_for_starts(3)
            wrong += expect(stage.starts()[2], 'n1,n2,n4', stage) + expect('n3 answers' in stage.text(), False, stage)
            (stage.stage / 'keeper-n3').unlink()
            stage.answers('n3', 'back')
            stage.wait_for_starts(4)
            wrong += expect(stage.starts()[3], 'n1,n2,n4,n3', stage)
    return wrong


def case_broken():
    """A node that came back and cannot take part, or has no data, is left out after one start. That does not count as one without a
    step: the next may be the first."""
    wrong = []
    for status in 5, 3:
        with Stage(f'broken-{status}', '--job.grow_seconds=1') as stage:
            stage.shrink()
            (stage.stage / 'broken').write_text(f'{status}\n')
            (stage.stage / 'fails').write_text('5\n')
            stage.answers('n3', 'back')
            stage.wait_for_starts(5)
            wrong += expect('n3 came back, but the start with it has brought no checkpoint' in stage.text(), True, stage)
            wrong += expect(stage.starts()[2:], ['n1,n2,n4,n3', 'n1,n2,n4', 'n1,n2,n4'], stage)
    return wrong


def case_twice():
    """A node that is lost again is not taken back a second time. Ranks hear each time of the nodes without a part."""
    with Stage('twice', '--job.grow_seconds=1') as stage:
        stage.shrink()
        stage.answers('n3', 'back')
        stage.wait_for_starts(3)
        stage.lose('n3')
        stage.wait_for_starts(4)
        stage.answers('n3', 'back')
        probes = len(stage.lines('probes'))
        time.sleep(3)
        lost = (stage.stage / 'lost').read_text().splitlines()
        return (expect(stage.starts()[3:], ['n1,n2,n4'], stage) + expect(stage.lines('probes')[probes:], [], stage) +
                expect(lost, ['', 'n3', '', 'n3'], stage))


def case_deadly():
    """A node on which ranks have died twice, with no checkpoint between, is left out for good, but no second one: then it is the
    program. Two nodes with a death each are no reason, nor is one death of which the watch hears twice."""
    wrong = []
    for name, nodes, left in ('deadly', 'n3,n2,n2', ['n1,n2,n4'] * 2), ('two', 'n2,n3', ['n1,n2,n3,n4']), ('late', 'n3 1,n2', ['n1,n2,n3,n4']):
        with Stage(name) as stage:
            (stage.stage / 'fell').write_text('died n3 1\n')
            (stage.stage / 'falls').write_text(nodes.replace(',', '\n') + '\n')
            stage.wait('a step', lambda: stage.lines('step') and int(stage.lines('step')[0]) > 3)
            stage.kill_rank()
            stage.wait('the end', lambda: stage.process.poll() is not None)
            starts = ['n1,n2,n3,n4'] * 2 + left
            wrong += expect(stage.starts(), starts, stage)
            wrong += expect('ranks have died on n3 twice' in stage.text(), name == 'deadly', stage)
    return wrong


def case_asked():
    """A stop that somebody asked for is no reason to go on, while ranks save in order to grow, or if one of them dies of it."""
    wrong = []
    for name, ends in ('asked', 75), ('asked-dies', 137):
        with Stage(name, '--job.grow_seconds=1') as stage:
            (stage.stage / 'saves').touch()
            (stage.stage / 'ends').write_text(f'{ends}\n')
            stage.shrink()
            if ends == 75:
                stage.answers('n3', 'back')
                stage.wait_for_text('the run saves and stops')
            stage.process.send_signal(signal.SIGUSR1)
            time.sleep(job.stretch(1))
            (stage.stage / 'saves').unlink()
            stage.wait('the end', lambda: stage.process.poll() is not None or len(stage.starts()) > 2)
            wrong += expect((stage.process.poll(), len(stage.starts())), (75, 2), stage) + expect('going on with 4' in stage.text(), False, stage)
    return wrong


def case_unfit():
    """A node that computes wrong numbers is left out for good; checkpoints that may have them are set aside."""
    with Stage('unfit') as stage:
        checkpoints = stage.folder / 'out/checkpoint'
        checkpoints.mkdir(parents=True)
        for step in 8, 9, 10:
            (checkpoints / f'step-{step:08}.h5').touch()
        stage.accuse('n3 9')
        stage.wait_for_starts(2)
        left = sorted(path.name for path in checkpoints.iterdir())
        wrong = expect(stage.starts()[1], 'n1,n2,n4', stage) + expect(left, ['step-00000008.h5', 'step-00000009.h5', 'step-00000010.h5.unsure'], stage)
        (stage.stage / 'ends').unlink()
        stage.kill_rank()
        stage.wait_for_starts(3)
        wrong += expect(stage.starts()[2], 'n1,n2,n4', stage) + expect('n3' in stage.lines('probes'), False, stage)
        stage.accuse('n2 8', 'n4 20')
        stage.wait_for_starts(4)
        left = [path.name for path in checkpoints.iterdir() if path.suffix == '.h5']
        return wrong + expect(stage.starts()[3], 'n1', stage) + expect(left, ['step-00000008.h5'], stage)


def case_unfit_dies():
    """The same if the node is lost before the others have ended with 7; it does not come back when it answers."""
    with Stage('unfit-dies') as stage:
        checkpoints = stage.folder / 'out/checkpoint'
        checkpoints.mkdir(parents=True)
        (checkpoints / 'step-00000010.h5').touch()
        stage.answers('n3', 'gone')
        (stage.stage / 'part').write_text('unfit n3 9\nlost n3\n')
        (stage.stage / 'part').rename(stage.stage / 'say')
        stage.wait_for_starts(2)
        stage.answers('n3', 'back')
        stage.kill_rank()
        stage.wait_for_starts(3)
        left = [path.name for path in checkpoints.iterdir()]
        return (expect(stage.starts()[1:], ['n1,n2,n4'] * 2, stage) + expect('n3 answers' in stage.text(), False, stage)
                + expect(left, ['step-00000010.h5.unsure'], stage))


def case_unsure():
    """Without a node that is named, or a step that is sure to be right, the job ends and its chain is stopped."""
    wrong = []
    for name, lines in ('nobody', ()), ('no-step', ('n3 0',)):
        with Stage(name) as stage:
            stage.accuse(*lines)
            wrong += expect((stage.process.wait(job.SECONDS), len(stage.starts())), (7, 1), stage)
            wrong += expect('stopped: replicas differ' in stage.text(), True, stage)
    return wrong


if __name__ == '__main__':
    sys.exit(job.run_cases([('a node that is worth a restart', case_worth), ('one that is not', case_not_worth), ('asked before the loss', case_ahead),
                            ('ranks die', case_rank_dies), ('halves', case_halves), ('a node that is not free', case_not_free), ('that cannot take part', case_broken), ('lost twice', case_twice), ('ranks die on one node', case_deadly),
                            ('asked to stop', case_asked), ('a node that is unfit', case_unfit), ('one that dies of it', case_unfit_dies),
                            ('nobody to leave out', case_unsure)]))
