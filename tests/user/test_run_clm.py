#!/usr/bin/env python3
"""Each option of `sherd run_clm` sets its keys, and no others; options that Sherd cannot follow are refused. Prints
TAP."""
import array
import ast
import importlib.util
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

HEADER = 1024  # bytes of a token file before its tokens
TOKENS = 1601  # 100 windows of 16
BASE = ('--model_name_or_path', 'model', '--train_file', 't.bin', '--block_size', '16')
# 3 epochs of 100 windows in steps of 8.
DEFAULTS = {
    'job.dump_folder': 'trainer_output', 'model.hf_assets_path': 'model', 'training.dataset_path': 't.bin',
    'training.seq_len': '16', 'training.local_batch_size': '8', 'training.global_batch_size': '8',
    'training.steps': '38', 'training.max_norm': '1', 'training.mixed_precision_param': 'float32',
    'optimizer.name': 'adamw', 'optimizer.lr': '5e-05',
    'optimizer.beta1': '0.9', 'optimizer.beta2': '0.999', 'optimizer.eps': '1e-08', 'optimizer.weight_decay': '0',
    'lr_scheduler.decay_type': 'linear', 'lr_scheduler.min_lr_factor': '0', 'lr_scheduler.warmup_steps': '0',
    'activation_checkpoint.mode': 'none', 'checkpoint.interval': '500', 'checkpoint.keep_latest_k': '0',
    'checkpoint.last_save_in_hf': 'true', 'metrics.log_freq': '500', 'validation.enable': 'false', 'debug.seed': '42',
    'parallelism.sharding_strategy': 'no_shard',
}
TOKENIZER = {'version': '1.0', 'added_tokens': [{'id': 2, 'content': '<end>', 'single_word': False, 'lstrip': False, 'rstrip': False,
                                                  'normalized': False, 'special': True}],
             'model': {'type': 'BPE', 'vocab': {'a': 0, 'b': 1, '<end>': 2, 'ab': 3, 'c': 4}, 'merges': [['a', 'b']]}}
