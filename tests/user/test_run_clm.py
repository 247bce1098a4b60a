#!/usr/bin/env python3
"""Each option of `sherd run_clm` sets its keys, and no others; options that Sherd cannot follow are refused. Prints
TAP."""
import array
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

TOKENS = 1601  # 100 windows of 16
BASE = ('--model_name_or_path', 'model', '--train_file', 't.bin', '--block_size', '16')
# The Trainer's number of steps, with 100 windows in steps of 8: 13 per epoch.
DEFAULTS = {
    'job.dump_folder': 'trainer_output', 'model.hf_assets_path': 'model', 'training.dataset_path': 't.bin',
    'training.seq_len': '16', 'training.local_batch_size': '8', 'training.global_batch_size': '8',
    'training.steps': '39', 'training.max_norm': '1', 'training.mixed_precision_param': 'float32',
    'optimizer.name': 'adamw', 'optimizer.lr': '5e-05',
    'optimizer.beta1': '0.9', 'optimizer.beta2': '0.999', 'optimizer.eps': '1e-08', 'optimizer.weight_decay': '0',
    'lr_scheduler.decay_type': 'linear', 'lr_scheduler.min_lr_factor': '0', 'lr_scheduler.warmup_steps': '0',
    'activation_checkpoint.mode': 'none', 'checkpoint.interval': '500', 'checkpoint.keep_latest_k': '0',
    'checkpoint.last_save_in_hf': 'true', 'metrics.log_freq': '500', 'validation.enable': 'false', 'debug.seed': '42',
    'parallelism.sharding_strategy': 'no_shard',
}
EVALUATES = {'validation.enable': 'true', 'validation.dataset_path': 'v.bin', 'validation.sequences': '0'}
# Options, and all keys to which they give another value.
WORDS = [
    ('--block_size 32', {'training.seq_len': '32', 'training.steps': '21'}),
    ('--per_device_train_batch_size 4', {'training.local_batch_size': '4', 'training.global_batch_size': '4',
                                         'training.steps': '75'}),
    ('--gradient_accumulation_steps 3', {'training.global_batch_size': '24', 'training.steps': '15'}),
    ('--num_train_epochs 2', {'training.steps': '26'}),
    ('--num_train_epochs 0.5', {'training.steps': '7'}),
    ('--max_steps 5', {'training.steps': '5'}),
    ('--max_steps -1', {}),
    ('--max_steps 5 --num_train_epochs 2', {'training.steps': '5'}),
    ('--learning_rate 1e-3', {'optimizer.lr': '0.001'}),
    ('--weight_decay 0.25', {'optimizer.weight_decay': '0.25'}),
    ('--adam_beta1 0.75', {'optimizer.beta1': '0.75'}),
    ('--adam_beta2 0.75', {'optimizer.beta2': '0.75'}),
    ('--adam_epsilon 1e-6', {'optimizer.eps': '1e-06'}),
    ('--max_grad_norm 2', {'training.max_norm': '2'}),
    ('--lr_scheduler_type linear', {}),
    ('--lr_scheduler_type cosine', {'lr_scheduler.decay_type': 'cosine'}),
    ('--lr_scheduler_type constant', {'lr_scheduler.decay_type': 'constant'}),
    ('--lr_scheduler_type constant_with_warmup --warmup_steps 3', {'lr_scheduler.decay_type': 'constant',
                                                                   'lr_scheduler.warmup_steps': '3'}),
    ('--warmup_steps 4', {'lr_scheduler.warmup_steps': '4'}),
    ('--warmup_ratio 0.1', {'lr_scheduler.warmup_steps': '4'}),
    ('--warmup_ratio 0.5 --warmup_steps 2', {'lr_scheduler.warmup_steps': '2'}),
    ('--bf16', {'training.mixed_precision_param': 'bfloat16'}),
    ('--bf16 True', {'training.mixed_precision_param': 'bfloat16'}),
    ('--bf16=yes', {'training.mixed_precision_param': 'bfloat16'}),
    ('--bf16 1 --seed 7', {'training.mixed_precision_param': 'bfloat16', 'debug.seed': '7'}),
    ('--bf16 False', {}),
    ('--fp16 False', {}),
    ('--fp16', {'training.mixed_precision_param': 'float16'}),
    ('--gradient_checkpointing', {'activation_checkpoint.mode': 'full'}),
    ('--gradient_checkpointing true', {'activation_checkpoint.mode': 'full'}),
    ('--gradient_checkpointing N', {}),
    ('--tokenizer_name byte', {'model.tokenizer': 'byte'}),
    ('--fsdp', {'parallelism.sharding_strategy': 'full_shard'}),
    ('--fsdp --bf16', {'parallelism.sharding_strategy': 'full_shard', 'training.mixed_precision_param': 'bfloat16'}),
    ('--fsdp True', {'parallelism.sharding_strategy': 'full_shard'}),
    ('--fsdp False', {}),
    ('--fsdp auto_wrap', {'parallelism.sharding_strategy': 'full_shard'}),
    ('--fsdp "full_shard auto_wrap"', {'parallelism.sharding_strategy': 'full_shard'}),
    ('--fsdp shard_grad_op,auto_wrap', {'parallelism.sharding_strategy': 'shard_grad_op'}),
    ('--fsdp "hybrid_shard auto_wrap"', {'parallelism.sharding_strategy': 'hybrid_shard'}),
    ('--fsdp hybrid_shard_zero2', {'parallelism.sharding_strategy': 'hybrid_shard_zero2'}),
    ('--fsdp no_shard', {}),
    ('--output_dir "a b\\"c"', {'job.dump_folder': 'a b"c'}),
    ('--save_steps 7', {'checkpoint.interval': '7'}),
    ('--save_total_limit 2', {'checkpoint.keep_latest_k': '2'}),
    ('--logging_steps 9', {'metrics.log_freq': '9'}),
    ('--seed 7', {'debug.seed': '7'}),
    ('--do_train', {}),
    ('--do_train True --do_eval False', {}),
    ('--do_train True --do_eval True --validation_file v.bin', {**EVALUATES, 'validation.freq': '39'}),
    ('--do_train --do_eval --validation_file v.bin', {**EVALUATES, 'validation.freq': '39'}),
    ('--eval_steps 6 --validation_file v.bin', {**EVALUATES, 'validation.freq': '6'}),
    # Keys are allowed after the options and before them.
    ('--learning_rate 1e-3 --optimizer.lr=2e-3', {'optimizer.lr': '0.002'}),
    ('--lora.rank=2', {'lora.rank': '2', 'checkpoint.last_save_in_hf': 'false'}),
    ('--fsdp full_shard --parallelism.zero_stage=2', {'parallelism.sharding_strategy': 'shard_grad_op'}),
    ('--training.steps=50 --warmup_ratio=0.1', {'training.steps': '50', 'lr_scheduler.warmup_steps': '5'}),
    ('--lr_scheduler_type constant --optimizer.name=lion',
     {'lr_scheduler.decay_type': 'constant', 'optimizer.name': 'lion'}),
]
# --fsdp and the keys of --fsdp_config, and the other keys that these set.
FILES = [
    ('full_shard', {'activation_checkpointing': True}, {'activation_checkpoint.mode': 'full'}),
    ('full_shard', {'fsdp_forward_prefetch': False}, {'parallelism.forward_prefetch': '0'}),
    ('full_shard', {'backward_prefetch': 'no_prefetch'}, {'parallelism.backward_prefetch': '0'}),
    ('full_shard', {'reshard_after_forward': False}, {'parallelism.sharding_strategy': 'shard_grad_op'}),
    ('hybrid_shard', {'reshard_after_forward': False}, {'parallelism.sharding_strategy': 'hybrid_shard_zero2'}),
    ('full_shard', {'reshard_after_forward': True, 'backward_prefetch': 'backward_pre', 'use_orig_params': True,
                    'fsdp_transformer_layer_cls_to_wrap': ['LlamaDecoderLayer'], 'sync_module_states': True,
                    'cpu_ram_efficient_loading': True, 'forward_prefetch': True, 'offload_params': False}, {}),
]
REFUSED = [
    ('--model_name meta-llama/Llama-2-70b', 'is not a folder here; nothing is downloaded'),
    ('--model_name model --model_name_or_path model', 'each give the whole model; give one'),
    ('--max_steps 3', 'which model?'),
    ('--model_name model', 'on what?'),
    ('--model_name model --learning_rat 3', 'nearest is --learning_rate'),
    ('--model_name model --bf16 maybe', '--bf16 takes True, False or no value, not "maybe"'),
    ('--model_name model extra', '"extra" is not an option'),
    ('--model_name model --fp16 --bf16', '--fp16 and --bf16 are two types'),
    ('--model_name model --do_train False', '--do_train False does not train'),
    ('--model_name model --config_name model', '--model_name and --config_name each give the whole model; give one'),
    ('--model_name model --model_type gpt2', '--model_name and --model_type each give the whole model'),
    ('--model.hf=model --model_type gpt2', '--model.hf and --model_type each give the whole model'),
    ('--model_type gpt3 --max_steps 3', '--model_type: model_type gpt3 is not known here; nearest is gpt2'),
    ('--model_type mixtral --max_steps 3', 'its feed-forward layers are experts'),
    ('--model_type gpt2 --config_overrides n_embd=64', 'use keys of Sherd with --model_type'),
    ('--config_name gone --max_steps 3', 'is not a folder here'),
    ('--model_name model --max_steps 3 --learning_rate x', "optimizer.lr: 'x' is not a number"),
    ('--model_name model --lr_scheduler_type polynomial', 'must be linear, cosine, constant'),
    ('--model_name model --lr_scheduler_type constant --warmup_steps 3', 'constant_with_warmup has one'),
    ('--model_name model --warmup_ratio 1.5', '--warmup_ratio must be a number from 0 to 1', '--max_steps=3'),
    ('--model_name model --gradient_accumulation_steps 0', '--gradient_accumulation_steps must be a whole number'),
    ('--model_name model --num_train_epochs 0', '--num_train_epochs must be a number'),
    ('--model_name model --fsdp "full_shard offload"', '--fsdp offload: leave it out; on GPUs give --training.enable_cpu_offload=true'),
    ('--model_name model --fsdp "full_shard offload auto_wrap"', '--offload.optimizer=nvme --offload.nvme_path=DIR'),
    ('--model_name model --fsdp "full_shard no_shard"', 'two strategies, full_shard and no_shard'),
    ('--model_name model --fsdp ful_shard', 'nearest is full_shard'),
    ('--model_name model --fsdp_config f.json', '--fsdp_config without --fsdp'),
    ('--model_name model --do_eval', '--do_eval without --do_train'),
    ('--model_name model --do_train --do_eval', 'need --validation_file'),
    ('--model_name model --eval_steps 3', 'need --validation_file'),
    ('--model_name model --validation_file v.bin', 'without --do_eval or --eval_steps is not used'),
    ('--model_name model --train_file a.csv', '`sherd tokenize a.csv -o train.bin --tokenizer model --format text`'),
    ('--model_name model --train_file a.txt', 'there is no model/tokenizer.json'),
    ('--model_name model --train_file gone.bin', 'gone.bin'),
]
BAD_FILES = [
    ({'offload_params': True}, 'offload_params: leave it out; on GPUs give --training.enable_cpu_offload=true'),
    ({'fsdp_offload_params': True}, '--offload.optimizer=nvme'),
    ({'offload_params': 'yes'}, 'offload_params: this value is not supported'),
    ({'forward_prefetc': True}, 'nearest is forward_prefetch'),
    ({'use_orig_params': False}, 'use_orig_params: this value is not supported'),
    ({'activation_checkpointing': 'yes'}, 'activation_checkpointing: this value is not supported'),
    ([1], 'is a list, not an object'),
]


