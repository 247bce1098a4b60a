#!/usr/bin/env python3
"""Files that a run writes for other programs: TensorBoard's event files and OpenMetrics text. Prints TAP.

Separate code here reads both, written from the specifications: record framing, checksums by table, protocol buffers;
and the grammar of OpenMetrics. monitoring.events and monitoring.prom next to this file hold the expected names, without
numbers; `SHERD_RENEW=1` writes them again.
"""
import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / name) for name in ('gold', 'mesh')]
import job
import tiny

HERE = pathlib.Path(__file__).resolve().parent
SETTINGS = {**tiny.MODELS['llama'], 'training.steps': 4, 'lr_scheduler.total_steps': 4, 'lr_scheduler.warmup_steps': 1,
            'training.local_batch_size': 2, 'checkpoint.interval': 2, 'validation.enable': True, 'validation.freq': 2,
            'validation.sequences': 6, 'metrics.peak_tflops': 1, 'job.dump_folder': 'out'}


# ---- an event file ----

def crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc_table()


def masked_crc(data):
    crc = 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xff]
    crc ^= 0xffffffff
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(data):
    at = 0
    while at < len(data):
        length, = struct.unpack_from('<Q', data, at)
        body = data[at + 12:at + 12 + length]
        if struct.unpack_from('<I', data, at + 8)[0] != masked_crc(data[at:at + 8]):
            raise job.Failed(f'record at {at}: the checksum of its length is wrong')
        if len(body) != length or struct.unpack_from('<I', data, at + 12 + length)[0] != masked_crc(body):
            raise job.Failed(f'record at {at}: the checksum of its data is wrong')
        yield body
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7f) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """[(number, value)] of a protocol buffer; wire types 0, 1, 2 and 5."""
    at, found = 0, []
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(key & 7)
            if length is None:
                length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        found.append((key >> 3, value))
    return found


def events(path):
    """[(step, kind, {tag: value} or other content)]"""
    found = []
    for body in records(path.read_bytes()):
        event = dict(fields(body))
        wall, = struct.unpack('<d', event[1])
        if not 1.7e9 < wall < 1e11:
            raise job.Failed(f'wall time {wall}')
        if 3 in event:
            found.append((event[2], 'version', event[3].decode()))
        elif 7 in event:
            found.append((event[2], 'session', dict(fields(event[7]))))
        else:
            values = [dict(fields(value)) for number, value in fields(event[5]) if number == 1]
            found.append((event[2], 'values', {value[1].decode(): struct.unpack('<f', value[2])[0] for value in values}))
    return found


# ---- OpenMetrics ----

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)')


