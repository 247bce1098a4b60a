#!/usr/bin/env python3
"""Operations of one's own: the example is right by all checks, and each mutant is named for what is wrong with it;
training with the example has the same bits on 2 x 2 ranks as on one, and PyTorch's numbers; what does not fit is refused.
Prints TAP.
"""
import concurrent.futures
import filecmp
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(TOP / 'tests/gold'), str(TOP / 'tests/mesh')]
import job
import tiny

job.need_launcher()
SHERD = os.environ['SHERD']
# The check that is to fail for each mutant of mutants.c, whose lines say what is wrong. Others may fail too.
NAMED = {
    'text': (36, 37, 39, 40, 63, 64),
    'gradient': (1, 2, 3, 4, 5, 6, 7, 8, 30, 33, 51, 61, 69),
    'numbers': (62,),
    'types': (9, 10, 13, 15, 17, 18, 19, 20, 21, 22, 28, 29, 32, 46, 47, 50, 54, 56, 66, 67, 68),
    'outside': (11, 24, 25, 26, 27, 31, 45, 48, 57, 65),
    'nan': (12, 14, 23, 34),
    'bits': (16, 52, 53, 55, 60),
    'in place': (35,),
    'process': (41, 42, 43, 44),
    'flops': (38,),
}
# What checks by trials cannot find: a fault that no trial meets.
SURVIVORS = {49: 'the call that is wrong is the 100,000th', 58: 'one value is wrong, 12.345', 59: 'values above 1,000 are cut'}
USE = {'model.ffn_op': 'clamped_swiglu'}
CONFIG = {**tiny.MODELS['llama'], 'training.global_batch_size': 8, 'training.steps': 6, 'training.reproducible': 'mesh',
          'checkpoint.interval': 3, 'checkpoint.keep_latest_k': 0}


def compile_plugin(source, library, *flags):
    subprocess.run(['cc', '-O1', '-fopenmp', '-shared', '-fPIC', f'-I{TOP}/include', *flags, '-o', library, TOP / source,
                    '-lm'], check=True)
    return str(pathlib.Path(library).absolute())


def say(*words, **more):
    done = subprocess.run([SHERD, *words], capture_output=True, text=True, env={**job.environment(0), **more})
    return done.returncode, done.stdout + done.stderr


def case_example():
    """It passes, and no example has a word about ranks."""
    code, text = say('plugin', 'check', clamped)
    wrong = [text] if code or text.count('  ok ') != 10 else []
    return wrong + [f'{path.name} knows of ranks' for path in (TOP / 'examples/plugins').iterdir()
                    if re.search(r'rank|shard|mesh|\bmpi', path.read_text(), re.I)]


def judge_mutant(number):
    """What is wrong with the verdict on a mutant."""
    code, text = say('plugin', 'check', 'mutants.so', MUTANT=str(number))
    if number == 0 or number in SURVIVORS:
        return f'mutant {number} is named: {text}' if code else None
    check = next(check for check, numbers in NAMED.items() if number in numbers)
    named = any(line.split(': ')[1:2] == [check] for line in text.splitlines())
    return None if code == 3 and named else f'mutant {number} is not named for {check}: {code}: {text}'


def case_mutants():
    numbers = sorted([0, *SURVIVORS, *(number for group in NAMED.values() for number in group)])
    if numbers != list(range(len(numbers))) or len(numbers) < 41:
        return [f'mutants {numbers}']
    compile_plugin('tests/user/mutants.c', 'mutants.so')
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [wrong for wrong in pool.map(judge_mutant, numbers) if wrong]


# {what a beginner writes in place of a text of the example: what the check says}
BACKWARD = '.backward = "clamped_swiglu_bwd",'
MISTAKES = {
    ('"gu [N,2F] act -> h', '"gate_up [N,2F] act -> h'): 'its shape cannot be read, from "_up [N,2F] act',
    ('"gu [N,2F] act -> h', '"gu [N,2F] -> h'): 'its shape cannot be read, from "-> h',
    ('"9NF"', '"9*N*F"'): 'its flops cannot be read, from "*N*F" on; it should be like "9NF"',
    (BACKWARD, ''): 'clamped_swiglu: text: it names no .backward, so it is the backward of another row',
    (BACKWARD, '.backward = "clamped_bwd",'): 'its .backward is the name of no row of this file',
    ('(T)sh_operand_get(gu, gate), (T)sh_operand_get(gu, up), call->number)', '((float *)gu->data)[gate], ((float *)gu->data)[up], call->number)'):
        'sh_operand_get() and sh_operand_set() know the types',
    ('"clamped_swiglu', '"swiglu'): 'swiglu: an operation of Sherd has this name',
}