def run(*words):
    command = job.command(0, ['run_clm', *words, '--print-config'])
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=job.environment(0),
                          timeout=job.SECONDS)


def keys_of(words):
    done = run(*words)
    if done.returncode != 0:
        raise job.Failed(f'{" ".join(words)}: {done.stderr}')
    section, found = '', {}
    for line in done.stdout.splitlines():
        name, value = re.fullmatch(r' *([a-z0-9_]+):(.*)', line).groups()
        value = value.strip()
        if line[0] != ' ':
            section = name
        else:
            found[f'{section}.{name}'] = json.loads(value) if value[:1] == '"' else value
    return found


def case_defaults():
    found = keys_of(BASE)
    return [f'{key}: {found.get(key)}, not {value}' for key, value in DEFAULTS.items() if found.get(key) != value]


def compare(words, wanted, first):
    """BASE with other options: an option of BASE that is given again is replaced."""
    base = list(BASE)
    for word in [word for word in words if word in BASE]:
        del base[base.index(word):base.index(word) + 2]
    second = keys_of([*base, *words])
    changed = {key: value for key, value in second.items() if value != first.get(key)}
    return [] if changed == wanted else [f'{" ".join(words)}: changes {changed}, not {wanted}']


def case_words():
    first = keys_of(BASE)
    return [line for words, wanted in WORDS for line in compare(shlex.split(words), wanted, first)]


