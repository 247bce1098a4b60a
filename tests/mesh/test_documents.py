#!/usr/bin/env python3
"""Documents in rows, and mixes of them: the same bits on every mesh, and a run that stops in the middle of an epoch
continues to the bit on another mesh. Prints TAP.

The files are made here as doc/data.md describes, without Sherd.
"""
import array
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job
import tiny

BATCH = 8
CONFIG = {'training.global_batch_size': BATCH, 'training.reproducible': 'mesh', 'metrics.log_freq': 1,
          'data.excess_length_strategy': 'split', 'checkpoint.interval': 3, 'checkpoint.keep_latest_k': 0}
MESHES = {
    'full_shard over 2': (2, {'parallelism.sharding_strategy': 'full_shard'}),
    'hybrid_shard 2 x 2': (4, {'parallelism.sharding_strategy': 'hybrid_shard', 'mesh.shard': 2, 'mesh.replicate': 2}),
    'no_shard over 4': (4, {'parallelism.sharding_strategy': 'no_shard'}),
}
MORE = {**MESHES, 'full_shard over 4': (4, {'parallelism.sharding_strategy': 'full_shard', 'activation_checkpoint.mode': 'selective'})}
DELTA = {'model.family': 'qwen3_5_text', 'model.linear_key_heads': 1, 'model.linear_value_heads': 2, 'model.linear_key_dim': 4,
         'model.linear_value_dim': 6, 'model.linear_conv_size': 3}
SCAN = {**DELTA, 'model.family': 'nemotron_h', 'model.layer_types': 'linear,full_nope,mlp', 'model.tie_word_embeddings': False}
GRANITE = {**SCAN, 'model.family': 'granitemoehybrid', 'model.layer_types': 'linear,full_nope', 'model.n_experts': 4,
           'model.n_experts_per_token': 2, 'model.expert_ffn_dim': 6, 'model.shared_ffn_dim': 5, 'model.residual_multiplier': 0.5}
GEMMA4 = {'model.family': 'gemma4_text', 'model.global_head_dim': 6, 'model.global_kv_heads': 1, 'model.keys_as_values': True,
          'model.rotary_dim': 2, 'model.attention_window': 5, 'model.layer_types': 'sliding,full', 'model.logits_softcap': 3,
          'activation_checkpoint.mode': 'full'}
SHARING = {**tiny.SHARING, 'activation_checkpoint.mode': 'full'}
NUMBERS = ('step', 'loss', 'grad_norm', 'targets', 'tokens')


def write_documents(name, seed, count, masked, tokenizer=0, words=tiny.COMMON['model.vocab_size']):
    """Documents of 0 to 30 tokens, some longer than a row; tokenizer: the hash of its file. Returns the absolute path."""
    draw = random.Random(seed)
    lengths = [draw.randrange(31) for _ in range(count)]
    offsets = [sum(lengths[:i]) for i in range(count + 1)]
    tokens = [draw.randrange(words) for _ in range(offsets[-1])]
    bits = [draw.random() < 0.7 for _ in tokens] + [0] * 7
    mask = bytes(sum(bits[i + k] << k for k in range(8)) for i in range(0, len(tokens), 8)) if masked else b''
    sections = [array.array('q', offsets).tobytes(), array.array('H', tokens).tobytes(), mask]
    places, end = [], 4096
    for section in sections:
        places.append(end)
        end += (len(section) + 4095) // 4096 * 4096
    header = struct.pack('<4i5qQi', 0x44524853, 1, 2, int(masked), len(tokens), count, *places[:2],
                         places[2] if masked else 0, tokenizer, words)
    data = bytearray(header.ljust(4096, b'\0'))
    for place, section in zip(places, sections):
        data.extend(bytes(place - len(data)) + section if section else b'')
    path = pathlib.Path(name).absolute()
    path.write_bytes(data)
    return str(path)


def config(kind, changes):
    data = {'rows': {'training.dataset_path': masked}, 'delta': {'training.dataset_path': masked, **DELTA},
            'scan': {'training.dataset_path': masked, **SCAN}, 'granite': {'training.dataset_path': masked, **GRANITE},
            'gemma4': {'training.dataset_path': masked, **GEMMA4},
            'sharing': {'training.dataset_path': masked, **SHARING}, 'mix': {'data.mix': {masked: 0.6, plain: 0.4}}}[kind]
    model = tiny.MODELS['gpt2' if kind == 'rows' else 'llama']
    return {'job.dump_folder': 'out', **model, **CONFIG, **data, **changes}


def yaml(config):
    return job.yaml({k: v for k, v in config.items() if k != 'data.mix'}).replace(
        'data:\n', 'data:\n' + ''.join(f'  mix: {{{", ".join(f"{k}: {w}" for k, w in v.items())}}}\n'
                                       for k, v in config.items() if k == 'data.mix'))


def train(folder, kind, ranks, changes, fresh=True):
    folder = pathlib.Path(folder)
    if fresh:
        job.prepare(folder, {})
    (folder / 'c.yaml').write_text(yaml(config(kind, changes)))
    job.sherd('train', 'c.yaml', ranks=ranks, folder=folder)
    return [[step.get(key) for key in NUMBERS] for step in job.metrics(folder)]


def case_mesh(kind, mesh):
    """The number of sequences in an epoch has no divisors, so steps cross its end."""
    ranks, changes = MORE[mesh]
    found = train('run', kind, ranks, changes)
    shutil.rmtree('run')
    return [] if found == one[kind] else [f'{found}, expected {one[kind]}']


