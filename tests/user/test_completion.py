#!/usr/bin/env python3
"""Completion in bash and in zsh offers commands, options, keys, their words, examples and files. Prints TAP.

The test calls bash's completion function directly; zsh runs in a terminal, because its completion works in no other
way."""
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

SHERD = pathlib.Path(os.environ['SHERD'])
SECONDS = job.SECONDS
# The typed text; words that must be offered; words that must not be.
QUESTIONS = [
    ('sherd tr', ['train'], ['tokenize']),
    ('sherd ckpt ver', ['verify'], ['version']),
    ('sherd ckpt av', ['average'], ['verify']),
    ('sherd ckpt --wei', ['--weights'], ['--trust']),
    ('sherd bench ', ['gemm', 'io', 'tier'], ['verify']),
    ('sherd help pl', ['plan'], ['train']),
    ('sherd help al', ['all'], ['plan']),
    ('sherd ckpt --keep-', ['--keep-latest', '--keep-every'], ['--trust']),
    ('sherd train --training.mixed_precision_p', ['--training.mixed_precision_param='], ['--training.steps=']),
    ('sherd train --training.mixed_precision_param=', ['float32', 'bfloat16'], ['true']),
    ('sherd train --optimizer.name=a', ['adamw'], ['lion']),
    ('sherd train --training.deterministic=', ['false', 'true'], ['float32']),
    ('sherd train own-', ['own-config.yaml'], ['gemm']),
    ('sherd eval --data=own-', ['own-config.yaml'], []),
    ('sherd ckpt --training.', [], ['--training.steps=']),
]


def words_of(line):
    """Words as bash splits them: "=" is a word."""
    return [word for part in line.split(' ') for word in (re.findall(r'=|[^=]+', part) or [''])]


def ask_bash(line):
    words = words_of(line)
    array = ' '.join(f"'{word}'" for word in words)
    script = f'. ./sherd.bash; COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _sherd; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(['bash', '-uec', script], capture_output=True, text=True, timeout=SECONDS)
    return done.stdout.split('\n') + [f'stderr: {done.stderr}'] * bool(done.stderr)


def ask_zsh(line):
    """Everything that appears on the screen after a Tab."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM='dumb', PS1='READY', HOME=os.getcwd(), LC_ALL='C.UTF-8')
        os.execlp('zsh', 'zsh', '-f', '-i')
    said = ''

    def wait_for(pattern):
        nonlocal said
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and not re.search(pattern, said):
            if select.select([terminal], [], [], 1)[0]:
                said += os.read(terminal, 65536).decode(errors='replace')

    wait_for('READY')
    os.write(terminal, b'fpath=($PWD/zsh $fpath); autoload -Uz compinit; compinit -u -d ./dump; LISTMAX=999; setopt interactivecomments; echo NO\'\'W\n')
    wait_for('NOW\r?\n')
    said = ''
    # The keys after the Tab turn the line into a comment after a command, whose output shows that the Tab was answered.
    os.write(terminal, (line + "\t\x01echo NO''W #\n").encode())
    wait_for('NOW\r?\n')
    os.close(terminal)
    os.waitpid(pid, 0)
    return said


def case_bash():
    pathlib.Path('own-config.yaml').write_text('')
    pathlib.Path('sherd.bash').write_text(job.sherd('help', '--format=bash'))
    wrong = []
    for line, wanted, never in QUESTIONS:
        found = ask_bash(line)
        wrong += [f'{line!r}: {word} is not offered: {found}' for word in wanted if word not in found]
        wrong += [f'{line!r}: {word} is offered' for word in never if word in found]
        wrong += [f'{line!r}: {word}' for word in found if word.startswith('stderr')]
    return wrong


def case_examples():
    """Names of examples, only from an installed program."""
    for name in ('bin', 'share/sherd/examples'):
        pathlib.Path(name).mkdir(parents=True)
    pathlib.Path('bin/sherd').symlink_to(SHERD)
    pathlib.Path('share/sherd/examples/llama-of-ours.yaml').write_text('')
    os.environ['PATH'] = f"{pathlib.Path('bin').absolute()}:{os.environ['PATH']}"
    found = ask_bash('sherd plan llama-of')
    return [] if 'llama-of-ours' in found else [f'{found}']


def case_zsh():
    pathlib.Path('zsh').mkdir()
    pathlib.Path('zsh/_sherd').write_text(job.sherd('help', '--format=zsh'))
    wrong = []
    for line, wanted, never in QUESTIONS:
        said = ask_zsh(line)
        # A single continuation is completed in the line; after "=" only the word is shown.
        wrong += [f'{line!r}: {word} is not offered: {said!r}' for word in wanted if word not in said]
        wrong += [f'{line!r}: {word} is offered: {said!r}' for word in never if word in said.replace(line, '')]
    return wrong


CASES = [('bash', case_bash), ('examples', case_examples)]
if shutil.which('zsh'):
    CASES.append(('zsh', case_zsh))
else:
    CASES.append(('zsh # SKIP no zsh (Debian: zsh)', lambda: []))

if __name__ == '__main__':
    sys.exit(job.run_cases(CASES))
