#!/usr/bin/env python3
"""Preferences and rewards against TRL itself: DPOTrainer, RewardTrainer and Sherd read the same lines, begin with the same
folder, and take the same steps in float32; losses, rewards and log-probabilities of each step agree. Prints TAP. Needs the virtual environment that
tests/hf/venv makes; SHERD_HF_VENV names it.
"""
import contextlib
import importlib.util
import json
import os
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

VENV = job.enter_venv()
os.environ.update(HF_DATASETS_OFFLINE='1', HF_HOME=str(pathlib.Path('cache').absolute()))
if importlib.util.find_spec('trl') is None:
    job.skip_all(f'{VENV} has no trl: tests/hf/venv FOLDER makes an environment that has it')
import datasets
import tokenizers
import torch
import transformers
import trl

STEPS, BATCH, BETA, LR = 6, 4, 0.1, 1e-3
EPS = 1e-5        # else a gradient that is only rounding moves a weight as far as any other
REWARD_LR = 2e-4  # with more, what both rewards of a pair have in common goes to and fro, and so does its rounding
BOUND = 1e-5
WORDS = ('a', 'bird', 'cat', 'dog', 'eats', 'finds', 'green', 'house', 'in', 'jumps', 'no', 'old', 'over', 'sees', 'the', 'yes')
SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, attention_dropout=0.0, attn_implementation='eager')
RUN = {
    'model.hf_assets_path': '../model', 'training.dataset_path': '../pairs.bin',
    'training.seq_len': 64, 'training.local_batch_size': BATCH, 'training.global_batch_size': BATCH, 'training.steps': STEPS,
    'training.mixed_precision_param': 'float32', 'training.max_norm': 1.0, 'training.threads': 1, 'data.shuffle': False,
    'data.packing': 'none', 'optimizer.lr': LR, 'optimizer.beta1': 0.9, 'optimizer.beta2': 0.999, 'optimizer.eps': EPS,
    'optimizer.weight_decay': 0, 'lr_scheduler.decay_type': 'constant', 'lr_scheduler.warmup_steps': 0,
}
METRICS = [(kind, key) for kind, keys in (('rewards', ('chosen', 'rejected', 'margins', 'accuracies')), ('logps', ('chosen', 'rejected')))
           for key in keys]
REWARDS = ('mean_reward', 'min_reward', 'max_reward', 'margin', 'accuracy')
CENTER = 0.05
# The losses that both have, with Sherd's keys; TRL calls them the same.
LOSSES = {**{loss: {} for loss in ('sigmoid', 'hinge', 'ipo', 'nca_pair', 'bco_pair', 'sppo_hard', 'apo_zero', 'apo_down', 'sigmoid_norm')},
          'robust': {'label_smoothing': 0.2}, 'exo_pair': {'label_smoothing': 0.1}}


def make_pairs(count):
    draw = random.Random(3)

    def some(least, most):
        return ' '.join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))

    return [{'prompt': some(2, 8), 'chosen': ' ' + some(1, 6), 'rejected': ' ' + some(1, 6), 'margin': i % 3 / 8} for i in range(count)]


def make_folder(folder, some, model_class, seed=1, **sizes):
    """A model with random weights, and a tokenizer made of these lines. A text ends with another token than padding has, because
    transformers takes the value of the last token that is not padding."""
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = tokenizers.decoders.ByteLevel()
    t.train_from_iterator([pair[key] for pair in some for key in ('prompt', 'chosen', 'rejected')], tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=['<end>', '<pad>'], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=t, eos_token='<end>', pad_token='<pad>')
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    model = model_class(transformers.LlamaConfig(**{**SIZES, **sizes}, vocab_size=len(fast), bos_token_id=None, eos_token_id=0, pad_token_id=1, num_labels=1))
    with torch.no_grad():  # initial logits are near 0, and so would be what they have in common
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)


def prepare(folder, model_class, form, count=STEPS * BATCH):
    """Pairs as lines and as Sherd's file, and a folder of transformers."""
    folder.mkdir()
    some = make_pairs(count)
    (folder / 'pairs.jsonl').write_text(''.join(json.dumps(pair) + '\n' for pair in some))
    make_folder(folder / 'model', some, model_class)
    job.sherd('tokenize', 'pairs.jsonl', '-o', 'pairs.bin', '--tokenizer', 'model', '--format', form, folder=folder)
    return some