def case_mistakes():
    source, wrong = (TOP / 'examples/plugins/clamped.c').read_text(), []
    for (old, new), told in MISTAKES.items():
        pathlib.Path('mistake.c').write_text(source.replace(old, new))
        compile_plugin(pathlib.Path('mistake.c').absolute(), 'mistake.so')
        code, text = say('plugin', 'check', 'mistake.so')
        wrong += [] if code in (2, 3) and told in text else [f'{new}: {code}: {text}']
    code, text = say('plugin', 'check', 'mutants.so', MUTANT='68')
    before = text.find('relu2: gradient: ')
    return wrong + ([] if -1 < before < text.find('relu2: types: the kernel ends the process') else [f'what was found before the end: {text}'])


def case_no_gpu():
    """A build without CUDA cannot try kernels on a GPU, nor can a machine without one; with one, there is no kernel."""
    code, text = say('plugin', 'check', clamped, '--device=cuda')
    told = any(f'sherd plugin: --device cuda: {why}' in text for why in ('this sherd was built without CUDA', 'there is no GPU'))
    return [] if (code == 2 and told) or (code == 3 and 'it has no cuda kernel' in text) else [f'{code}: {text}']


OPENED = {3: 'relu2: gradient', 26: 'relu2: outside', 52: 'relu2: bits'}


def case_opened():
    """What opens a file tries it briefly: what is wrong is not planned, let alone trained."""
    pathlib.Path('opened.yaml').write_text(f'plugins: [mutants.so]\nmodel:\n  name: debug\ntraining:\n  dataset_path: {data}\n  steps: 1\n')
    wrong = []
    for number, named in OPENED.items():
        for word in ('plan', 'train'):
            code, text = say(word, 'opened.yaml', '--training.device=cpu', MUTANT=str(number))
            wrong += [] if code == 3 and named in text and '`sherd plugin check` says more' in text else [f'{word}, {number}: {code}: {text}']
    code, text = say('plan', 'opened.yaml', '--training.device=cpu')
    return wrong + ([] if code == 0 else [f'plan, the right one: {code}: {text}'])


def run(folder, changes, ranks=0, plugin=None):
    steps = job.train(folder, {**CONFIG, **USE, 'plugin.files': plugin or clamped, 'training.dataset_path': data,
                               **changes}, ranks)
    return [(step['loss'], step['grad_norm']) for step in steps]


def case_mesh():
    one = run('one', {})
    two_by_two = run('four', {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'mesh.replicate': 2,
                              'activation_checkpoint.mode': 'full'}, 4)
    other = run('limit', {'plugin.numbers': 'clamped_swiglu.limit=0.01'})
    family = run('family', {'model.ffn_op': ''})
    same = [] if one == two_by_two else [f'{one} on one rank, {two_by_two} on 2 x 2']
    return same + [f'{name} has no effect' for name, steps in (('limit', other), ('ffn_op', family)) if steps == one]


# A branch with the operation and a narrow one beside it.
OWN = {'model.ffn_op': '', 'model.ffn': 'n = norm(x, inner); g = linear(n, gate_up, 2F); h = clamped_swiglu(g); y = linear(h, down, C); '
       'u = linear(x, thin, 10); a = gelu(u); z = linear(a, back, C); s = add(y, z)'}


def case_statements():
    """model.ffn on one rank, and begun on 2 x 2 ranks, which recompute, and resumed on one: the same checkpoint. The
    plug-in's number and each of the two branches count."""
    run('own', OWN)
    run('own-4', {**OWN, 'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'mesh.replicate': 2,
                  'activation_checkpoint.mode': 'full', 'training.steps': 3}, 4)
    job.sherd('train', 'c.yaml', '--training.steps=6', '--mesh.shard=1', '--mesh.replicate=1', folder='own-4')
    one, four = (pathlib.Path(f'{folder}/out/checkpoint/step-00000006.h5') for folder in ('own', 'own-4'))
    wrong = [] if filecmp.cmp(one, four, shallow=False) else ['the checkpoint has other bytes']
    code, text = say('ckpt', 'export', str(one), '-o', 'folder')
    wrong += [] if code == 2 and 'model.ffn: transformers has only' in text else [f'export: {code}: {text}']
    for name, changes in {'limit': {'plugin.numbers': 'clamped_swiglu.limit=0.01'},
                          'add': {'model.ffn': OWN['model.ffn'].replace('add(y, z)', 'add(z, y)').replace('gelu', 'gelu_erf')}}.items():
        other = run(f'own-{name}', {**OWN, **changes, 'training.steps': 1, 'checkpoint.enable': False})
        wrong += [f'{name} has no effect'] if other[0] == job_losses('own')[0] else []
    return wrong