EVALUATES = {'validation.enable': 'true', 'validation.dataset_path': 'v.bin', 'validation.sequences': '0'}
# Options, and all keys to which they give another value.
WORDS = [
    ('--block_size 32', {'training.seq_len': '32', 'training.steps': '19'}),
    ('--per_device_train_batch_size 4', {'training.local_batch_size': '4', 'training.global_batch_size': '4',
                                         'training.steps': '75'}),
    ('--gradient_accumulation_steps 3', {'training.global_batch_size': '24', 'training.steps': '13'}),
    ('--num_train_epochs 2', {'training.steps': '25'}),
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
    ('--lr_scheduler_type inverse_sqrt', {'lr_scheduler.decay_type': 'power'}),
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
    ('--do_train True --do_eval True --validation_file v.bin', {**EVALUATES, 'validation.freq': '38'}),
    ('--do_train --do_eval --validation_file v.bin', {**EVALUATES, 'validation.freq': '38'}),
    ('--eval_steps 6 --validation_file v.bin', {**EVALUATES, 'validation.freq': '6'}),
    # What a word of a strategy, and a share of the steps, mean.
    ('--eval_strategy steps --validation_file v.bin', {**EVALUATES, 'validation.freq': '500'}),
    ('--evaluation_strategy epoch --validation_file v.bin', {**EVALUATES, 'validation.freq': '13'}),
    ('--eval_strategy no', {}),
    ('--eval_steps 0.5 --validation_file v.bin', {**EVALUATES, 'validation.freq': '19'}),
    ('--logging_strategy epoch', {'metrics.log_freq': '13'}),
    ('--logging_strategy no', {'metrics.log_freq': '1000000000000'}),
    ('--logging_steps 0.1', {'metrics.log_freq': '4'}),
    ('--save_strategy epoch', {'checkpoint.interval': '13'}),
    ('--save_strategy no', {'checkpoint.interval': '1000000000000'}),
    ('--save_steps 0.25', {'checkpoint.interval': '10'}),
    ('--warmup_steps 0.1', {'lr_scheduler.warmup_steps': '4'}),
    ('--max_eval_samples 9 --do_train --do_eval --validation_file v.bin',
     {**EVALUATES, 'validation.sequences': '9', 'validation.freq': '38'}),
    ('--overwrite_output_dir', {}),
    ('--resume_from_checkpoint', {}),
    ('--resume_from_checkpoint trainer_output', {}),
    # Words that have a key, or a value that has.
    ('--per_gpu_train_batch_size 4', {'training.local_batch_size': '4', 'training.global_batch_size': '4', 'training.steps': '75'}),
    ('--optim adamw_torch_fused', {}),
    ('--optim sgd', {'optimizer.name': 'sgd', 'optimizer.beta1': '0'}),
    ('--optim lion_32bit', {'optimizer.name': 'lion'}),
    ('--optim adamw_bnb_8bit', {'optimizer.state_dtype': 'int8'}),
    ('--optim lion_8bit', {'optimizer.name': 'lion', 'optimizer.state_dtype': 'int8'}),
    ('--optim muon', {'optimizer.name': 'muon'}),
    ('--optim normuon', {'optimizer.name': 'normuon'}),
    ('--dtype bfloat16', {'training.mixed_precision_param': 'bfloat16'}),
    ('--dtype float16', {'training.mixed_precision_param': 'float16'}),
    ('--torch_dtype bfloat16 --bf16', {'training.mixed_precision_param': 'bfloat16'}),
    ('--torch_dtype float16', {'training.mixed_precision_param': 'float16'}),
    ('--activation_checkpointing', {'activation_checkpoint.mode': 'full'}),
    ('--disable_tqdm True', {'metrics.progress': 'false'}),
    ('--run_name first', {'job.description': 'first'}),
    ('--full_determinism', {}),
    ('--use_cpu', {'training.device': 'cpu'}),
    ('--no_cuda', {'training.device': 'cpu'}),
    ('--train_sampling_strategy random', {}),
    ('--train_sampling_strategy sequential', {'data.shuffle': 'false'}),
    ('--ddp_timeout 60', {'comm.train_timeout_seconds': '60'}),
    ('--lora_r 2 --lora_alpha 3 --use_rslora --lora_target_modules q_proj v_proj',
     {'lora.rank': '2', 'lora.alpha': '3', 'lora.use_rslora': 'true', 'lora.target_modules': 'q_proj,v_proj',
      'checkpoint.last_save_in_hf': 'false'}),
    ('--lora_rank 2 --load_in_4bit True', {'lora.rank': '2', 'lora.quantize_base': 'nf4', 'checkpoint.last_save_in_hf': 'false'}),
    ('--max_length 32 --max_steps 2', {'training.seq_len': '32', 'training.steps': '2'}),
    ('--max_seq_length 32 --max_steps 2', {'training.seq_len': '32', 'training.steps': '2'}),
    # As HfArgumentParser has it.
    ('--learning-rate 1e-3', {'optimizer.lr': '0.001'}),
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
    ('--model_name model', 'no training data: give --train_file'),
    ('--model_name model --learning_rat 3', 'nearest is --learning_rate'),
    ('--model_name model --foo 3', 'no option --foo; see'),
    ('--model_name meta-llama/Llama-2-7b',
     '`hf download meta-llama/Llama-2-7b --local-dir Llama-2-7b`, then give Llama-2-7b'),
    ('--model_name ./gone', 'there is no folder ./gone here'),
    ('--model_name model --tokenizer_name gpt2', '`hf download gpt2 --local-dir gpt2`, then give gpt2'),
    ('--model_name model --bf16 maybe', '--bf16 maybe: takes True, False or no value'),
    ('--model_name model --do_train maybe', '--do_train takes True, False or no value, not "maybe"'),
    ('--model_name model --dtype float16 --bf16', 'contradict each other: training.mixed_precision_param is'),
    ('--model_name model extra', '"extra" is not an option'),
    ('--model_name model --fp16 --bf16', 'contradict each other: training.mixed_precision_param is bfloat16 or float16'),
    ('--model_name model --do_train False', '--do_train False does not train'),
    ('--model_name model --config_name model', '--model_name and --config_name each give the whole model; give one'),
    ('--model_name model --model.name=gpt2-124m', 'model.name: a preset as well as model.hf_assets_path, given by --model_name; give'),
    ('--config_name model --model.name=gpt2-124m', 'model.hf_assets_path, given by --config_name; give one of them'),
    ('--model_name model --block_size 1000', ' --block_size: training.seq_len: 1000 is longer than'),
    ('--model_name model --max_steps 3 --warmup_steps 9', ' --warmup_steps: lr_scheduler.warmup_steps: 9 is more than all 3'),
    ('--model_name model --optim sgd --adam_beta2 0.5', ' --adam_beta2: optimizer.beta2: has no effect without'),
    ('--model_name model --per_device_train_batch_size 3 --training.global_batch_size=7',
     'local_batch_size 3, given by --per_device_train_batch_size; give'),
    ('--model_name model --model_type gpt2', '--model_name and --model_type each give the whole model'),
    ('--model.hf=model --model_type gpt2', '--model.hf and --model_type each give the whole model'),
    ('--model_type gpt3 --max_steps 3', '--model_type: model_type gpt3 is not known here; nearest is gpt2'),
    ('--model_type mamba --max_steps 3', 'it has no attention, but a state space'),
    ('--model_name model --max_steps 3 --lora_r 2 --lora_target_parameters mlp.experts.down_proj',
     '--lora_target_parameters: lora.target_parameters: llama has no experts'),
    ('--model_name model --config_overrides n_embd=64', 'changes the sizes of a --model_type'),
    ('--model_type gpt2 --config_overrides n_embd', '"n_embd" is not name=value'),
    ('--config_name gone --max_steps 3', 'is not a folder here'),
    ('--model_name model --max_steps 3 --learning_rate x', "--learning_rate: optimizer.lr: 'x' is not a number"),
    ('--model_name model --optim schedule_free_adamw', 'it evaluates other parameters than it trains'),
    ('--model_name model --optim adamw_torch_4bit', 'no kernel has states of four bits'),
    ('--model_name model --optim adamw-4-bit', 'no kernel has states of four bits'),
    ('--model_name model --optim soap', '--optim soap: its states are square matrices beside each matrix'),
    ('--model_name model --optim schedulefree', 'validation.ema averages them too'),
    ('--model_name model --optim ./mine.so', 'plug-ins bring operations and losses'),
    ('--model_name model --optim Shampoo', '--optim Shampoo: its states are square matrices beside each matrix'),
    ('--model_name model --optim dion2', "it makes Muon's step from factors of low rank"),
    ('--model_name model --optim galore_adamw', 'give adamw_8bit, whose states are small'),
    ('--model_name model --optim paged_adamw_8bit', 'give adamw_torch, adamw_8bit or lion_8bit, whose states --offload.optimizer=nvme --offload.nvme_path=DIR puts in a file'),
    ('--model_name model --optim schedule_free_adamw', 'it evaluates other parameters than it trains'),
    ('--model_name model --optim rmsprop', 'give adamw, lion or muon'),
    ('--model_name model --lr_scheduler_type polynomial', 'lr_scheduler.decay_type is linear, cosine, constant'),
    ('--model_name model --lr_scheduler_type constant --warmup_steps 3', 'constant_with_warmup has one'),
    ('--model_name model --warmup_ratio 1.5', '--warmup_ratio must be a number from 0 to 1', '--max_steps=3'),
    ('--model_name model --gradient_accumulation_steps 0', '--gradient_accumulation_steps must be a whole number'),
    ('--model_name model --num_train_epochs 0', '--num_train_epochs must be a number'),
    ('--model_name model --fsdp "full_shard offload"', '--fsdp offload: leave it out; on GPUs give --training.enable_cpu_offload=true'),
    ('--model_name model --fsdp "full_shard offload auto_wrap"', '--offload.optimizer=nvme --offload.nvme_path=DIR'),
    ('--model_name model --fsdp "full_shard no_shard"', 'contradict each other: parallelism.sharding_strategy is full_shard or no_shard'),
    ('--model_name model --fsdp ful_shard', '--fsdp ful_shard: parallelism.sharding_strategy is full_shard, shard_grad_op'),
    ('--model_name model --fsdp_config f.json', '--fsdp_config without --fsdp'),
    ('--model_name model --do_eval --validation_file v.bin', '--do_eval without --do_train'),
    ('--model_name model --do_train --do_eval', 'need --validation_file'),
    ('--model_name model --eval_steps 3', 'need --validation_file'),
    ('--model_name model --validation_file v.bin', 'without --do_eval, --eval_strategy or --eval_steps is not used'),
    ('--model_name model --train_file a.csv', '`sherd tokenize a.csv -o train.bin --tokenizer DIR --format text`'),
    ('--model_name model --train_file a.txt', 'there is no model/tokenizer.json'),
    ('--model_name model --train_file gone.bin', 'gone.bin: there is no such file'),
    ('--model_name model --train_file chat.jsonl', '`sherd tokenize chat.jsonl -o train.bin --format messages'),
    ('--model_name model --train_file alpaca.jsonl', '-o train.bin --format alpaca'),
    ('--model_name model --train_file list.json', "jq -c '.[]' list.json"),
    ('--model_name model --eval_strategy sometimes', '--eval_strategy must be steps, epoch or no'),
    ('--model_name model --save_strategy best', '--save_strategy must be steps, epoch or no'),
    ('--model_name model --logging_steps 1.5', '--logging_steps must be a whole number, or a share'),
    ('--model_name model --save_steps 0', '--save_steps must be above 0'),
    ('--model_name model --validation_split_percentage 100', '--validation_split_percentage must be a whole number'),
    ('--model_name model --resume_from_checkpoint other', 'the newest checkpoint of --output_dir is always resumed'),
]
# Words that nothing here does: the reason, and what does the same.
REFUSED_WORDS = [
    ('--optim adafactor', '--offload.nvme_path=DIR puts them in a file'),
    ('--adafactor', 'optimizer.name is'),
    ('--optim_args a=1', 'are keys of optimizer'),
    ('--optim_target_modules all', 'lora.target_modules'),
    ('--lr_scheduler_kwargs {"a":1}', 'lr_scheduler.min_lr_factor'),
    ('--label_smoothing_factor 0.1', 'cross-entropy'),
    ('--neftune_noise_alpha 5', 'no noise'),
    ('--bf16_full_eval', 'in the type of training'),
    ('--fp16_full_eval True', 'in the type of training'),
    ('--auto_find_batch_size', '`sherd plan` prints the memory'),
    ('--report_to wandb tensorboard', '--report_to wandb: leave it out: metrics.jsonl has all figures'),
    ('--debug underflow_overflow', 'guard has more'),
    ('--eval_delay 3', 'the first validation is after'),
    ('--eval_on_start', 'the first validation is after'),
    ('--load_best_model_at_end', '`sherd ckpt export FILE` writes the best one'),
    ('--save_only_model', '`sherd ckpt export` writes the model alone'),
    ('--save_on_each_node', 'all nodes share'),
    ('--ignore_data_skip', 'where its checkpoint stopped'),
    ('--push_to_hub True', '`hf upload NAME FOLDER`'),
    ('--data_seed 3', 'debug.seed'),
    ('--do_predict', '`sherd generate`'),
    ('--accelerator_config a.json', 'the batch of a rank'),
    ('--parallelism_config a.json', 'mesh.shard'),
    ('--deepspeed ds.json', 'parallelism.zero_stage'),
    ('--dataset_name wikitext', 'to_json("train.jsonl")'),
    ('--max_train_samples 9', '--max_steps'),
    ('--model_revision abc', '--revision REVISION'),
    ('--keep_linebreaks False', 'keep their line ends'),
    ('--no_keep_linebreaks', 'keep their line ends'),
    ('--train_sampling_strategy best', 'data.shuffle is'),
    ('--use_peft', '--lora.rank=N'),
    ('--lora_dropout 0.1', 'no dropout'),
    ('--use_dora', "LoRA's"),
    ('--lora_task_type SEQ_CLS', 'the next token'),
    ('--lora_modules_to_save lm_head', 'only adapters'),
    ('--load_in_8bit', '--lora.quantize_base=nf4'),
    ('--bnb_4bit_quant_type fp4', 'nf4'),
    ('--use_bnb_nested_quant', 'float32'),
    ('--packing False', '--data.packing=none'),
    ('--dataset_text_field content', '--field NAME'),
    ('--chat_template_path x', '--chat-template NAME'),
    ('--assistant_only_loss', '--format messages'),
    ('--completion_only_loss', '--format prompt-completion'),
]
# Values that are as if the option were not there.
HARMLESS = """dtype=auto torch_dtype=float32 model_revision=main keep_linebreaks=True auto_find_batch_size=False
    lr_scheduler_kwargs={} adafactor=False label_smoothing_factor=0.0 bf16_full_eval=False fp16_full_eval=False report_to=none
    eval_delay=0 eval_on_start=False load_best_model_at_end=False save_only_model=False save_on_each_node=False
    ignore_data_skip=False push_to_hub=False do_predict=False train_sampling_strategy=group_by_length use_dora=False
    lora_dropout=0 lora_task_type=CAUSAL_LM load_in_8bit=False bnb_4bit_quant_type=nf4 use_bnb_nested_quant=False
    packing=True dataset_text_field=text assistant_only_loss=False completion_only_loss=False""".split()