def case_names():
    """Both names of the model."""
    return compare(('--model_name_or_path', './model'), {'model.hf_assets_path': './model'}, keys_of(BASE)) + [
        'not the same' for _ in [0] if keys_of(('--model_name', *BASE[1:])) != keys_of(BASE)]


def case_from_scratch():
    """A folder without its weights, and the sizes of a class, some of which Sherd's keys change."""
    first, folder = keys_of(BASE), keys_of(('--config_name', *BASE[1:]))
    changed = {key: value for key, value in folder.items() if value != first.get(key)}
    wrong = [] if changed == {'checkpoint.initial_load_in_hf': 'false'} else [f'--config_name changes {changed}']
    found = keys_of(('--model_type', 'gpt2', *BASE[2:]))
    sizes = {'family': 'gpt2', 'n_layers': '12', 'dim': '768', 'n_heads': '12', 'head_dim': '64', 'ffn_dim': '3072',
             'vocab_size': '50257', 'max_seq_len': '1024', 'tie_word_embeddings': 'true', 'hf_assets_path': ''}
    wrong += [f'gpt2: {key} is {found["model." + key]}' for key, value in sizes.items() if found['model.' + key] != value]
    found = keys_of(('--model_type', 'gpt2', *BASE[2:], '--model.dim=64', '--model.n_heads=2', '--model.n_layers=1'))
    sizes = {'n_layers': '1', 'dim': '64', 'n_heads': '2', 'n_kv_heads': '2', 'head_dim': '32', 'ffn_dim': '256'}
    wrong += [f'smaller: {key} is {found["model." + key]}' for key, value in sizes.items() if found['model.' + key] != value]
    found = keys_of(('--model_type', 'gemma3_text', *BASE[2:], '--max_steps', '3'))
    sizes = {'attention_window': '4096', 'full_attention_interval': '6', 'head_dim': '256'}
    return wrong + [f'gemma3: {key} is {found["model." + key]}' for key, value in sizes.items() if found['model.' + key] != value]