def case_resume(kind):
    """Steps 1 to 3 on four ranks, 4 to 6 on one, the rest on two."""
    steps = []
    for stop, (ranks, changes) in ((3, MESHES['hybrid_shard 2 x 2']), (6, (1, {})), (10, MESHES['full_shard over 2'])):
        steps = train('again', kind, ranks, {**changes, 'training.steps': stop}, fresh=not steps)
    shutil.rmtree('again')
    return [] if steps == one[kind] else [f'{steps}, expected {one[kind]}']


def case_plan():
    """A plan reads the file: it has the operand that keeps documents apart."""
    folder = job.prepare('plan', {})
    (folder / 'c.yaml').write_text(yaml(config('rows', {})))
    shown = job.sherd('plan', 'c.yaml', '--show', folder=folder)
    return [] if 'docs' in shown else [shown]


def case_eval():
    """The configuration of a checkpoint says that its data were rows; another file may be given, and must have rows
    too."""
    folder = pathlib.Path('evaluated')
    train(folder, 'rows', 1, {'training.steps': 3})
    state = folder / 'out/checkpoint/step-00000003.h5'
    said = job.sherd('eval', '--checkpoint', state, '--data', plain)
    wrong = [] if said.startswith('loss ') else [said]
    try:
        job.sherd('eval', '--checkpoint', state, '--data', tiny.write_tokens())
        wrong.append('a stream was taken')
    except job.Failed as failed:
        wrong += [] if 'has no documents to pack' in str(failed) else [str(failed)]
    return wrong


def case_other_tokenizer():
    """A model's folder has the tokenizer whose ids the model knows."""
    folder = job.prepare('model', {})
    shutil.copytree(job.TOP / 'tests/hf/llama', folder / 'hf')
    (folder / 'hf/tokenizer.json').write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}')
    words = ['train', '--model.hf=hf', '--data.excess_length_strategy=split', '--training.seq_len=12', '--training.steps=1']
    write_documents('model/other.bin', 1, 90, False, tokenizer=7, words=32)
    write_documents('model/any.bin', 1, 90, False, words=32)
    done = subprocess.run(job.command(0, [*words, '--training.dataset_path=any.bin']), cwd=folder, capture_output=True,
                          text=True, env=job.environment(0), check=True)
    if not re.search(r'\n90 documents in \d+ sequences, \d+\.\d % full, \d+ longer than a sequence, \d+ of them left out\n',
                     done.stderr):
        return [done.stderr]
    return refused(folder, words, 'other.bin', 7)[1] + named_tokenizer(folder, words)


def refused(folder, words, name, made_with):
    """(hash of the model's tokenizer as printed in the line, what is wrong)"""
    try:
        job.sherd(*words, f'--training.dataset_path={name}', '--job.dump_folder=new', folder=folder)
    except job.Failed as failed:
        said = re.search(rf'training.dataset_path: {name} was made with another tokenizer.json \(hash {made_with:016x}\) than '
                         r"the model's \(([0-9a-f]{16})\)", str(failed))
        return int(said[1], 16) if said else 0, [] if said and ': exit 3\n' in str(failed) else [str(failed)]
    return 0, [f'{words} {name}: it was taken']


def named_tokenizer(folder, words):
    """model.tokenizer, a folder or its file, takes precedence over the model's folder, which need not have a
    tokenizer."""
    (folder / 'words').mkdir()
    (folder / 'words/tokenizer.json').write_text('{"model": {"type": "BPE", "vocab": {"b": 0}, "merges": []}}')
    hashes, wrong = [], []
    for tokenizer in [], ['--model.tokenizer=words'], ['--model.tokenizer=words/tokenizer.json']:
        found, bad = refused(folder, [*words, *tokenizer], 'other.bin', 7)
        hashes.append(found)
        wrong += bad
    if wrong or hashes[0] == hashes[1] or hashes[1] != hashes[2]:
        return [*wrong, f'hashes {hashes}']
    write_documents('model/named.bin', 1, 90, False, tokenizer=hashes[1], words=32)
    job.sherd(*words, '--model.tokenizer=words', '--training.dataset_path=named.bin', '--job.dump_folder=named', folder=folder)
    wrong = refused(folder, words, 'named.bin', hashes[1])[1]
    (folder / 'alone.yaml').write_text('model: {name: custom, family: gpt2, n_layers: 1, dim: 8, n_heads: 1, vocab_size: 32, '
                                       'max_seq_len: 12}\n')
    no_folder = ['alone.yaml' if word.startswith('--model.hf') else word for word in words] + ['--model.tokenizer=words']
    return wrong + refused(folder, no_folder, 'other.bin', 7)[1]


if __name__ == '__main__':
    job.need_launcher()
    masked, plain = write_documents('masked.bin', 1, 90, True), write_documents('plain.bin', 2, 50, False)
    one = {kind: train(f'one-{kind}', kind, 1, {}) for kind in ('rows', 'delta', 'scan', 'granite', 'gemma4', 'sharing', 'mix')}
    sys.exit(job.run_cases([*((f'{kind}: {mesh}', case_mesh, kind, mesh) for kind in one for mesh in MESHES
                              if kind not in ('scan', 'granite') or mesh.startswith('hybrid')),
                            ('sharing: full_shard over 4', case_mesh, 'sharing', 'full_shard over 4'),
                            *((f'{kind}: resumed', case_resume, kind) for kind in one if kind != 'scan'), ('plan', case_plan),
                            ('eval', case_eval), ('another tokenizer', case_other_tokenizer)]))