def job_losses(folder):
    return [(step['loss'], step['grad_norm']) for step in job.metrics(folder)]


UNREADABLE = {
    'y = gelu(x) z = gelu(y)': 'several statements in one', 'y': 'write VALUE = OPERATION(VALUE, ...)', 'y = linear(x, a)': 'write linear(VALUE, NAME, WIDTH)',
    'y = linear(z, a, C)': "no statement before it makes 'z'", 'y = linear(x, a, 3Q)': "'3Q' is no width",
    'a = gelu(x); y = linear(x, b, C)': "no statement reads 'a'", 'y = add(x, x)': "adds 'x' to itself",
    'a = linear(x, a, C); y = linear(a, a, C)': "a statement before it has a parameter 'a' too",
    'x = linear(x, a, C)': "'x' is there already", 'y = swish(x)': "no plug-in of plugin.files has an operation 'swish'",
    'y = turn(x)': "an operation 'turn'", 'y = all_gather(x)': "an operation 'all_gather'",
    'y = linear(x, a, F)': 'the result', 'a = linear(x, a, F); y = add(a, x)': 'give both one width',
    'a = linear(x, a, 3); y = swiglu(a)': '3 columns are odd',
    'y = clamped_swiglu_bwd(x)': 'it is the backward of another',
}
BESIDE = {'lora.rank=2': 'so they have no adapters', 'model.name=debug-moe': 'experts have the feed-forward parts',
          'parallelism.tensor_parallel_degree=2': 'a statement may need all', 'model.ffn_op=clamped_swiglu': 'leave model.ffn_op out',
          'mup.enable=true': 'write multiples of C or F'}


def case_unreadable():
    pathlib.Path('empty.yaml').write_text('')
    usual = ['plan', 'empty.yaml', f'--plugin.files={clamped}', '--training.device=cpu']
    rows = [(['--model.name=debug', f'--model.ffn={text}'], wanted) for text, wanted in UNREADABLE.items()]
    rows += [(['--model.ffn=a = linear(x, a, 3); y = linear(a, b, C)', f'--{word}',
               *(['--model.name=debug'] if 'name' not in word else [])], wanted) for word, wanted in BESIDE.items()]
    said = [(words, wanted, *say(*usual, *words)) for words, wanted in rows]
    return [f'{words}: {code}: {text}' for words, wanted, code, text in said if code != 2 or wanted not in text]


def case_change():
    """A resume with another file is refused with both sums, unless plugin.allow_change, which the option sets."""
    changed = compile_plugin('examples/plugins/clamped.c', 'changed/clamped.so', '-DOTHER', '-g')
    code, text = say('train', 'one/c.yaml' if pathlib.Path('one/c.yaml').exists() else str(next(pathlib.Path('one').glob('*.yaml'))),
                     f'--plugin.files={changed}', '--job.dump_folder=one/out', '--training.steps=8')
    allowed, more = say('train', str(next(pathlib.Path('one').glob('*.yaml'))), f'--plugin.files={changed}',
                        '--job.dump_folder=one/out', '--training.steps=8', '--allow-plugin-change')
    right = code == 2 and 'was saved with clamped.so' in text and '--allow-plugin-change' in text
    return ([] if right else [f'{code}: {text}']) + ([] if allowed == 0 and 'it is loaded with' in more else [f'{allowed}: {more}'])


