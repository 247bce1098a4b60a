#!/usr/bin/env python3
"""Progress on a terminal: no line is wider than the window, every metrics.log_freq-th line stays, one line moves
between them, lines break between words, and only a terminal that wants them gets bold and dim. Prints TAP.
"""
import fcntl
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import sys
import termios

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / name) for name in ('gold', 'mesh')]
import job
import tiny

LOG_FREQ, STEPS = 10, 25


def set_width(terminal, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))


def config(**more):
    return {**tiny.MODELS['llama'], 'training.dataset_path': tokens, 'training.steps': STEPS, 'job.dump_folder': 'out',
            'metrics.log_freq': LOG_FREQ, 'checkpoint.enable': False, **more}


def on_terminal(command, folder, stream='stderr', columns=80, on_output=lambda terminal: None, **more):
    """The exit status, and what the command writes to that stream, a terminal of that width. on_output is called once,
    after the first words of progress."""
    ours, theirs = pty.openpty()
    set_width(ours, columns)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=folder, env={**job.environment(0), **more},
                             **{'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL, stream: theirs})
    os.close(theirs)
    text, told = b'', False
    while True:
        try:
            text += os.read(ours, 65536)
        except OSError:  # the answer of a pty whose other end is closed
            break
        if b'loss' in text and not told:
            on_output(ours)
            told = True
    os.close(ours)
    return child.wait(job.SECONDS), text


def train(name, columns, on_output=lambda terminal: None, term='xterm', no_color='', **more):
    """What a run writes to a terminal of that width."""
    folder = job.prepare(name, config(**more))
    status, text = on_terminal(job.command(0, ['train', 'c.yaml']), folder, 'stderr', columns, on_output, TERM=term, NO_COLOR=no_color)
    if status != 0:
        raise job.Failed(text.decode())
    return text.decode()


def plain(text):
    """Without bold and dim, which take no room."""
    return re.sub(r'\x1b\[\d*m', '', text)


def progress(text):
    """[(line, whether it stays)] of the steps; each starts by erasing the previous one."""
    lines = []
    for part in plain(text).split('\r\x1b[K')[1:]:
        lines.append((part.splitlines()[0].rstrip('\r'), '\n' in part))
    return lines


def number(line):
    return int(re.match(r'step +(\d+)', line)[1])


def case_width(columns):
    text = train(f'w{columns}', columns)
    lines = progress(text)
    wrong = [f'{len(line)} columns: {line}' for line, _ in lines if len(line) >= columns]
    found = [number(line) for line, _ in lines]
    wrong += [] if found == list(range(1, STEPS + 1)) else [f'steps {found}']
    stay = [number(line) for line, stays in lines if stays]
    wrong += [] if stay == [1, 10, 20, 25] else [f'lines that stay: {stay}']
    last = lines[-1][0]
    here = [word for word in ('grad_norm', 'lr ', 'tokens/s', 'MiB') if word in last]
    right = {200: ['grad_norm', 'lr ', 'tokens/s', 'MiB'], 80: ['lr ', 'tokens/s', 'MiB'], 40: []}[columns]
    return wrong + ([] if here == right else [f'fields {here} of: {last}'])


def case_resize():
    """After a window is made smaller, all lines fit except a few that were already being printed."""
    lines = [line for line, _ in progress(train('resize', 200, lambda terminal: set_width(terminal, 40),
                                                **{'training.steps': 800, 'metrics.log_freq': 1000}))]
    first = next((i for i, line in enumerate(lines) if len(line) < 40), None)
    if first is None:
        return ['no line became shorter']
    return [f'line {i} after the change: {line}' for i, line in enumerate(lines[first:]) if len(line) >= 40]


def case_quiet():
    """Without the moving line the terminal gets the permanent lines, whole."""
    text = train('quiet', 40, **{'metrics.progress': False})
    found = [number(line) for line in text.splitlines() if line.startswith('step')]
    return [] if found == [1, 10, 20, 25] and '\x1b' not in text else [f'{found}: {text!r}']


def case_style():
    """The loss is bold and what follows it dim, unless NO_COLOR has a value or the terminal is dumb."""
    styles = {}
    for name, more in ('styled', {}), ('no_color', dict(no_color='1')), ('dumb', dict(term='dumb')):
        text = train(name, 80, **more)
        styles[name] = re.findall(r'\x1b\[\d*m', text)
        last = text.split('\r\x1b[K')[-1].split('\r\n')[0]
        if name == 'styled' and not re.fullmatch(r'step +25/25  \x1b\[1mloss [\d.]+\x1b\[0m(  \x1b\[2m[^\x1b]+\x1b\[0m)+', last):
            return [f'{last!r}']
    return [f'{name}: {found[:4]}' for name, found in styles.items() if bool(found) != (name == 'styled')]


def case_words():
    """Lines of the start, of validations and saves, and the last one, on 80 columns and in a file."""
    more = {'checkpoint.enable': True, 'validation.enable': True, 'validation.dataset_path': tokens, 'validation.freq': 20,
            'job.dump_folder': 'a-folder-with-a-long-name/and-another-one-inside-it'}
    text = plain(train('words', 80, **more))
    lines = [line for part in text.split('\r\x1b[K') for line in part.split('\r\n') if line]
    wrong = [f'{len(line)} columns: {line}' for line in lines if len(line) > 79 and ' ' in line.strip()]
    folder = job.prepare('file', config(**more))
    done = subprocess.run(job.command(0, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder,
                          env={**job.environment(0), 'TERM': 'xterm'}, timeout=job.SECONDS)
    wrong += ['escapes in a file'] if '\x1b' in done.stderr else []
    for start in r'step 25  saved .* s, training paused for [\d.]+ s\)$', r'step 20  validation loss', 'done: 25 steps, .* draws the metrics in':
        wrong += [] if re.search('^' + start, done.stderr, re.M) else [f'not in a file: {start}: {done.stderr}']
    whole = ' '.join(line.strip() for line in lines)
    for words in r'step 25  ?saved \S+ \([\d.]+ MB, [\d.]+ s\)', 'done: 25 steps, .* draws the metrics in':
        wrong += [] if re.search(words, whole) else [f'not on the terminal: {words}: {whole}']
    wrong += [] if any(line.startswith('  step 20  validation loss') for line in lines) else ['validation is not indented']
    return wrong + ([] if any(line.startswith('    ') for line in lines) else ['no line was broken'])


def case_interrupt():
    """Ctrl-C saves, and the message printed meanwhile says what another Ctrl-C does."""
    folder = job.prepare('interrupt', config(**{'training.steps': 10 ** 9, 'checkpoint.enable': True}))
    child = subprocess.Popen(job.command(0, ['train', 'c.yaml']), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True, cwd=folder, env=job.environment(0),
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    text = ''
    for line in child.stderr:
        text += line
        if line.startswith('step '):
            child.send_signal(signal.SIGINT)
            break
    text += child.stderr.read()
    said = re.search(r'^stopping \(SIGINT to 1 of 1 ranks\); saving at step \d+; another Ctrl-C gives up at once$', text, re.M)
    return [] if child.wait(job.SECONDS) == 75 and said else [f'exit {child.returncode}: {text}']


def case_tokenize():
    """The moving line of a tokenizer appears on a terminal, is erased at the end, and is not in a file."""
    folder = job.prepare('tokenize', config())
    (folder / 'text.txt').write_text('some text\n' * 300000)
    command = job.command(0, ['tokenize', 'text.txt', '-o', 'text.bin'])
    piped = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, cwd=folder, env=job.environment(0), timeout=job.SECONDS)
    (folder / 'text.bin').unlink()  # or the second run says that it was replaced
    status, text = on_terminal(command, folder)
    wrong = [f'exit {piped.returncode}'] if piped.returncode or status else []
    wrong += ['progress in a file: ' + piped.stderr.decode()] if b'\x1b' in piped.stderr else []
    lines = [line for line in text.decode().split('\r\x1b[K') if line]
    return wrong + ([] if any(re.search(r'%.* tokens .*/s .* left$', line) for line in lines) and b'%' not in text.rsplit(b'\x1b[K')[-1]
                    else [f'{text!r}'])


def case_controls():
    """Control characters of files and arguments are visible; generated text has them, unless a terminal would obey."""
    folder = job.prepare('controls', config(**{'checkpoint.enable': True, 'training.steps': 1, 'model.vocab_size': 256,
                                               'job.description': 'a\u202eb\u200fc'}))
    def run(*words):
        return subprocess.run(job.command(0, words), stdin=subprocess.DEVNULL, capture_output=True, cwd=folder,
                              env=job.environment(0), timeout=job.SECONDS)
    trained = run('train', 'c.yaml')
    if trained.returncode:
        return [trained.stderr.decode()]
    info = run('ckpt', 'info', 'out', '--config').stdout
    wrong = [] if b'"a\\u202eb\\u200fc"' in info else [f'{info!r}']
    said = run('ckpt', 'ls', 'no\x1b[2J\x9b\nsuch').stderr
    wrong += [] if b'no\\x1b[2J\\u009b\nsh' in said else [f'{said!r}']
    prompt = 'tab\t\x1b[2J\u202e\x07'
    words = ['generate', '--checkpoint', 'out', '--tokens', '1', '--prompt', prompt]
    text = run(*words).stdout
    wrong += [] if text.startswith(prompt.encode()) else [f'{text!r}']
    status, text = on_terminal(job.command(0, words), folder, 'stdout')
    return wrong + ([] if status == 0 and text.startswith(b'tab\t\\x1b[2J\\u202e\\x07') else [f'{text!r}'])


CASES = [
    ('80 columns: without the gradient norm', case_width, 80),
    ('40 columns: step and loss', case_width, 40),
    ('200 columns: all fields', case_width, 200),
    ('a window that becomes smaller', case_resize),
    ('metrics.progress=false', case_quiet),
    ('bold and dim', case_style),
    ('lines that break between words', case_words),
    ('Ctrl-C', case_interrupt),
    ('sherd tokenize', case_tokenize),
    ('control characters', case_controls),
]

if __name__ == '__main__':
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(CASES))