def case_trains_from_scratch():
    """The resulting folder is one of that class."""
    words = ('run_clm', '--model_type', 'gpt2', '--train_file', 't.bin', '--block_size', '16', '--max_steps', '2', '--model.dim=8',
             '--model.n_heads=2', '--model.n_layers=1', '--model.vocab_size=32', '--output_dir', 'scratch')
    job.sherd(*words)
    config = json.loads(pathlib.Path('scratch/checkpoint/hf-00000002/config.json').read_text())
    return [] if config['model_type'] == 'gpt2' and config['n_embd'] == 8 else [str(config)]


def case_block_size():
    """1024, or the model's length if that is less."""
    found = keys_of(BASE[:4])['training.seq_len']
    config = json.loads(pathlib.Path('model/config.json').read_text())
    shutil.copytree('model', 'longer')
    pathlib.Path('longer/config.json').write_text(json.dumps({**config, 'max_position_embeddings': 4096}))
    longer = keys_of(('--model_name', 'longer', '--train_file', 't.bin'))['training.seq_len']
    return [] if (found, longer) == ('64', '1024') else [f'{found} and {longer}, not 64 and 1024']


def case_fsdp_config():
    wrong = []
    for strategy, file, wanted in FILES:
        pathlib.Path('f.json').write_text(json.dumps(file))
        first = keys_of([*BASE, '--fsdp', strategy])
        wrong += compare(['--fsdp', strategy, '--fsdp_config', 'f.json'], wanted, first)
    return wrong


