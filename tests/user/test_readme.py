#!/usr/bin/env python3
"""The commands in README's sections "Training" and "Fine-tuning" and those of doc/data.md for a model of words, run
as written there, with fewer and smaller steps; and the plan and the table at README's beginning. Prints TAP.

A text becomes a model that continues it: each block must work from a fresh folder, one command after the other. For root
and containers, README's words for this MPI are used.
"""
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

FEWER = ('--training.steps=3 --training.seq_len=64 --training.local_batch_size=2 --training.global_batch_size=4 '
         '--lr_scheduler.warmup_steps=1 --validation.sequences=4 --training.threads=1')
README = (job.TOP / 'README.md').read_text()
work = pathlib.Path('work').absolute()


def blocks(page='README.md', title='Training'):
    section = (job.TOP / page).read_text().split(f'## {title}\n')[1].split('\n## ')[0]
    return re.findall(r'^```\n(.*?)^```$', section, re.M | re.S)


def shorten(lines):
    """The same lines, except that training takes few steps and a sample few tokens."""
    more = {'sherd train ': FEWER, 'sherd generate ': '--tokens 8 --training.threads=1', 'sherd eval ': '--sequences 4'}
    lines = [re.sub(r'\s+#.*', '', line) for line in lines]
    return [' '.join([line, *(words for command, words in more.items() if command in line)]) for line in lines]


def environment():
    """A shell as a new user has it; running more ranks than cores is this machine's affair."""
    hidden = ('OMPI_ALLOW_RUN_AS_ROOT', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM')
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**env, 'PATH': f'{work}/bin:{env["PATH"]}', 'OMPI_MCA_rmaps_base_oversubscribe': '1',
            'OMPI_MCA_hwloc_base_binding_policy': 'none', 'OMPI_MCA_mpi_yield_when_idle': '1'}


def run(lines):
    done = subprocess.run(['bash', '-e', '-x', '-c', '\n'.join(lines)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, errors='replace', cwd=work, env=environment(), timeout=2 * job.SECONDS)
    if done.returncode != 0:
        raise job.Failed(f'exit {done.returncode}\n{done.stdout}{done.stderr}')
    return done.stdout, done.stderr


def prepare():
    """The top of a clone with the program in build/, a text, and the launcher under its usual name."""
    shutil.rmtree(work, ignore_errors=True)
    (work / 'bin').mkdir(parents=True)
    launcher = work / 'bin/mpirun'  # not a link: MPICH's looks for its helpers next to the called name
    launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(shutil.which(os.environ["MPIRUN"]))} "$@"\n')
    launcher.chmod(0o755)
    (work / 'build').symlink_to(pathlib.Path(os.environ['SHERD']).parent)
    (work / 'book.txt').write_text(''.join((job.TOP / 'doc' / name).read_text() for name in
                                           ('design.md', 'running.md', 'gpu.md', 'checkpoint-format.md')))


def for_root():
    """What README says for root, which comes before all other lines; and its word for many ranks."""
    exports, many = re.search('`(export OMPI[^`]*)`.*only with `(--[a-z]+)`', README, re.S).groups()
    return [exports.replace('\n', ' ')], many


def case_path():
    prepare()
    exports = for_root()[0] if os.environ['MPI_KIND'] == 'openmpi' and os.getuid() == 0 else []
    methods = shorten(f'mpirun -n 2 sherd train gpt2-bytes --job.dump_folder={key} --{key}' for key in
                      ('optimizer.name=muon', 'optimizer.state_dtype=int8') if f'`--{key}`' in README)
    out, said = run(exports + shorten(blocks()[0].splitlines()) + methods)
    wanted = {'tokenised': 'tokens in train.bin', 'evaluated': 'bits per token', 'continued': 'Once '}
    wrong = [f'not {what}: {out}' for what, words in wanted.items() if words not in out]
    wrong += [] if 'done: 3 steps' in said and 'validation loss' in said else [said]
    report = work / 'outputs/report.html'
    wrong += [] if len(methods) == 2 and said.count('done: 3 steps') == 3 else [f'{methods}: {said}']
    return wrong + ([] if report.exists() else ['no outputs/report.html'])