# The options of transformers 5.24: of TrainingArguments, and of the two classes of run_clm.py.
TRAINER = """
output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
warmup_steps optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules
gradient_accumulation_steps average_tokens_across_devices max_grad_norm label_smoothing_factor bf16 fp16
bf16_full_eval fp16_full_eval tf32 activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing
gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode use_liger_kernel
liger_kernel_config use_cache neftune_noise_alpha torch_empty_cache_steps auto_find_batch_size logging_strategy
logging_steps logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level
log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id
eval_strategy eval_steps eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start
eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics
save_only_model save_strategy save_steps save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub
hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision load_best_model_at_end
metric_for_best_model greater_is_better ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed
data_seed use_cpu accelerator_config parallelism_config dataloader_drop_last dataloader_num_workers
dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context
dataloader_in_order remove_unused_columns label_names train_sampling_strategy length_column_name
ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp
fsdp_config deepspeed debug skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint local_rank
""".split()
RUN_CLM = """
model_name_or_path model_type config_overrides config_name tokenizer_name cache_dir use_fast_tokenizer model_revision
token trust_remote_code dtype dataset_name dataset_config_name train_file validation_file max_train_samples
max_eval_samples streaming block_size overwrite_cache validation_split_percentage preprocessing_num_workers
keep_linebreaks
""".split()
# Everyday options of Trainer, TRL and PEFT that have no effect, and those that are refused.
USUAL = ('--overwrite_output_dir --report_to none --log_level info --tf32 True --low_cpu_mem_usage --use_fast_tokenizer '
         '--cache_dir c --attn_implementation sdpa --dataloader_num_workers 4 --preprocessing_num_workers 8 --ddp_timeout 1800 '
         '--ddp_find_unused_parameters False --remove_unused_columns False --logging_first_step --optim adamw_torch '
         '--torch_dtype bfloat16 --lora_r 8 --lora_alpha 16 --lora_target_modules q_proj v_proj --load_in_4bit '
         '--save_strategy epoch --logging_steps 0.1 --max_seq_length 16 --packing True --push_to_hub False')