def refused(words, text):
    done = run(*words)
    if done.returncode in (2, 3) and text in done.stderr and done.stderr.count('\n') == 1:
        return []
    return [f'{" ".join(words)}: status {done.returncode}: {done.stderr or done.stdout[:80]}']


def case_refused():
    wrong = []
    for words, text, *more in REFUSED:
        wrong += refused([*shlex.split(words), *more], text)
    pathlib.Path('model/tokenizer.json').write_text('{}')
    wrong += refused(['--model_name', 'model', '--train_file', 'a.txt'], 'add --max_steps N')
    pathlib.Path('model/tokenizer.json').unlink()
    for file, text in BAD_FILES:
        pathlib.Path('f.json').write_text(json.dumps(file))
        wrong += refused([*BASE, '--fsdp', 'full_shard', '--fsdp_config', 'f.json'], text)
    pathlib.Path('f.json').write_text('{')
    return wrong + refused([*BASE, '--fsdp', 'full_shard', '--fsdp_config', 'f.json'], 'f.json: line 1')


def options():
    return re.findall(r'^ *(--[a-z0-9_]+)', job.sherd('run_clm', '--help'), re.M)


def case_all_words():
    """Every option has a row above."""
    rows = ' '.join([*BASE, *(words for words, _ in WORDS), *(row[0] for row in REFUSED)])
    names = [name for name in options() if name not in ('--print-config', '--print', '--help')]
    without = [f'{name} has no row' for name in names if f'{name} ' not in rows + ' ']
    return without + ([] if len(names) > 25 else [f'only {names}'])


def main():
    folder = job.TOP / 'tests/hf/llama'
    shutil.rmtree('longer', ignore_errors=True)
    shutil.rmtree('model', ignore_errors=True)
    pathlib.Path('model').mkdir()
    for path in folder.iterdir():
        shutil.copyfile(path, pathlib.Path('model') / path.name)
    for name in ('t.bin', 'v.bin'):
        pathlib.Path(name).write_bytes(array.array('H', (i * 7 % 32 for i in range(TOKENS))).tobytes())
    pathlib.Path('a.txt').write_text('ab')
    return job.run_cases([('defaults are those of Trainer', case_defaults), ('each word sets its keys', case_words),
                          ('both names of the model', case_names), ('the length of a block', case_block_size),
                          ('a model from scratch', case_from_scratch), ('one is trained', case_trains_from_scratch),
                          ('a file of FSDP', case_fsdp_config), ('what cannot be done is refused', case_refused),
                          ('each word has a row', case_all_words)])


if __name__ == '__main__':
    sys.exit(main())