def make_words(install, train):
    """The second line, without the download, if this Python has the library; else a tokenizer of the tests stands
    in."""
    if importlib.util.find_spec('tokenizers') and install.endswith('venv/bin/pip install tokenizers'):
        return [train.replace('venv/bin/python ', shlex.quote(sys.executable) + ' ')]
    (work / 'words').mkdir(exist_ok=True)
    shutil.copyfile(job.TOP / 'tests/golden/tokenizer/gpt2.json', work / 'words/tokenizer.json')
    (work / 'words/generation_config.json').write_text('{"eos_token_id": 0}')
    return []


def case_words():
    """The model with a tokenizer, up to the folder for transformers."""
    prepare()
    (work / 'examples').symlink_to(job.TOP / 'examples')
    lines = shorten(blocks('doc/data.md', 'A model of words')[0].splitlines())
    exports = for_root()[0] if os.environ['MPI_KIND'] == 'openmpi' and os.getuid() == 0 else []
    out, said = run([f'export PATH={work}/build:$PATH', *exports, *make_words(*lines[:2]), *lines[2:]])
    wanted = {'tokenised': 'tokens in words.bin', 'evaluated': 'bits per byte', 'continued': 'Once '}
    wrong = [f'not {what}: {out}' for what, words in wanted.items() if words not in out]
    wrong += [] if 'done: 3 steps' in said else [said]
    there = {path.name for path in (work / 'words-hf').iterdir()}
    missing = {'config.json', 'model.safetensors', 'tokenizer.json', 'generation_config.json'} - there
    return wrong + ([f'the export lacks {missing}'] if missing else [])


def case_fine_tuning():
    """The section's lines, on four ranks, with a tiny model that uses a tokenizer of the tests."""
    prepare()
    shutil.copytree(job.TOP / 'tests/hf/qwen3', work / 'DIR')
    (work / 'DIR').chmod(0o755)
    tokenizer = {'version': '1.0', 'added_tokens': [], 'model': {'type': 'BPE', 'vocab': {c: i for i, c in enumerate('abcdefgh')},
                                                                 'merges': []}}
    (work / 'DIR/tokenizer.json').write_text(json.dumps(tokenizer))
    (work / 'book.txt').write_text('abcdefgh' * 500)
    (work / 'questions.jsonl').write_text('{"query": "abcd", "choices": ["efgh", "hgfe"], "gold": 0}\n')
    block = blocks(title='Fine-tuning')[0].replace('\\\n', ' ').replace('The answer is ', 'abc')
    lines = [re.sub(r'\s+#.*', '', line) for line in block.splitlines()]
    lines[0] += ' --block_size 16 --max_steps 3 --training.threads=1'
    whole = re.sub(r' --lora\S+', '', lines[0])
    optims = re.findall(r'`(\w+)`', re.search('`--optim` may be (.*?)\\.', README)[1])
    lines[0] = lines[0].replace('--lora.rank=16', '--lora.rank=4')
    lines[3] += ' --tokens 4'
    pairs = '{"prompt": "abcd", "chosen": "efgh", "rejected": "hgfe"}\n'
    (work / 'pairs.jsonl').write_text(40 * pairs)
    lines.insert(4, 'sherd tokenize pairs.jsonl -o pairs.bin --tokenizer DIR --format preference')
    lines[5] += ' --training.seq_len=32 --training.steps=3 --lr_scheduler.warmup_steps=0 --training.threads=1'
    lines[6:6] = ['sherd tokenize book.txt -o text.bin --tokenizer DIR']
    lines[7] = lines[7].replace('--top-k 64', '--top-k 4')
    lines += [whole.replace('--output_dir tuned', f'--output_dir {optim}') + f' --optim {optim}' for optim in optims]
    exports = for_root()[0] if os.environ['MPI_KIND'] == 'openmpi' and os.getuid() == 0 else []
    out, said = run([f'export PATH={work}/build:$PATH', *exports, *lines])
    there = [name for name in ('adapter/adapter_model.safetensors', 'adapter/adapter_config.json', 'merged/config.json',
                               'merged/model.safetensors', 'merged/tokenizer.json', 'text.top') if not (work / name).exists()]
    wrong = [f'no {name}' for name in there]
    wrong += [f'no {words}: {out}{said}' for words in ('done: 3 steps', 'adapters', 'acc ') if words not in out + said]
    wrong += [] if len(optims) == 2 and said.count('done: 3 steps') == 4 else [f'{optims}: {said}']
    return wrong