def case_ranks():
    """Each rank opens the file at its own path; files with other bytes, which may compute the same, are refused."""
    job.prepare('ranks', {**CONFIG, **USE, 'training.dataset_path': data, 'training.steps': 1, 'checkpoint.enable': False, 'job.dump_folder': 'out'})
    for folder, flag in ('node0', '-O1'), ('node1', '-O1'), ('other0', '-O1'), ('other1', '-g'):
        pathlib.Path(f'ranks/{folder}').mkdir()
        compile_plugin('examples/plugins/clamped.c', f'ranks/{folder}/clamped.so', flag)
    program = pathlib.Path('ranks/sherd').absolute()
    program.write_text(f'#!/bin/sh\nexec {SHERD} "$@${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}/clamped.so"\n')
    program.chmod(0o755)
    wrong = []
    for kind, code, says in ('node', 0, 'done'), ('other', 3, 'the ranks have opened files with different bytes'):
        words = ['train', 'c.yaml', f'--plugin.files={kind}']
        done = subprocess.run([str(program) if word == SHERD else word for word in job.command(2, words)], cwd='ranks', capture_output=True,
                              text=True, env=job.environment(2))
        wrong += [] if done.returncode == code and says in done.stdout + done.stderr else [f'{kind}: {done.returncode}: {done.stdout}{done.stderr}']
    return wrong


REFUSED = {
    'no such number': (('--plugin.clamped_swiglu.most=3',), 'clamped_swiglu has no number most'),
    'a number out of bounds': (('--plugin.clamped_swiglu.limit=-3',), 'not a number from 0 to 1000'),
    'a backward': (('--model.ffn_op=clamped_swiglu_bwd',), 'it is the backward of another'),
    'no such operation': (('--model.ffn_op=swish',), 'has an operation of that name; there is clamped_swiglu'),
    'a GPU without a cuda kernel': (('--training.device=cuda',), 'has no cuda kernel'),
    'experts': (('--model.name=debug-moe',), 'only models without experts'),
    'a family without a gate': (('--model.family=gpt2', '--model.n_kv_heads=4'), 'the feed-forward part of this family has [N,F]'),
    'matrices on several ranks': (('--mesh.ranks=2', '--parallelism.tensor_parallel_degree=2'), 'a rank has a part of the columns'),
}


def case_refused(name):
    words, wanted = REFUSED[name]
    given = {word.split('=')[0] for word in words}
    usual = ['--model.name=debug', f'--plugin.files={clamped}', '--model.ffn_op=clamped_swiglu', '--training.device=cpu']
    pathlib.Path('empty.yaml').write_text('')
    code, text = say('plan', 'empty.yaml', *(word for word in usual if word.split('=')[0] not in given), *words)
    return [] if code == 2 and wanted in text else [f'{code}: {text}']


def case_trust():
    """Nothing is loaded that others could have written."""
    library = compile_plugin('examples/plugins/clamped.c', 'open.so')
    os.chmod(library, 0o777)
    code, text = say('plugin', 'check', library)
    return [] if code == 3 and 'may be written by everybody' in text else [f'{code}: {text}']


def case_look():
    """To look at a checkpoint runs no code that only the checkpoint names."""
    look = 'eval', '--checkpoint', 'one/out', '--data', data, '--sequences', '2'
    code, text = say(*look)
    wrong = [] if code == 2 and 'whose code would run here: give --plugin.files=' in text else [f'{code}: {text}']
    code, text = say(*look, f'--plugin.files={clamped}', '--plugin.allow_change=true')
    return wrong + ([] if code == 0 and 'loss' in text else [f'{code}: {text}'])


def case_headers():
    library = compile_plugin('tests/user/mutants.c', 'old.so', '-DOLD')
    code, text = say('plugin', 'check', library)
    return [] if code == 2 and 'abi 1 with rows of 8' in text else [f'{code}: {text}']


def case_yaml():
    pathlib.Path('list.yaml').write_text(f'plugins: [{clamped}]\nmodel:\n  name: debug\n  ffn_op: clamped_swiglu\n'
                                         'plugin:\n  clamped_swiglu:\n    limit: 5\n')
    code, text = say('plan', 'list.yaml', '--show', '--after', 'grad')
    wrong = [] if code == 0 and 'limit 5' in text else [f'{code}: {text[-500:]}']
    pathlib.Path('statements.yaml').write_text(pathlib.Path('list.yaml').read_text().replace(
        'ffn_op: clamped_swiglu', 'ffn: ["gu = linear(x, both, 2F)", "h = clamped_swiglu(gu)", "y = linear(h, down, C)"]'))
    code, text = say('plan', 'statements.yaml', '--show', '--after', 'grad')
    wrong += [] if code == 0 and 'limit 5' in text and 'layers.0.mlp.both.weight[768,128]' in text else [f'{code}: {text[-500:]}']
    return wrong + blocks_of_lines(text)


