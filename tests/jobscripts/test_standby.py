#!/usr/bin/env python3
"""The standby of keep-going.sbatch asks about a script that is silent, asks again, and claims the job once. Prints TAP.

The script's own functions, with the watch and the answers of nodes played. tests/cluster/run does it on a real Slurm.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / 'tests/gold'))
import job

# The watch speaks for as long as there is a file `speaks`. Each line of `answers` is what happens at a question.
PLAY = '''
eval "$(sed -n '/^end_seconds=/,$p' "$SCRIPT" | sed '$d')"
claim_seconds=${1:-$claim_seconds} address=n1:7:a me=n2 folder=. SLURM_JOB_ID=1
overhear() { while :; do [ ! -e speaks ] || printf .; sleep 0.1; done; }
speaks() { [ -e speaks ]; }
may_take_place() {
    local answer
    echo asked >>asked
    sleep 0.3
    read -r answer <answers && sed -i 1d answers
    [ "$answer" != speaks ] || { touch speaks; while kill -0 "$caller" 2>/dev/null; do sleep 0.1; done; return 0; }
    [ "$answer" = yes ]
}
take_place() { echo "$SECONDS" >taken; }
stand_by
'''


# Four keepers are told of the new watch. One node does not answer, and one keeper is told and never calls.
GATHER = '''
eval "$(sed -n '/^end_seconds=/,$p' "$SCRIPT" | sed '$d; s/-t 60/-t 2/')"
say() { :; }
tell_keeper() { case $1 in n2) echo "lost $1" >&7 ;; n3) ;; *) echo "here $1" >&7 ;; esac; }
active=(n1 n2 n3) spare=(n4) lost=() returned=() address=n1:7:a
open_events
echo "ended n4" >&7
gather_keepers
echo "${active[*]}, ${spare[*]}, ${lost[*]}, ${late[*]}"
'''

# Where Slurm says that the daemon of a node listens, or would if it told; a program is started on a node that may be there.
DAEMON = '''
eval "$(sed -n '/^end_seconds=/,$p' "$SCRIPT" | sed '$d')"
scontrol() { printf ' %s\\n' "$TEXT"; }
timeout() { shift; "$@"; }
try_on() { echo tried; }
is_alive n2
echo $?
'''


def play(name, answers, *words, mark=False):
    """(questions, whether the job was taken, seconds from silence on) of a standby whose watch falls silent."""
    folder = pathlib.Path(name).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / 'speaks').touch()
    (folder / 'answers').write_text('\n'.join(answers) + '\n')
    if mark:
        (folder / 'takeover-1-0-n1-7').touch()
    standby = subprocess.Popen(['bash', '-c', PLAY, 'standby', *words], cwd=folder, stdin=subprocess.DEVNULL,
                               start_new_session=True, env=job.environment(0) | {'SCRIPT': str(TOP / 'jobscripts/keep-going.sbatch')})
    try:
        time.sleep(4)
        early = (folder / 'asked').exists()
        (folder / 'speaks').unlink()
        begin = time.monotonic()
        while not (folder / 'taken').exists() and time.monotonic() < begin + job.stretch(12) and standby.poll() is None:
            time.sleep(0.05)
        took = time.monotonic() - begin
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(standby.pid, signal.SIGKILL)
        standby.wait()
    asked = (folder / 'asked').read_text().count('asked') if (folder / 'asked').exists() else 0
    return asked, (folder / 'taken').exists(), took, ['asked while the watch spoke'] if early else []


def differs(found, asked, taken):
    return found[3] + ([] if found[0] in asked and found[1] == taken else [f'{found}, expected {asked} questions, taken: {taken}'])


def case_taken():
    """After three seconds of silence it asks, and takes the job at once if it may."""
    found = play('taken', ['yes'])
    return differs(found, [1], True) + ([] if found[2] < job.stretch(6) else [f'after {found[2]} s'])


def case_again():
    """If it may not, it asks again, for as long as it may claim."""
    return (differs(play('again', ['no', 'no', 'yes']), [3], True) +
            differs(play('late', ['no'] * 20, '6'), [1, 2, 3], False))


def case_spoken():
    """It takes nothing if the watch speaks while it asks, nor if another has made the file, and is there for the next silence."""
    wrong = differs(play('spoken', ['speaks']), [1], False)
    return wrong + differs(play('marked', ['yes'] * 20, '6', mark=True), [1, 2, 3], False)


def case_gather():
    """A node whose keeper was told and never calls is lost, like one that does not answer; what else was said is heard later."""
    done = subprocess.run(['bash', '-c', GATHER], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=job.SECONDS,
                          env=job.environment(0) | {'SCRIPT': str(TOP / 'jobscripts/keep-going.sbatch')})
    return [] if done.stdout == 'n1, n4, n2 n3, ended n4\n' else [f'{done.stdout}{done.stderr}']


def case_daemon():
    """A machine that refuses calls where Slurm's daemon listens is lost; where it answers, or cannot be reached, a program is started."""
    wrong = []
    with socket.create_server(('127.0.0.1', 0), backlog=0) as there:
        port = there.getsockname()[1]
        with socket.create_server(('127.0.0.1', 0)) as other:
            gone = other.getsockname()[1]
        rows = [(f'NodeAddr=127.0.0.1 NodeHostName=h Port={port} Version=1 ', 'tried\n0\n'), (f'NodeAddr=127.0.0.1 Port={gone} Comment= Port={port} ', '1\n'),
                (f'NodeAddr=nowhere.invalid Port={gone} Version=1 ', 'tried\n0\n'), ('NodeAddr=127.0.0.1 NodeHostName=h', 'tried\n0\n'),
                ('NodeAddr=127.0.0.1 Port=0 Version=1', 'tried\n0\n'), (f'Port={gone} Version=1', 'tried\n0\n'), ('', 'tried\n0\n')]
        for text, expected in rows:
            done = subprocess.run(['bash', '-c', DAEMON], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=job.SECONDS,
                                  env=job.environment(0) | {'SCRIPT': str(TOP / 'jobscripts/keep-going.sbatch'), 'TEXT': text})
            wrong += [] if done.stdout == expected else [f'{text}: {done.stdout}{done.stderr}']
    return wrong


if __name__ == '__main__':
    sys.exit(job.run_cases([('a silent script', case_taken), ('questions that fail', case_again), ('a script that lives', case_spoken), ('keepers that never call', case_gather),
                            ('a daemon that is gone', case_daemon)],
                           deadlines=True))