USUAL_REFUSED = {'--dataset_name': 'to_json', '--lora_dropout': 'no dropout', '--data_seed': 'debug.seed',
                 '--load_best_model_at_end': 'ckpt export', '--neftune_noise_alpha': 'no noise', '--deepspeed': 'zero_stage',
                 '--use_peft': '--lora.rank', '--load_in_8bit': 'nf4', '--chat_template_path': 'sherd tokenize',
                 '--label_smoothing_factor': 'cross-entropy', '--save_only_model': 'ckpt export'}
BAD_FILES = [
    ({'cpu_offload': True}, 'cpu_offload true: leave it out'),
    ({'offload_params': True}, 'offload_params true: leave it out; on GPUs give --training.enable_cpu_offload=true'),
    ({'fsdp_offload_params': True}, '--offload.optimizer=nvme'),
    ({'forward_prefetc': True}, 'nearest is forward_prefetch'),
    ({'backward_prefetch': 'backward_post'}, 'backward_prefetch backward_post: parallelism.backward_prefetch is 1'),
    ({'activation_checkpointing': 'maybe'}, 'activation_checkpointing maybe: activation_checkpoint.mode is full'),
    ({'reshard_after_forward': 'maybe'}, 'reshard_after_forward maybe: parallelism.fsdp_reshard_after_forward is always'),
    ({'xla': True}, 'there is no XLA'),
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
    same = {'--max_length': '--block_size', '--max_seq_length': '--block_size'}
    for word in [same.get(word, word) for word in words if same.get(word, word) in BASE]:
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
    sizes = {'attention_window': '4096', 'layer_types': '5*sliding,full', 'head_dim': '256'}
    return wrong + [f'gemma3: {key} is {found["model." + key]}' for key, value in sizes.items() if found['model.' + key] != value]


def case_trains_from_scratch():
    """The resulting folder is one of that class."""
    words = ('run_clm', '--model_type', 'gpt2', '--train_file', 't.bin', '--block_size', '16', '--max_steps', '2', '--model.dim=8',
             '--model.n_heads=2', '--model.n_layers=1', '--model.vocab_size=32', '--output_dir', 'scratch')
    job.sherd(*words)
    config = json.loads(pathlib.Path('scratch/checkpoint/hf-00000002/config.json').read_text())
    return [] if config['model_type'] == 'gpt2' and config['n_embd'] == 8 else [str(config)]


def case_printed():
    """What is printed is the run: with the keys of its comment, `sherd train` has the same configuration. A group by muon
    changes optimizer.name, and gives all else to adamw."""
    words = ('run_clm', '--model_type', 'gpt2', '--train_file', 't.bin', '--block_size', '16', '--max_steps', '1', '--optim', 'adamw_torch',
             '--model.dim=8', '--model.n_heads=2', '--model.n_layers=1', '--model.vocab_size=32', '--output_dir', 'printed',
             '--optimizer.groups=pattern=attn optimizer=muon', "--job.description=it's one", '--parallelism.zero_stage=1')
    lines = [line for line in job.sherd(*words).splitlines() if re.match(r'# |  \w+: |\w+:$', line)]
    pathlib.Path('printed.yaml').write_text('\n'.join(lines) + '\n')
    given = shlex.split(lines[0][2:])[2:]
    again = job.sherd('train', 'printed.yaml', *map(str, given[1:]), '--print-config')
    wrong = [] if given[0] == 'THIS.yaml' else [lines[0]]
    return wrong + ([] if again == job.sherd(*words, '--print-config') else [f'{lines[0]}: {again}'])


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


def refused(words, text, lines=1):
    done = run(*words)
    if done.returncode in (2, 3) and text in done.stderr and done.stderr.count('\n') == lines:
        return []
    return [f'{" ".join(words)}: status {done.returncode}: {done.stderr or done.stdout[:80]}']


def whole(words):
    """Options that lack a model or data get those of BASE, so that there is one problem only."""
    given = ' '.join(words)
    model = () if '--model' in given or '--config_name' in given or words[0] == '--max_steps' else BASE[:2]
    return [*model, *(() if '--train_file' in given or given == '--model_name model' else BASE[2:4]), *words]


def case_refused():
    wrong = []
    pathlib.Path('chat.jsonl').write_text('{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}\n')
    pathlib.Path('alpaca.jsonl').write_text('{"instruction": "a", "output": "b"}\n')
    pathlib.Path('list.json').write_text('[{"text": "a"}]\n')
    pathlib.Path('a.csv').write_text('a')
    for words, text, *more in REFUSED:
        wrong += refused(whole([*shlex.split(words), *more]), text)
    for at in range(0, len(REFUSED_WORDS), 20):
        rows = REFUSED_WORDS[at:at + 20]
        done = run(*BASE, *(word for words, _ in rows for word in words.split()))
        lines = done.stderr.splitlines()
        wrong += [f'{words}: no line with {text}' for words, text in rows
                  if not any(f' {words.split()[0]}' in line and text in line for line in lines)]
        wrong += [] if len(lines) == len(rows) and done.returncode == 2 else [f'{done.returncode}: {done.stderr}']
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


def table():
    """[(kind of row, option)] of the options in the product's table, without the keys of --fsdp_config."""
    text = (job.TOP / 'src/config/foreign/trainer.inc').read_text()
    return [row for row in re.findall(r'^([A-Z]+)\("(\w+)"', text, re.M)]


def case_advice():
    """What is said instead of an optimizer is accepted."""
    wrong = []
    for name in ('paged_adamw_8bit', 'RMSprop_bnb_8bit', 'adamw_torch_4bit', 'galore_adamw_layerwise', 'adafactor', 'apollo_adamw'):
        said = run(*BASE, '--optim', name).stderr
        words = [['--optim', word] for word in re.findall(r'\w+', re.search(r'give ([\w, ]+?)(?:, whose|$)', said, re.M)[1]) if word != 'or']
        words += [re.findall(r'--[\w.]+=\w+', said)] if '=' in said else []
        done = [run(*BASE, *pair) for pair in words]
        wrong += [f'{name}: {said} {one.stderr}' for one in done if one.returncode] + ([] if words else [f'{name}: {said}'])
    return wrong


def case_all_words():
    """Every option has a row above, also one that the help does not list; one without effect has none."""
    rows = ' '.join([*BASE, *(words for words, _ in WORDS), *(row[0] for row in [*REFUSED, *REFUSED_WORDS])]) + ' '
    names = [name for name in options() if name not in ('--print-config', '--print', '--help')]
    without = [f'{name} has no row' for name in names if f'{name} ' not in rows]
    for kind, name in table():
        if kind != 'NOTHING' and f'--{name} ' not in rows:
            without.append(f'{kind} {name} has no row')
    harmless = re.findall(r'^IF\("(\w+)", "[^"]*", NOTHING', (job.TOP / 'src/config/foreign/trainer.inc').read_text(), re.M)
    without += [f'{name} has no harmless value' for name in harmless if f'{name}=' not in ' '.join(HARMLESS)]
    return without + ([] if len(names) > 25 else [f'only {names}'])


def installed():
    """The options of an installed transformers, without importing it."""
    spec = importlib.util.find_spec('transformers')
    if not spec or not spec.origin:
        return []
    tree = ast.parse((pathlib.Path(spec.origin).parent / 'training_args.py').read_text())
    return [field.target.id for node in tree.body if isinstance(node, ast.ClassDef) and node.name == 'TrainingArguments'
            for field in node.body if isinstance(field, ast.AnnAssign)]


def case_known():
    """No option of transformers is unknown, and none is nearest to another."""
    known = {name for _, name in table()}
    wrong = [f'{name}: not in the table' for name in [*TRAINER, *RUN_CLM] if name not in known]
    wrong += [f'{name}: an option of the installed transformers' for name in installed() if name not in known]
    names = sorted({*TRAINER, *RUN_CLM})
    for at in range(0, len(names), 20):
        done = run(*(f'--{name}=1' for name in names[at:at + 20]))
        wrong += [line for line in done.stderr.splitlines() if 'no option' in line or 'more like' in line]
    return wrong


def case_ignored():
    """One line names all options without effect, and no other; the configuration is the same. A value is not printed."""
    names = [name for kind, name in table() if kind == 'NOTHING']
    words = [*(f'--{name}=secret' for name in names), *(f'--{word}' for word in HARMLESS)]
    done, plain = run(*BASE, *words), run(*BASE)
    lines = [line for line in done.stderr.splitlines() if line.startswith('ignored: ')]
    told = set(re.findall(r'--(\w+)', lines[0])) if lines else set()
    wrong = [f'{done.returncode}: {done.stderr}'] if done.returncode or len(lines) != 1 or 'secret' in done.stderr else []
    wrong += [f'not named: {name}' for name in {*names, *(word.split('=')[0] for word in HARMLESS)} ^ told]
    wrong += [] if done.stdout == plain.stdout else ['another configuration']
    return wrong + ([] if 'ignored' not in plain.stderr else [plain.stderr])


def case_at_once():
    """All problems of a line in one start, with the model's; and the everyday options without any."""
    done = run(*BASE[:4], *shlex.split(USUAL))
    wrong = [f'{done.returncode}: {done.stderr}'] if done.returncode or done.stderr.count('\n') != 1 else []
    words = [f'{name}=1' for name in USUAL_REFUSED]
    done = run('--model_name', 'gone', '--train_file', 'gone.txt', '--learning_rate', 'x', '--max_steps', 'y', '--unheard', '3', 'of',
               *shlex.split(USUAL), *words)
    lines = done.stderr.splitlines()
    for name, text in {**USUAL_REFUSED, '--model_name': 'hf download gone', '--train_file': 'no such file', '--learning_rate': 'number',
                       '--max_steps': 'whole number', 'no option --unheard': 'see', '"of"': 'not an option'}.items():
        if not any(name in line and text in line for line in lines):
            wrong.append(f'{name}: no line with {text}')
    return wrong + [line for line in lines if 'nearest' in line] + (
        [] if len(lines) == len(USUAL_REFUSED) + 7 and done.returncode == 2 else [f'{done.returncode}: {done.stderr}'])


def case_readme():
    """The lines of transformers' own README, with files of this folder, as they are pasted behind `sherd`."""
    pathlib.Path('book.txt').write_text('aabcabbacab' * 120)
    pathlib.Path('book.json').write_text('{"text": "aabcabbacab"}\n' * 120)
    shutil.copytree('model', 'words')
    pathlib.Path('words/tokenizer.json').write_text(json.dumps(TOKENIZER))
    line = ('--model_name_or_path words --train_file {} --validation_file {} --per_device_train_batch_size 8 '
            '--per_device_eval_batch_size 8 --do_train --do_eval --output_dir readme')
    wrong = []
    for start, file in (('python run_clm.py', 'book.txt'), ('python3 -u examples/pytorch/run_clm.py', 'book.json'), ('run_clm.py', 'book.txt')):
        shutil.rmtree('readme', ignore_errors=True)
        job.sherd(*start.split(), *line.format(file, file).split(), '--block_size', '16', '--num_train_epochs', '1')
        wrong += [] if list(pathlib.Path('readme/checkpoint').glob('hf-*')) else [f'{start}: no model']
    found = keys_of(shlex.split('--model_type gpt2 --tokenizer_name words --config_overrides="n_embd=64,n_head=4,n_layer=3,n_positions=102,'
                                'n_inner=100" --train_file t.bin'))
    wrong += [f'{key}: {found["model." + key]}' for key, value in {'dim': '64', 'n_heads': '4', 'n_layers': '3', 'max_seq_len': '102',
              'ffn_dim': '100', 'head_dim': '16'}.items() if found['model.' + key] != value]
    for start in ('torchrun --nproc_per_node 8', 'accelerate launch', 'python -m torch.distributed.run'):
        done = subprocess.run(job.command(0, [*start.split(), 'run_clm.py']), capture_output=True, text=True, env=job.environment(0))
        if done.returncode != 2 or 'mpirun -n 8 sherd run_clm' not in done.stderr:
            wrong.append(f'{start}: {done.returncode}: {done.stderr}')
    return wrong


def case_split():
    """Without a file for it, the end of the training text validates."""
    words = ('run_clm', '--model_name', 'words', '--train_file', 'book.txt', '--do_train', '--do_eval', '--block_size', '16', '--max_steps', '1')
    sizes = []
    for share in (5, 50):
        job.sherd(*words, '--validation_split_percentage', share, '--output_dir', f'split{share}')
        sizes += [pathlib.Path(f'split{share}/{name}.bin').stat().st_size - HEADER for name in ('train', 'validation')]
    events = pathlib.Path('split5/metrics.jsonl').read_text()
    wrong = [] if 'validation' in events else ['no validation']
    return wrong + ([] if sizes[0] > 10 * sizes[1] and 0.8 < sizes[2] / sizes[3] < 1.25 else [f'{sizes}'])


def case_epochs():
    """100 windows, 3 epochs: a resumed run ends after 300 samples, whatever its batch was before and is now."""
    wrong = []
    for first, second, steps in ((8, 16, 20 + 9), (16, 8, 10 + 18), (8, 8, 38), (8, 300, 20 + 1)):
        shutil.rmtree('epochs', ignore_errors=True)
        words = ('run_clm', *BASE, '--output_dir', 'epochs', '--lr_scheduler_type', 'constant')
        job.sherd(*words, '--per_device_train_batch_size', first, '--max_steps', 160 // first)
        job.sherd(*words, '--per_device_train_batch_size', second, '--num_train_epochs', '3')
        last = json.loads([line for line in pathlib.Path('epochs/metrics.jsonl').read_text().splitlines() if '"loss"' in line][-1])
        wrong += [] if last['step'] == steps else [f'{first} and {second}: {last["step"]} steps, not {steps}']
        again = keys_of(words[1:] + ('--per_device_train_batch_size', str(second), '--num_train_epochs', '3'))['training.steps']
        wrong += [] if again == str(steps) else [f'{first} and {second}: a third start has {again} steps']
    for word in ('--overwrite_output_dir', '--resume_from_checkpoint False'):
        wrong += refused([*words[1:], *word.split()], f'{word}: epochs/checkpoint/step-00000021.h5 would be resumed')
    return wrong + ([] if pathlib.Path('epochs/checkpoint/step-00000021.h5').exists() else ['the run is gone'])


def case_epochs_on_ranks():
    """The same, with another number of ranks."""
    if not job.can_launch():
        return []
    words = ('run_clm', *BASE, '--output_dir', 'ranks', '--lr_scheduler_type', 'constant')
    job.sherd(*words, '--max_steps', 20, ranks=1)
    done = job.sherd(*words, '--num_train_epochs', 3, ranks=2)
    return [] if '  steps: 29\n' in done else [done]


def main():
    folder = job.TOP / 'tests/hf/llama'
    for name in ('longer', 'model', 'words', 'scratch', 'split5', 'split50', 'epochs', 'ranks', 'printed', 'trainer_output'):
        shutil.rmtree(name, ignore_errors=True)
    pathlib.Path('model').mkdir()
    for path in folder.iterdir():
        shutil.copyfile(path, pathlib.Path('model') / path.name)
    for name in ('t.bin', 'v.bin'):
        pathlib.Path(name).write_bytes(array.array('H', (i * 7 % 32 for i in range(TOKENS))).tobytes())
    pathlib.Path('a.txt').write_text('ab')
    return job.run_cases([('defaults are those of Trainer', case_defaults), ('each word sets its keys', case_words),
                          ('both names of the model', case_names), ('the length of a block', case_block_size),
                          ('a model from scratch', case_from_scratch), ('one is trained', case_trains_from_scratch), ('what is printed', case_printed),
                          ('a file of FSDP', case_fsdp_config), ('what cannot be done is refused', case_refused), ('advice is accepted', case_advice),
                          ('each word has a row', case_all_words), ('each option of transformers is known', case_known),
                          ('options without effect', case_ignored), ('all problems in one start', case_at_once),
                          ("the lines of transformers' README", case_readme), ('a split text', case_split),
                          ('epochs of a resumed run', case_epochs), ('on another number of ranks', case_epochs_on_ranks)])


if __name__ == '__main__':
    sys.exit(main())
