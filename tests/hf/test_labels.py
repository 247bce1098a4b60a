#!/usr/bin/env python3
"""Models with labels, numbers or rewards of texts compared with ForSequenceClassification of transformers, for every family that has the
class: 10 steps from the same folder, the accuracy, and a folder that transformers opens without missing or unexpected
keys. Prints TAP. Needs the virtual environment that tests/hf/venv makes; SHERD_HF_VENV names it.
"""
import json
import pathlib
import random
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / name) for name in ('gold', 'mesh')]
import job

job.enter_venv()
import peft
import torch
import transformers
import pairs

LABELS, STEPS, BATCH, WORDS, LONGEST = 4, 10, 4, 97, 24
LOSS_BOUND, LOGIT_BOUND = 1e-5, 2e-4  # logits of models that were trained for 10 steps, one of them in float32
SCORE_BOUND = 1e-5                    # scores of one model, by Sherd in float32
RUN = {
    'training.seq_len': LONGEST + 2, 'training.local_batch_size': BATCH, 'training.global_batch_size': BATCH,
    'training.steps': STEPS, 'training.mixed_precision_param': 'float32', 'training.max_norm': 0, 'training.threads': 1,
    'data.shuffle': False, 'data.packing': 'none', 'training.dataset_path': '../texts.bin', 'optimizer.lr': 1e-3,
    'optimizer.beta1': 0.9, 'optimizer.beta2': 0.95, 'optimizer.eps': 1e-4, 'optimizer.weight_decay': 0,
    'lr_scheduler.decay_type': 'constant', 'lr_scheduler.warmup_steps': 0, 'validation.enable': True,
    'validation.dataset_path': '../texts.bin', 'validation.sequences': 0, 'validation.freq': STEPS,
}
IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
SIZES = dict(vocab_size=WORDS, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=64, **IDS)
KV = dict(SIZES, num_key_value_heads=2)
GPT2 = dict(vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, n_positions=64, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, **IDS)
MODELS = {
    'GPT2': GPT2, 'Llama': KV, 'Mistral': dict(KV, sliding_window=64), 'Qwen2': KV, 'Phi3': KV, 'SmolLM3': KV,
    'Starcoder2': dict(KV, sliding_window=None, residual_dropout=0.0, embedding_dropout=0.0),
    'Qwen3': dict(KV, head_dim=24), 'Olmo2': KV, 'Gemma': dict(KV, head_dim=24), 'GPTNeoX': SIZES,
    'Gemma2': dict(KV, head_dim=24, sliding_window=64, query_pre_attn_scalar=24, attn_logit_softcapping=2.0, final_logit_softcapping=0.5),
    'Gemma3Text': dict(KV, head_dim=24, sliding_window=64, query_pre_attn_scalar=24),
    'Olmo3': dict(KV, sliding_window=9, layer_types=['sliding_attention', 'full_attention']),
    'Exaone4': dict(KV, sliding_window=9, layer_types=['sliding_attention', 'full_attention']),
    'Mixtral': dict(KV, num_local_experts=5, num_experts_per_tok=2),
    'Qwen2Moe': dict(KV, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=40, shared_expert_intermediate_size=40),
    'Qwen3Moe': dict(KV, head_dim=24, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=40),
    'DeepseekV3': dict(SIZES, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=12,
                       v_head_dim=16, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, n_group=4, topk_group=2,
                       first_k_dense_replace=1, num_nextn_predict_layers=0),
    'Qwen3_5Text': dict(KV, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, rms_norm_eps=0.1,
                        linear_value_head_dim=12, layer_types=['linear_attention', 'full_attention']),
    'SeedOss': dict(KV, head_dim=24, attention_dropout=0.0, residual_dropout=0.0),
}

DENSE = {'Qwen3Moe': dict(num_labels=LABELS, mlp_only_layers=[0])}  # as DeepseekV3 is


def draw_texts(seed, count):
    draw = random.Random(seed)
    texts = [[draw.randrange(3, WORDS) for _ in range(draw.randint(2, LONGEST))] for _ in range(count)]
    return [(text, text[0] % LABELS) for text in texts]


def padded(batch, left=False):
    longest = max(len(text) for text, _ in batch)
    ids = torch.tensor([left * [0] * (longest - len(text)) + text + (not left) * [0] * (longest - len(text)) for text, _ in batch])
    mask = (ids != 0).long()
    return dict(input_ids=ids, attention_mask=mask, **(dict(position_ids=(mask.cumsum(1) - 1).clamp(min=0)) if left else {}))