def exposition(text):
    """{name: (type, {label: text}, value)}; checks every applicable rule of the text format."""
    lines = text.split('\n')
    if lines[-2:] != ['# EOF', '']:
        raise job.Failed(f'does not end in # EOF: {lines[-2:]}')
    found, family = {}, {}
    for line in lines[:-2]:
        if line.startswith('# '):
            what, name, rest = line[2:].split(' ', 2)
            if what == 'TYPE':
                if name in found:
                    raise job.Failed(f'{name} is there twice')
                family = {'name': name}
            if what not in ('TYPE', 'UNIT', 'HELP') or what in family or name != family['name']:
                raise job.Failed(f'out of place: {line}')
            family[what] = rest
            continue
        match = SAMPLE.fullmatch(line)
        if not match:
            raise job.Failed(f'no sample: {line}')
        suffix = '_total' if family['TYPE'] == 'counter' else ''
        if match[1] != family['name'] + suffix or not match[1].removesuffix('_total').endswith(family.get('UNIT', '')):
            raise job.Failed(f'{match[1]} is not of {family}')
        labels = {name: re.sub(r'\\(.)', lambda m: {'n': '\n'}.get(m[1], m[1]), value)
                  for name, value in re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', match[2])}
        found[family['name']] = family['TYPE'], labels, float(match[3])
    return found


# ---- cases ----

def train(folder, *words, status=0, **environment):
    done = subprocess.run(job.command(0, ['train', 'c.yaml', *words]), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          cwd=folder, env={**job.environment(0), **environment}, timeout=job.SECONDS, check=False)
    if done.returncode != status:
        raise job.Failed(f'exit {done.returncode}, expected {status}: {done.stderr}')
    return done.stderr


def lines_of(folder):
    return [json.loads(line) for line in (folder / 'out/metrics.jsonl').read_text().splitlines()]


def golden(name, text):
    """Whether the text is that of the file next to this one."""
    path = HERE / name
    if os.environ.get('SHERD_RENEW'):
        path.write_text(text)
    return [] if text == path.read_text() else [f'not as in {name}:', *text.splitlines()]


def narrow(value):
    return struct.unpack('f', struct.pack('f', value))[0]


def differ(tag, found, wanted):
    return [] if found == narrow(wanted) else [f'{tag}: {found}, metrics.jsonl has {wanted}']


TAGS = {'train/loss': 'loss', 'train/grad_norm': 'grad_norm', 'train/learning_rate': 'lr', 'train/tokens_seen': 'tokens_seen',
        'speed/tokens_per_second': 'tokens_per_second', 'speed/mfu': 'mfu', 'memory/arena_bytes': 'arena_bytes',
        'memory/peak_rss_bytes': 'peak_rss_bytes'}


def compare_step(values, line):
    wrong = [what for tag, key in TAGS.items() for what in differ(tag, values[tag], line[key])]
    for part in ('step', 'compute', 'exposed_comm', 'data', 'checkpoint'):
        wrong += differ(f'seconds/{part}', values[f'seconds/{part}'], line['seconds'][part])
    return wrong


def case_tensorboard():
    """Every step, validation and save, with the figures of metrics.jsonl; checksums hold; a resumed run has one more
    file."""
    folder = job.prepare('board', {**SETTINGS, 'training.dataset_path': tokens, 'validation.dataset_path': tokens})
    train(folder, '--metrics.tensorboard=tb', '--training.steps=3')
    files = list((folder / 'out/tb').iterdir())
    wrong = [] if len(files) == 1 and re.fullmatch(r'events\.out\.tfevents\.\d{10}\..+', files[0].name) else [f'files: {files}']
    found = events(files[0])
    wrong += [] if found[0] == (0, 'version', 'brain.Event:2') else [f'begins with {found[0]}']
    lines = {line['step']: line for line in lines_of(folder) if 'loss' in line}
    steps = [(step, values) for step, kind, values in found if kind == 'values' and 'train/loss' in values]
    wrong += [] if [step for step, _ in steps] == [1, 2, 3] else [f'steps {[step for step, _ in steps]}']
    wrong += [what for step, values in steps for what in compare_step(values, lines[step])]
    validations = [(line['step'], narrow(line['validation_loss'])) for line in lines_of(folder) if 'validation_loss' in line]
    shown = [(step, values['validation/loss']) for step, _, values in found if 'validation/loss' in values]
    wrong += [] if shown == validations and shown else [f'validations: {shown}, expected {validations}']
    shown = [f'{step} {kind} {" ".join(values) if kind == "values" else values}\n' for step, kind, values in found]
    wrong += golden('monitoring.events', ''.join(sorted(shown)))  # a save in the background may be reported later
    train(folder, '--metrics.tensorboard=tb')
    newer, = set((folder / 'out/tb').iterdir()) - set(files)
    again = events(newer)
    wrong += [] if [step for step, _, values in again if 'train/loss' in values] == [4] else [f'resumed: {again}']
    return wrong + ([] if again[1] == (4, 'session', {1: 1}) else [f'a resumed run begins with {again[1]}'])


SHOWN = {'sherd_loss': 'loss', 'sherd_grad_norm': 'grad_norm', 'sherd_learning_rate': 'lr', 'sherd_step': 'step',
         'sherd_tokens_per_second': 'tokens_per_second', 'sherd_mfu_ratio': 'mfu', 'sherd_arena_bytes': 'arena_bytes',
         'sherd_peak_rss_bytes': 'peak_rss_bytes'}


def case_openmetrics():
    """The newest figures, counters of this process, and labels that can hold any name."""
    name = 'o "u\\t"'
    folder = job.prepare('open', {**SETTINGS, 'training.dataset_path': tokens, 'validation.dataset_path': tokens,
                                  'job.dump_folder': name})
    train(folder, '--metrics.openmetrics=run.prom', SLURM_JOB_ID='4711')
    (folder / 'out').symlink_to(name)
    text = (folder / 'out/run.prom').read_text()
    found = exposition(text)
    labels = {json.dumps(labels, sort_keys=True) for _, labels, _ in found.values()}
    right = json.dumps({'job': '4711', 'run': name, 'host': socket.gethostname(), 'rank': '0'}, sort_keys=True)
    wrong = [] if labels == {right} else [f'labels: {labels}']
    last = [line for line in lines_of(folder) if 'loss' in line][-1]
    values = {name: value for name, (_, _, value) in found.items()}
    wrong += [f'{name}: {values[name]}, metrics.jsonl has {last[key]}' for name, key in SHOWN.items() if values[name] != last[key]]
    counted = {name: values[f'sherd_{name}'] for name in ('steps', 'tokens', 'skipped_steps', 'checkpoints', 'checkpoint_step')}
    wrong += [] if counted == {'steps': 4, 'tokens': 4 * last['tokens'], 'skipped_steps': 0, 'checkpoints': 2,
                               'checkpoint_step': 4} else [f'counted: {counted}']
    wrong += [] if {found[f'sherd_{name}'][0] for name in ('steps', 'tokens')} == {'counter'} else ['no counters']
    masked = re.sub(r'\{.*\} \S+', '{} #', text)
    wrong += golden('monitoring.prom', masked)
    return wrong + [f'left behind: {path}' for path in (folder / name).iterdir() if path.name.endswith('.tmp')]


def case_offload():
    """A run with optimizer states in a file: bytes and the waits for them, in all three."""
    folder = job.prepare('offload', {**SETTINGS, 'training.dataset_path': tokens, 'validation.enable': False,
                                     'offload.optimizer': 'nvme', 'offload.nvme_path': '.'})
    train(folder, '--metrics.openmetrics=run.prom', '--metrics.tensorboard=tb')
    lines = [line for line in lines_of(folder) if 'loss' in line]
    steps = [values for _, kind, values in events(next((folder / 'out/tb').iterdir())) if kind == 'values' and 'train/loss' in values]
    wrong = [] if len(steps) == len(lines) and any(line['offload_read_bytes'] for line in lines) else [f'{lines}']
    for values, line in zip(steps, lines):
        wrong += differ('seconds/exposed_offload', values['seconds/exposed_offload'], line['seconds']['exposed_offload'])
        for what in ('read_bytes', 'written_bytes'):
            wrong += differ(f'offload/{what}', values[f'offload/{what}'], line[f'offload_{what}'])
    found = {name: value for name, (_, _, value) in exposition((folder / 'out/run.prom').read_text()).items()}
    last = lines[-1]
    right = {'sherd_exposed_offload_seconds': last['seconds']['exposed_offload'],
             'sherd_offload_read_bytes': last['offload_read_bytes'], 'sherd_offload_written_bytes': last['offload_written_bytes']}
    return wrong + ([] if found | right == found else [f'{found}, expected {right}'])


def case_float16():
    """The scale of each step, in both, and the step for which it was too large."""
    folder = job.prepare('half', {**SETTINGS, 'training.dataset_path': tokens, 'validation.enable': False,
                                  'training.mixed_precision_param': 'float16', 'training.loss_scale_init': 2**40})
    train(folder, '--metrics.openmetrics=run.prom', '--metrics.tensorboard=tb')
    lines = [line for line in lines_of(folder) if 'loss' in line]
    wrong = [] if lines[-1]['loss_scale'] < lines[0]['loss_scale'] == 2.0**40 and 'skipped' in lines[0] else [f'{lines}']
    steps = [values for _, kind, values in events(next((folder / 'out/tb').iterdir())) if kind == 'values' and 'train/loss' in values]
    wrong += [] if len(steps) == len(lines) else [f'{len(steps)} steps']
    for values, line in zip(steps, lines):
        wrong += differ('train/loss_scale', values['train/loss_scale'], line['loss_scale'])
        wrong += differ('train/skipped', values['train/skipped'], float('skipped' in line))
    _, _, found = exposition((folder / 'out/run.prom').read_text())['sherd_loss_scale']
    return wrong + ([] if found == lines[-1]['loss_scale'] else [f'sherd_loss_scale: {found}, expected {lines[-1]}'])


def case_live():
    """The file exists before the first step, without gauges that are not yet known."""
    folder = job.prepare('live', {**SETTINGS, 'training.dataset_path': tokens, 'validation.enable': False})
    train(folder, '--metrics.openmetrics=run.prom', '--training.steps=2')
    train(folder, '--metrics.openmetrics=run.prom', '--training.steps=2')  # nothing to do
    found = exposition((folder / 'out/run.prom').read_text())
    return [] if found['sherd_steps'][2] == 0 and 'sherd_loss' not in found else [f'{found}']


def case_unwritable():
    """A file that cannot be written is found before the first step, with the key's name."""
    folder = job.prepare('bad', {**SETTINGS, 'training.dataset_path': tokens, 'validation.enable': False})
    wrong = []
    for key, value in (('metrics.openmetrics', '/proc/none/x.prom'), ('metrics.tensorboard', '/proc/none')):
        said = train(folder, f'--{key}={value}', status=3)
        wrong += [] if f'{key}: ' in said and 'step ' not in said else [said]
    return wrong


WANDB = """
import json
class Run:
    def __enter__(self): return self
    def __exit__(self, *error): print('end')
    def log(self, values, step): print(json.dumps([step, values], sort_keys=True))
def init(project, name): return Run()
def start_run(run_name): return Run()
def log_metrics(values, step): Run().log(values, step)
"""


def case_documented():
    """The lines in doc/metrics.md for Weights & Biases and MLflow send every step once, with its values."""
    folder = job.prepare('sent', {}).absolute()
    for name in 'wandb', 'mlflow':
        (folder / f'{name}.py').write_text(WANDB)
    lines = [{'event': 'start', 'step': 0}, {'step': 1, 'loss': 9.0, 'lr': 0.5}, {'step': 2, 'loss': 8.0},
             {'event': 'start', 'step': 1}, {'step': 2, 'loss': 3.0, 'mfu': 0.5, 'grad_norm': None, 'seconds': {'step': 1}},
             {'step': 2, 'validation_loss': 4.0, 'tokens': 7, 'seconds': 1}, {'step': 2, 'checkpoint': 'x', 'bytes': 1}]
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    page = (job.TOP / 'doc/metrics.md').read_text()
    read, *programs = re.findall(r'```python\n(.*?)```', page, re.S)
    right = [[1, {'loss': 9.0, 'lr': 0.5}], [2, {'loss': 3.0, 'mfu': 0.5, 'validation_loss': 4.0}]]
    wrong = [] if len(programs) == 2 else [f'{len(programs)} programs']
    for program in programs:
        done = subprocess.run([sys.executable, '-c', read + program, str(folder)], cwd=folder, capture_output=True, text=True,
                              check=False)
        found = done.stdout.splitlines()
        if found[-1:] != ['end'] or list(map(json.loads, found[:-1])) != right:
            wrong += [program, done.stdout, done.stderr]
    return wrong


CASES = [
    ('TensorBoard', case_tensorboard),
    ('OpenMetrics', case_openmetrics),
    ('what a run with states in a file moves and waits for', case_offload),
    ('the loss scale of float16', case_float16),
    ('OpenMetrics of a run that does nothing', case_live),
    ('what cannot be written', case_unwritable),
    ('Weights & Biases and MLflow', case_documented),
]

if __name__ == '__main__':
    tokens = tiny.write_tokens()
    sys.exit(job.run_cases(CASES))