def case_root():
    exports, many = for_root()
    if os.environ['MPI_KIND'] != 'openmpi':
        return []
    out, _ = run([f'export PATH={work}/build:$PATH', *exports, f'mpirun -n 4 {many} sherd --version'])
    return [] if out.count('built with') == 4 else [out]


def case_plan():
    """The first screen shows rows of a plan: the program prints the same rows, in the same order."""
    shown = re.search(r'^\$ (sherd plan [^\n]*)\n(.*?)^```$', (job.TOP / 'README.md').read_text(), re.M | re.S)
    words, rows = shown[1].split(), [row for row in shown[2].splitlines() if row != '...']
    printed = iter(subprocess.run([os.environ['SHERD'], *words[1:]], capture_output=True, text=True,
                                  check=True).stdout.splitlines())
    return [f'not printed, or in another order: {row}' for row in rows if row not in printed]


# What Sherd's column claims in the table at the top, and the tests that hold it; None: case_table itself.
CLAIMS = {'start': 'tests/user/test_readme.py', 'memory of a run is known': 'tests/mesh/test_memory.py',
          'resume on other ranks': 'tests/mesh/test_resume_meshes.py',
          'the same bits on other meshes': 'tests/mesh/test_reproducible.py', 'Python needed': None,
          'pipeline parallelism; run on GPUs so far': None}


def case_table():
    """The table compares with PyTorch: each row has a test, and the program needs no Python."""
    page = (job.TOP / 'README.md').read_text().split('\n## ')[0]
    rows = {cells[1]: cells[2:4] for cells in ([cell.strip() for cell in line.split('|')] for line in page.splitlines()
                                               if line.startswith('| ') and not line.startswith('| |'))}
    wrong = [] if list(rows) == list(CLAIMS) else [f'rows {list(rows)}']
    listed = (job.TOP / 'tests/local.am').read_text()
    wrong += [f'{test} is no test' for test in CLAIMS.values() if test and (test not in listed or not (job.TOP / test).exists())]
    needed = subprocess.run(['ldd', os.environ['SHERD']], capture_output=True, text=True).stdout
    wrong += ['the program needs Python'] if 'python' in needed.lower() else []
    wrong += [] if 'has not run on several GPUs' in (job.TOP / 'README.md').read_text() else ['GPUs: the table says one']
    plan = re.search(r'`(sherd plan) CONFIG (--ranks 512)`', rows['memory of a run is known'][1])
    done = subprocess.run([os.environ['SHERD'], 'plan', 'llama3.1-70b', *plan[2].split()], capture_output=True, text=True)
    wrong += [] if 'arena: all that is allocated' in done.stdout else [done.stderr]
    picture = re.search(r'!\[.*\]\((doc/\S+)\)', page)[1]
    size = (job.TOP / picture).stat().st_size
    return wrong + ([] if size < 150000 else [f'{picture} has {size} bytes'])


def case_first_line():
    """The first line of an error is Sherd's, whatever the launcher adds."""
    done = subprocess.run([*shlex.split(os.environ['MPIRUN']), '-n', '1', os.environ['SHERD'], 'train', 'gpt2-bytes', '--training.stepz=3'],
                          capture_output=True, text=True, env=job.environment(1), stdin=subprocess.DEVNULL, timeout=job.SECONDS)
    first = done.stderr.splitlines()[0]
    return [] if done.returncode and first.startswith('sherd: error: ') else [done.stderr]


CASES = [('the plan on the first screen', case_plan), ('the table on the first screen', case_table),
         ('the first line of an error', case_first_line), ('from a text to a model that continues it', case_path),
         ('from a text to a model of words', case_words), ('from a folder to an adapter and a model', case_fine_tuning),
         ('as root, on more ranks than cores', case_root)]

if __name__ == '__main__':
    job.need_launcher()
    sys.exit(job.run_cases(CASES))