def precise(model):
    if hasattr(model, 'set_experts_implementation'):
        model.set_experts_implementation('eager')  # the others have no float64
    return model.double().eval()


def make(name, folder, **labels):
    config = getattr(transformers, f'{name}Config')(**MODELS[name], **(labels or {'num_labels': LABELS}))
    torch.manual_seed(7)
    model = getattr(transformers, f'{name}ForSequenceClassification')(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return precise(model)


def losses_of(model, loss_of):
    """Those of the steps, in float64; loss_of(step)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RUN['optimizer.lr'], betas=(0.9, 0.95), eps=1e-4, weight_decay=0)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def batch_of(step):
    return slice(step * BATCH, (step + 1) * BATCH)


def exported(folder):
    """The model that transformers opens, and what it says is missing or more."""
    job.sherd('ckpt', 'export', 'run/out/checkpoint', '-o', 'end', '--hf', 'begin', folder=folder)
    there, info = transformers.AutoModelForSequenceClassification.from_pretrained(folder / 'end', output_loading_info=True)
    return there, [f'{key}: {info[key]}' for key in ('missing_keys', 'unexpected_keys', 'mismatched_keys') if info[key]]


def case(name):
    folder = pathlib.Path(name)
    folder.mkdir()
    pairs.write_documents(folder / 'texts.bin', [(text, [label]) for text, label in texts], WORDS, 1)
    model = make(name, folder / 'begin')
    steps = job.train(folder / 'run', {**RUN, 'model.hf_assets_path': '../begin'})
    entropy = torch.nn.functional.cross_entropy
    losses = losses_of(model, lambda step: entropy(model(**padded(texts[batch_of(step)])).logits,
                                                   torch.tensor([label for _, label in texts[batch_of(step)]])))
    there, wrong = exported(folder)
    wrong += job.differ('loss', job.losses(steps), losses, LOSS_BOUND)
    auto = transformers.AutoModelForSequenceClassification.from_pretrained(folder / 'end')
    wrong += [] if type(auto) is type(there) and auto.config.num_labels == LABELS else [f'{type(auto)}, {auto.config.num_labels}']
    with torch.no_grad():
        expected, found = model(**padded(texts)).logits, precise(there)(**padded(texts)).logits
    off = float((expected - found).abs().max())
    wrong += [] if off <= LOGIT_BOUND else [f'logits {off:.2g} off']
    right = sum(int(row.argmax()) == label for row, (_, label) in zip(found, texts)) / len(texts)
    wrong += compare_scores(folder, there.float(), texts, 'logits')
    for packing in 'none', 'bfd':
        said = job.sherd('eval', '--checkpoint', 'run/out', '--data', 'texts.bin', f'--data.packing={packing}', folder=folder).split()
        wrong += [] if abs(float(said[said.index('accuracy') + 1]) - right) < 1e-6 else [f'{packing}: {said}, expected {right}']
    lines = (folder / 'run/out/metrics.jsonl').read_text()
    return wrong + ([] if '"accuracy"' in lines else ['no accuracy in the metrics'])


def case_several(name):
    """Several labels of a text: the loss that the model itself computes, 10 steps; and the folder opens as it was."""
    folder, draw = pathlib.Path(f'{name}-several'), random.Random(3)
    folder.mkdir()
    labels = [[float(draw.random() < 0.3) for _ in range(LABELS)] for _ in texts]
    pairs.write_values(folder / 'texts.bin', [text for text, _ in texts], labels, WORDS)
    model = make(name, folder / 'begin', num_labels=LABELS, problem_type='multi_label_classification')
    steps = job.train(folder / 'run', {**RUN, 'model.hf_assets_path': '../begin'})
    losses = losses_of(model, lambda step: model(**padded(texts[batch_of(step)]),
                                                 labels=torch.tensor(labels[batch_of(step)], dtype=torch.float64)).loss)
    there, wrong = exported(folder)
    wrong += job.differ('loss', job.losses(steps), losses, LOSS_BOUND)
    wrong += [] if there.config.problem_type == 'multi_label_classification' else [f'{there.config}']
    with torch.no_grad():
        logits, found = model(**padded(texts)).logits, precise(there)(**padded(texts)).logits
    off = float((logits - found).abs().max())
    wrong += [] if off <= LOGIT_BOUND else [f'logits {off:.2g} off']
    y, named = torch.tensor(labels) >= 0.5, found > 0
    right = {'accuracy': float((y == named).all(1).double().mean()), 'f1': 2 * int((y & named).sum()) / int(y.sum() + named.sum())}
    said = job.sherd('eval', '--checkpoint', 'run/out', '--data', 'texts.bin', folder=folder).split()
    wrong += [f'{key}: {said}, expected {right}' for key in right if abs(float(said[said.index(key) + 1]) - right[key]) > 1e-6]
    return wrong + compare_scores(folder, there.float(), texts, 'logits')


def value_loss(kind, logits, numbers):
    """MSELoss, and that of RewardTrainer."""
    if kind == 'regression':
        return torch.nn.functional.mse_loss(logits, numbers)
    return -torch.nn.functional.logsigmoid(logits[::2] - logits[1::2] - numbers[::2]).mean()


def case_value(name, kind):
    """A head with one row: 10 steps, each over all texts; and the folder opens as it was."""
    folder, pair = pathlib.Path(f'{name}-{kind}'), kind == 'reward'
    folder.mkdir()
    some = [(text[:LONGEST // 2], 0) for text, _ in texts[:8]]
    numbers = [i % 3 / 8 if not pair or i % 2 == 0 else 0 for i in range(8)]
    pairs.write_values(folder / 'texts.bin', [text for text, _ in some], numbers, WORDS, pair)
    model = make(name, folder / 'begin', num_labels=1, **({} if pair else {'problem_type': 'regression'}))
    run = {'model.hf_assets_path': '../begin', 'objective.name': kind, 'validation.enable': False,
           'training.local_batch_size': 4, 'training.global_batch_size': 4 if pair else 8}
    steps = job.train(folder / 'run', {**RUN, **run})
    losses = losses_of(model, lambda _: value_loss(kind, model(**padded(some)).logits[:, 0], torch.tensor(numbers, dtype=torch.float64)))
    there, wrong = exported(folder)
    wrong += job.differ('loss', job.losses(steps), losses, LOSS_BOUND)
    said = job.launch('ckpt', 'import', 'begin', '-o', 'imported.h5', folder=folder)[1]
    wrong += [] if 'noted as objective.name=regression' in said else [said]
    again = job.train(folder / 'again', {**RUN, **run, 'checkpoint.initial_load_path': '../imported.h5', 'training.steps': 1})
    wrong += job.differ('loss from the import', job.losses(again), losses[:1], LOSS_BOUND)
    wrong += [] if there.config.num_labels == 1 and there.config.problem_type == (None if pair else kind) else [f'{there.config}']
    with torch.no_grad():
        off = float((model(**padded(some)).logits - precise(there)(**padded(some)).logits).abs().max())
    wrong += [] if off <= LOGIT_BOUND else [f'logits {off:.2g} off']
    return wrong + compare_scores(folder, there, some, 'score')


def compare_scores(folder, there, some, key):
    """`sherd eval` gives each text the logits of the exported model, which has the texts padded on either side."""
    job.sherd('eval', '--checkpoint', 'run/out', '--data', 'texts.bin', '-o', 'scores.jsonl', folder=folder)
    scores = torch.tensor([json.loads(line)[key] for line in (folder / 'scores.jsonl').read_text().splitlines()])
    wrong = []
    for left in False, True:
        with torch.no_grad():
            off = float((there(**padded(some, left)).logits.reshape(scores.shape) - scores).abs().max())
        print(f'# {folder}, padded on the {"left" if left else "right"}: {off:.2g}')
        wrong += [] if off <= SCORE_BOUND else [f'scores {off:.2g} off, {left=}']
    return wrong


def case_adapters(name, kind):
    """Adapters and the matrix of labels from a folder of PEFT, 10 steps, and PEFT opens the folder that they end in."""
    folder, labels = pathlib.Path(f'{name}-{kind}-adapters'), LABELS if kind == 'classification' else 1
    folder.mkdir()
    if labels > 1:
        pairs.write_documents(folder / 'texts.bin', [(text, [label]) for text, label in texts], WORDS, 1)
    else:
        pairs.write_values(folder / 'texts.bin', [text for text, _ in texts], [0.25, 0] * (len(texts) // 2), WORDS, pairs=True)
    make(name, folder / 'begin', num_labels=labels)
    torch.manual_seed(9)
    open_base = transformers.AutoModelForSequenceClassification.from_pretrained
    model = peft.get_peft_model(open_base(folder / 'begin'), peft.LoraConfig(
        task_type='SEQ_CLS', r=3, lora_alpha=6, target_modules=['o_proj', 'down_proj'] if name != 'GPT2' else ['c_attn'],
        init_lora_weights=False))
    with torch.no_grad():  # another matrix of labels than the base's
        next(value for key, value in model.named_parameters() if 'modules_to_save' in key).mul_(0.5)
    model.save_pretrained(folder / 'adapters')
    model = precise(model)
    steps = job.train(folder / 'run', {
        **RUN, 'model.hf_assets_path': '../begin', 'lora.rank': 3, 'lora.alpha': 6, 'lora.adapter_path': '../adapters',
        'lora.target_modules': 'o_proj,down_proj' if name != 'GPT2' else 'c_attn', 'validation.enable': False,
        **({'objective.name': kind, 'training.local_batch_size': 2, 'training.global_batch_size': 2, 'training.seq_len': 2 * LONGEST + 4} if labels == 1 else {})})
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RUN['optimizer.lr'], betas=(0.9, 0.95),
                                  eps=1e-4, weight_decay=0)
    losses = []
    for step in range(STEPS):
        batch = texts[step * BATCH:(step + 1) * BATCH]
        optimizer.zero_grad()
        logits, right = model(**padded(batch)).logits, torch.tensor([label for _, label in batch])
        loss = (torch.nn.functional.cross_entropy(logits, right) if labels > 1
                else value_loss(kind, logits[:, 0], torch.full((BATCH,), 0.25, dtype=torch.float64)))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    wrong = job.differ('loss', job.losses(steps), losses, LOSS_BOUND)
    job.sherd('ckpt', 'export', 'run/out/checkpoint', '--adapter', 'end', folder=folder)
    there = precise(peft.PeftModel.from_pretrained(open_base(folder / 'begin'), folder / 'end'))
    with torch.no_grad():
        expected, found = (m(**padded(texts)).logits for m in (model, there))
    job.sherd('ckpt', 'export', 'run/out/checkpoint', '--merge', '-o', 'merged', folder=folder)
    with torch.no_grad():
        merged = precise(open_base(folder / 'merged'))(**padded(texts)).logits
    off = max(float((expected - logits).abs().max()) for logits in (found, merged))
    return wrong + ([] if off <= LOGIT_BOUND else [f'logits {off:.2g} off'])


def case_merged(name):
    """Adapters that PEFT would take for those of experts, with a matrix of labels: the merged folder has the loss of the
    checkpoint, and the end of the run names this export alone."""
    folder = pathlib.Path(f'{name}-merged')
    folder.mkdir()
    pairs.write_documents(folder / 'texts.bin', [(text, [label]) for text, label in texts], WORDS, 1)
    model, open_base = make(name, folder / 'begin', **DENSE.get(name, {})), transformers.AutoModelForSequenceClassification.from_pretrained
    job.prepare(folder / 'run', {'job.dump_folder': 'out', **RUN, 'model.hf_assets_path': '../begin', 'lora.rank': 3, 'lora.alpha': 6,
                                 'validation.enable': False, 'lora.target_modules': 'o_proj,down_proj', 'optimizer.lr': 0.01})
    said = job.launch('train', 'c.yaml', folder=folder / 'run')[1]
    wrong = [] if '--merge -o' in said and '--adapter' not in said else [said[-500:]]
    job.sherd('ckpt', 'export', 'run/out/checkpoint', '--merge', '-o', 'merged', folder=folder)
    eval_said = job.sherd('eval', '--checkpoint', 'run/out', '--data', 'texts.bin', folder=folder).split()
    loss = {}
    for which, there in ('merged', precise(open_base(folder / 'merged'))), ('begin', model):
        with torch.no_grad():
            loss[which] = float(torch.nn.functional.cross_entropy(there(**padded(texts)).logits, torch.tensor([label for _, label in texts])))
    wanted = float(eval_said[eval_said.index('loss') + 1])
    return wrong + ([] if abs(loss['merged'] - wanted) < 1e-5 < abs(loss['begin'] - wanted) else [f'{loss}, expected {wanted}'])


if __name__ == '__main__':
    torch.set_num_threads(1)
    texts = draw_texts(5, STEPS * BATCH)
    sys.exit(job.run_cases([(f'{name}ForSequenceClassification', case, name) for name in MODELS]
                           + [(f'{name}: several labels', case_several, name) for name in ('Qwen2', 'GPT2')]
                           + [(f'{name}: {kind}', case_value, name, kind) for name, kind in (('Qwen2', 'reward'), ('GPT2', 'regression'))]
                           + [(f'{name}: {kind}, adapters', case_adapters, name, kind)
                              for name, kind in (('Qwen2', 'reward'), ('GPT2', 'classification'), ('Qwen3_5Text', 'classification'))]
                           + [(f'{name}: merged', case_merged, name) for name in ('DeepseekV3', 'Qwen3Moe')]))