def trl_steps(folder, some, model_class, trainer_class, settings_class, ref=None, **words):
    """What a trainer logs of each step. DPOTrainer loads its reference from the folder `ref`, or from the model's."""
    settings = settings_class(
        output_dir=folder / 'trl', lr_scheduler_type='constant', warmup_steps=0, adam_beta1=0.9, adam_beta2=0.999,
        adam_epsilon=EPS, weight_decay=0.0, max_grad_norm=1.0, optim='adamw_torch', max_steps=STEPS, per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=1, train_sampling_strategy='sequential', logging_steps=1, bf16=False, use_cpu=True,
        gradient_checkpointing=False, disable_dropout=True, save_strategy='no', report_to=[], disable_tqdm=True, **words)
    model = model_class.from_pretrained(folder / 'model', attn_implementation='eager', dtype=torch.float32)
    more = {'ref_model': model_class.from_pretrained(ref, attn_implementation='eager', dtype=torch.float32)} if ref else {}
    trainer = trainer_class(model=model, args=settings, **more, train_dataset=datasets.Dataset.from_list(some),
                            processing_class=transformers.AutoTokenizer.from_pretrained(folder / 'model'))
    trainer.remove_callback(transformers.PrinterCallback)
    with contextlib.redirect_stdout(sys.stderr):
        trainer.train()
    return [line for line in trainer.state.log_history if 'loss' in line]


def compare(name, steps, expected, metrics):
    """metrics: TRL's words, each with what finds the number in a step of Sherd."""
    wrong = job.differ('loss', job.losses(steps), [line['loss'] for line in expected], BOUND)
    wrong += job.differ('gradient norm', [step['grad_norm'] for step in steps], [line['grad_norm'] for line in expected], 10 * BOUND)
    for key, find in metrics.items():
        off = [abs(find(step) - line[key]) / max(1, abs(line[key])) for step, line in zip(steps, expected)]
        print(f'# {name}: {key}: {max(off):.2g} off')
        wrong += [] if max(off) <= BOUND else [f'{key}: {max(off):.2g} off in step {off.index(max(off)) + 1}']
    return wrong


def score(folder, some, model):
    """Another model, with a block more, is the reference: its folder, and Sherd's file of its numbers."""
    make_folder(folder / 'other', some, model, seed=2, num_hidden_layers=3)
    job.sherd('ckpt', 'import', 'other', '-o', 'base', folder=folder)
    job.sherd('eval', '--checkpoint', 'base', '--data', 'pairs.bin', '--reference', '-o', 'pairs.ref', '--training.seq_len=64',
              '--training.mixed_precision_param=float32', folder=folder)
    return folder / 'other', {'objective.reference_path': '../pairs.ref'}


def case(loss, most=0, other=False):
    """most: TRL's max_length, by which answers are cut, and pairs with longer prompts left out. other: TRL's ref_model."""
    folder, model = pathlib.Path(f'{loss}-{most}-{other}'), transformers.LlamaForCausalLM
    some = prepare(folder, model, 'preference', STEPS * BATCH * (2 if most else 1))
    cut = {'training.seq_len': 2 * (most - 1), 'data.excess_length_strategy': 'truncate'} if most else {}
    ref, given = score(folder, some, model) if other else (None, {})
    expected = trl_steps(folder, [{key: pair[key] for key in ('prompt', 'chosen', 'rejected')} for pair in some], model,
                         trl.DPOTrainer, trl.DPOConfig, ref, learning_rate=LR, loss_type=[loss], beta=BETA, max_length=most or 1024, **LOSSES[loss])
    steps = job.train(folder / 'run', {**RUN, **cut, **given, 'objective.name': 'dpo', 'objective.loss_type': loss, 'objective.beta': BETA,
                                       **{f'objective.{key}': x for key, x in LOSSES[loss].items()}})
    moved = max(abs(line['rewards/chosen']) for line in expected)
    return (compare(loss, steps, expected, {f'{kind}/{key}': lambda step, kind=kind, key=key: step[kind][key] for kind, key in METRICS})
            + ([] if moved > 0.03 else [f'nothing was learned: rewards up to {moved:.2g}']))


def case_reward():
    """The value of the last token of each answer, with margins."""
    folder, model = pathlib.Path('reward'), transformers.LlamaForSequenceClassification
    some = prepare(folder, model, 'reward')
    expected = trl_steps(folder, some, model, trl.RewardTrainer, trl.RewardConfig, learning_rate=REWARD_LR,
                         center_rewards_coefficient=CENTER)
    steps = job.train(folder / 'run', {**RUN, 'objective.name': 'reward', 'optimizer.lr': REWARD_LR,
                                       'objective.center_rewards_coefficient': CENTER})
    return compare('reward', steps, expected, {key: lambda step, key=key: step[key] for key in REWARDS})


if __name__ == '__main__':
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    sys.exit(job.run_cases([(f'DPOTrainer: {loss}', case, loss) for loss in (('sigmoid', 'ipo') if job.FEW else LOSSES)]
                           + [('DPOTrainer, max_length', case, 'sigmoid', 8),
                              ('DPOTrainer, ref_model', case, 'sigmoid', 0, True), ('RewardTrainer', case_reward)]))