def blocks_of_lines(wanted):
    """Each line of a block is a statement; of one that YAML folds, the line and the cause are said."""
    before, after = pathlib.Path('statements.yaml').read_text().split('ffn: [')
    rest, wrong = after[after.index(']') + 1:], []
    lines = ('gu = linear(x, both, 2F)', 'h = clamped_swiglu(gu);', '', 'y = linear(h,', '  down, C)')
    for name, style, statements, code, says in (
            ('lines', '|', (lines[0] + '  ', *lines[1:]), 0, wanted), ('lines-kept', '|+', [*lines, ''], 0, wanted),
            ('folded', '>-', [lines[0] + ';', lines[1], 'y = linear(h, down, C)'], 0, wanted),
            ('run together', '>', [lines[0], lines[1]], 2, 'run together.yaml:4: model.ffn: ')):
        pathlib.Path(f'{name}.yaml').write_text(f'{before}ffn: {style}\n' + ''.join(f'    {line}\n' for line in statements) + rest)
        found, text = say('plan', f'{name}.yaml', '--show', '--after', 'grad')
        wrong += [] if found == code and (text == says or code and says in text and 'several statements in one' in text) else [
            f'{name}: {found}: {text[-500:]}']
    return wrong


def find_nvcc():
    return shutil.which('nvcc') or shutil.which('nvcc', path='/usr/local/cuda/bin')


def case_cuda():
    """With a kernel for GPUs a plan for one is made, and CPUs train as before; tests/gpu/test_plugin.py runs it."""
    subprocess.run([find_nvcc(), '-O1', '--Werror=all-warnings', '-shared', '-Xcompiler', '-fPIC,-fopenmp,-Wall', f'-I{TOP}/include',
                    '-o', 'relu2.so', TOP / 'examples/plugins/relu2.cu'], check=True)
    code, text = say('plugin', 'check', 'relu2.so')
    wrong = [] if code == 0 and text.count('kernels ref, cpu, cuda') == 2 else [f'{code}: {text}']
    code, text = say('plan', 'gpt2-124m', '--training.device=cuda', '--plugin.files=relu2.so', '--model.ffn_op=relu2')
    wrong += [] if code == 0 else [f'{code}: {text}']
    library = str(pathlib.Path('relu2.so').absolute())
    gpt2 = {'model.family': 'gpt2', 'model.n_kv_heads': 5, 'training.steps': 2}
    relu2, gelu = (run(f'gpt2-{op}', {**gpt2, 'model.ffn_op': op}, plugin=library) for op in ('relu2', ''))
    return wrong if relu2 != gelu else [*wrong, 'it has no effect']


def case_export():
    """A folder of transformers could not say which activation it has."""
    code, text = say('ckpt', 'export', 'one/out/checkpoint/step-00000003.h5', '-o', 'folder')
    return [] if code == 2 and 'does not know the operation' in text else [f'{code}: {text}']


def case_torch():
    import test_torch
    # One layer and a limit that few pass: of more elements one comes so near that rounding decides about its gradient.
    test_torch.MODELS['a plug-in'] = {**test_torch.LLAMA, **USE, 'model.n_layers': 1, 'plugin.files': clamped,
                                      'plugin.numbers': 'clamped_swiglu.limit=3'}
    m = test_torch.model('a plug-in')
    return test_torch.compare_run(m, *m.float32)


def unless(why, name, function):
    return (f'{name} # SKIP {why}', list) if why else (name, function)


def main():
    global clamped, data
    pathlib.Path('changed').mkdir(exist_ok=True)
    clamped, data = compile_plugin('examples/plugins/clamped.c', 'clamped.so'), tiny.write_tokens()
    missing = [name for name in ('numpy', 'h5py', 'torch') if importlib.util.find_spec(name) is None]
    cases = [('the example', case_example), ('mutants', case_mutants), ('mistakes', case_mistakes), ('no GPU', case_no_gpu), ('mutants that are opened', case_opened), ('2 x 2 ranks and one', case_mesh),
             ('statements', case_statements), ('statements that are wrong', case_unreadable),
             ('another file', case_change), ('a file that others may write', case_trust),
             ('a look at a checkpoint', case_look), ('other headers', case_headers), ('a list in YAML', case_yaml),
             ('each rank its own file', case_ranks),
             unless('' if find_nvcc() else 'no nvcc', 'a kernel for GPUs', case_cuda), ('an export', case_export),
             unless(f'no {", ".join(missing)}' if missing else '', 'PyTorch', case_torch)]
    return job.run_cases(cases + [(f'refused: {name}', case_refused, name) for name in REFUSED])


if __name__ == '__main__':
    sys.exit(main())
