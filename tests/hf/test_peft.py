#!/usr/bin/env python3
"""Adapters compared with PEFT's, for every family, those with experts too: 20 steps from the same random adapters, PEFT opening the result, and
both merging it. Prints TAP. Needs the virtual environment that tests/hf/venv makes; SHERD_HF_VENV names it.
"""
import json
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

job.enter_venv('peft')
import peft
import torch
import transformers
from safetensors.torch import load_file

STEPS, BATCH, SEQ = 20, 4, 33
LOSS_BOUND, CHANGE_BOUND, MERGE_BOUND = 1e-5, 1e-4, 1e-5
LOGIT_BOUND = 1e-5  # both in float64, with adapters trained in float32 and in float64; seen: 2.2e-6
RUN = {
    'training.seq_len': SEQ, 'training.local_batch_size': BATCH, 'training.global_batch_size': BATCH, 'training.steps': STEPS,
    'training.mixed_precision_param': 'float32', 'training.max_norm': 0, 'training.threads': 1, 'data.shuffle': False,
    'training.dataset_path': '../tokens.bin', 'optimizer.lr': 2e-3, 'optimizer.beta1': 0.9, 'optimizer.beta2': 0.95,
    'optimizer.eps': 1e-4, 'optimizer.weight_decay': 0.1, 'lr_scheduler.decay_type': 'constant',
}
SIZES = dict(vocab_size=101, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             max_position_embeddings=64)
GPT2 = dict(vocab_size=97, n_embd=64, n_layer=3, n_head=4, n_positions=33, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
            bos_token_id=None, eos_token_id=None)
IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
ALL = dict(r=4, lora_alpha=8, target_modules='all-linear')
SOME = dict(r=3, lora_alpha=5, target_modules=['q_proj', 'v_proj'], use_rslora=True)
# all-linear of PEFT 0.21 means routers and experts too, in these families, with another rank.
ATTENTION = dict(r=4, lora_alpha=8, target_modules=['q_proj', 'k_proj', 'v_proj', 'o_proj'])
STACKS = ['mlp.experts.gate_up_proj', 'mlp.experts.down_proj']
MOE = dict(SIZES, num_key_value_heads=2, num_experts=5, num_experts_per_tok=2, **IDS)
# Norms of heads are steep where a query meets no key (doc/decisions/0077).
DELTA = dict(num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
             linear_value_head_dim=12, layer_types=['linear_attention', 'full_attention', 'linear_attention'], rms_norm_eps=0.1, **IDS)
MODELS = {
    'llama': (transformers.LlamaConfig, dict(SIZES, num_key_value_heads=2), ALL),
    'llama, queries and values': (transformers.LlamaConfig, dict(SIZES, tie_word_embeddings=True), SOME),
    'llama, biases': (transformers.LlamaConfig, dict(SIZES, attention_bias=True, mlp_bias=True), ALL),
    'mistral': (transformers.MistralConfig, dict(SIZES, num_key_value_heads=2, sliding_window=64), ALL),
    'qwen2': (transformers.Qwen2Config, dict(SIZES, num_key_value_heads=2), ALL),
    'phi3': (transformers.Phi3Config, dict(SIZES, num_key_value_heads=2, **IDS), ALL),
    'phi3, one of the two stacks': (transformers.Phi3Config, dict(SIZES, num_key_value_heads=2, **IDS),
                                    dict(r=2, lora_alpha=3, target_modules=['gate_up_proj'])),
    'smollm3': (transformers.SmolLM3Config, dict(SIZES, num_hidden_layers=4, num_key_value_heads=2, **IDS), ALL),
    'starcoder2': (transformers.Starcoder2Config, dict(SIZES, num_key_value_heads=2, sliding_window=None, residual_dropout=0.0,
                                                       embedding_dropout=0.0), ALL),
    'qwen3': (transformers.Qwen3Config, dict(SIZES, num_key_value_heads=2, head_dim=24, **IDS), ALL),
    'olmo2': (transformers.Olmo2Config, dict(SIZES, num_key_value_heads=2, **IDS), ALL),
    'olmo3': (transformers.Olmo3Config, dict(
        SIZES, num_key_value_heads=2, sliding_window=9, layer_types=['sliding_attention', 'full_attention', 'sliding_attention'], **IDS), ALL),
    'exaone4': (transformers.Exaone4Config, dict(
        SIZES, num_key_value_heads=2, sliding_window=9, layer_types=['sliding_attention', 'full_attention', 'sliding_attention'], **IDS), ALL),
    'seed_oss': (transformers.SeedOssConfig, dict(SIZES, num_key_value_heads=2, head_dim=24, mlp_bias=True, attention_dropout=0.0, residual_dropout=0.0, **IDS), ALL),
    'gemma': (transformers.GemmaConfig, dict(SIZES, num_key_value_heads=2, head_dim=24, **IDS), ALL),
    'gemma3_text': (transformers.Gemma3TextConfig, dict(SIZES, num_key_value_heads=2, head_dim=24, sliding_window=9,
                                                        query_pre_attn_scalar=20, **IDS), ALL),
    'gpt_neox': (transformers.GPTNeoXConfig, dict(SIZES, **IDS), ALL),
    'gpt2': (transformers.GPT2Config, dict(GPT2), dict(ALL, fan_in_fan_out=True)),
    'mixtral, experts': (transformers.MixtralConfig, dict(SIZES, num_key_value_heads=2, num_local_experts=5, **IDS),
                         dict(ATTENTION, target_parameters=STACKS)),
    'qwen3_moe, experts': (transformers.Qwen3MoeConfig, dict(MOE, head_dim=24, moe_intermediate_size=40),
                           dict(SOME, target_parameters=STACKS)),
    'qwen3_moe, one of the two stacks': (transformers.Qwen3MoeConfig, dict(MOE, head_dim=24, moe_intermediate_size=40),
                                         dict(r=2, lora_alpha=3, target_modules=[], target_parameters=STACKS[:1])),
    'qwen2_moe, experts and the shared one': (
        transformers.Qwen2MoeConfig, dict(MOE, moe_intermediate_size=40, shared_expert_intermediate_size=56, mlp_only_layers=[0]),
        dict(r=3, lora_alpha=5, target_modules=['q_proj', 'gate_proj', 'up_proj', 'down_proj'], target_parameters=STACKS)),
    'granitemoe, experts': (transformers.GraniteMoeConfig, dict(
        SIZES, num_key_value_heads=2, num_local_experts=5, embedding_multiplier=3.0, residual_multiplier=0.6,
        logits_scaling=1.5, attention_multiplier=0.25, **IDS),
        dict(ATTENTION, target_parameters=['block_sparse_moe.' + name.removeprefix('mlp.') for name in STACKS])),
    'olmoe, experts': (transformers.OlmoeConfig, dict(MOE), dict(ATTENTION, target_parameters=STACKS[1:])),
    'gemma4_text, keys as values': (transformers.Gemma4TextConfig, dict(
        SIZES, num_key_value_heads=2, head_dim=16, global_head_dim=24, attention_k_eq_v=True, num_global_key_value_heads=1,
        sliding_window=9, hidden_size_per_layer_input=0, layer_types=['sliding_attention'] + ['full_attention'] * (SIZES['num_hidden_layers'] - 1),
        **IDS), dict(ATTENTION, target_modules=['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'])),
    'gemma4_text, inputs for each block, shared keys and values': (transformers.Gemma4TextConfig, dict(
        dict(SIZES, num_hidden_layers=4), num_key_value_heads=2, head_dim=16, global_head_dim=24, sliding_window=9, num_kv_shared_layers=2,
        use_double_wide_mlp=True, hidden_size_per_layer_input=10, vocab_size_per_layer_input=SIZES['vocab_size'],
        layer_types=['sliding_attention', 'full_attention'] * 2, **IDS),
        dict(ATTENTION, target_modules=['q_proj', 'k_proj', 'v_proj', 'down_proj', 'per_layer_input_gate', 'per_layer_projection'])),
    'deepseek_v3, latent attention and experts': (transformers.DeepseekV3Config, dict(
        SIZES, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=16,
        n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, n_group=4, topk_group=2, first_k_dense_replace=1,
        num_nextn_predict_layers=0, **IDS),
        dict(r=4, lora_alpha=8, target_modules=['q_a_proj', 'q_b_proj', 'kv_a_proj_with_mqa', 'kv_b_proj', 'o_proj'],
             target_parameters=STACKS)),
    'granitemoe, experts, other factors': (transformers.GraniteMoeConfig, dict(SIZES, num_key_value_heads=2, num_local_experts=5,
                                                                attention_multiplier=0.25, residual_multiplier=0.5, **IDS),
                            dict(ATTENTION, target_parameters=[f'block_sparse_moe.{stack[4:]}' for stack in STACKS])),
    'ministral3': (transformers.Ministral3Config, dict(
        SIZES, num_key_value_heads=2, head_dim=24, **IDS, rope_parameters={
            'rope_type': 'yarn', 'rope_theta': 1e4, 'factor': 4.0, 'original_max_position_embeddings': 40, 'llama_4_scaling_beta': 0.1}), ALL),
    'cohere2': (transformers.Cohere2Config, dict(SIZES, num_key_value_heads=2, sliding_window_pattern=2, **IDS), ALL),
    'glm4': (transformers.Glm4Config, dict(SIZES, num_key_value_heads=2, head_dim=24, **IDS), ALL),
    'gpt_oss': (transformers.GptOssConfig, dict(
        SIZES, num_key_value_heads=2, head_dim=24, sliding_window=9, num_local_experts=5, num_experts_per_tok=2, **IDS,
        rope_parameters={'rope_type': 'default', 'rope_theta': 1e4}), dict(ATTENTION, target_parameters=STACKS)),
    'gpt_oss, one of the two stacks': (transformers.GptOssConfig, dict(
        SIZES, num_key_value_heads=2, head_dim=24, sliding_window=9, num_local_experts=5, num_experts_per_tok=2, **IDS,
        rope_parameters={'rope_type': 'default', 'rope_theta': 1e4}), dict(SOME, target_parameters=STACKS[:1])),
    'qwen3_5_text': (transformers.Qwen3_5TextConfig, dict(SIZES, **DELTA), ALL),
    'qwen3_5_text, some products of both kinds of blocks': (transformers.Qwen3_5TextConfig, dict(SIZES, **DELTA), dict(
        r=3, lora_alpha=5, target_modules=['in_proj_qkv', 'in_proj_a', 'out_proj', 'q_proj', 'v_proj'])),
    # PEFT has no adapters of its out_proj.
    'nemotron_h': (transformers.NemotronHConfig, dict(
        {key: value for key, value in SIZES.items() if key != 'num_hidden_layers'}, num_key_value_heads=2, head_dim=16, mamba_num_heads=4,
        mamba_head_dim=12, ssm_state_size=8, n_groups=2, layer_norm_epsilon=0.1, layers_block_type=['linear_attention', 'mlp', 'full_attention'],
        **IDS), dict(r=3, lora_alpha=5, target_modules=['in_proj', 'up_proj', 'q_proj', 'v_proj'])),
    # PEFT has them of this class's.
    'granitemoehybrid': (transformers.GraniteMoeHybridConfig, dict(
        SIZES, num_key_value_heads=2, num_local_experts=5, mamba_n_heads=4, mamba_d_state=8, mamba_n_groups=2, shared_intermediate_size=40,
        attention_multiplier=0.25, residual_multiplier=0.5, rms_norm_eps=0.1, layer_types=['linear_attention'] * (SIZES['num_hidden_layers'] - 1)
        + ['full_attention'], **IDS),
        dict(r=3, lora_alpha=5, target_modules=['in_proj', 'out_proj', 'input_linear', 'output_linear', 'q_proj', 'v_proj'],
             target_parameters=[f'block_sparse_moe.{stack[4:]}' for stack in STACKS])),
    'gpt2, one product': (transformers.GPT2Config, dict(GPT2),
                          dict(r=5, lora_alpha=8, target_modules=['mlp.c_proj'], fan_in_fan_out=True, use_rslora=True)),
}


def slug(text):
    return ''.join(c if c.isalnum() else '-' for c in text)


def make(name, folder, dtype=torch.float32):
    """A random model, far from the usual initial values."""
    torch.manual_seed(20)
    kind, values, _ = MODELS[name]
    model = transformers.AutoModelForCausalLM.from_config(kind(**values))
    around = 0.0 if model.config.model_type.startswith(('gemma', 'qwen3_5')) else 1.0  # where norms are the identity
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.ndim > 1:
                p.normal_(0, 0.3 if 'wte' in key or 'wpe' in key or 'embed' in key else 0.15)
            elif key.endswith('weight'):
                p.uniform_(around - 0.5, around + 0.5)
            else:
                p.normal_(0, 0.2)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)
    return model.config.vocab_size


def is_read(name):
    """Whether Sherd reads such a folder: some families can be trained only from their keys, and say so."""
    make(name, 'read-base')
    done = subprocess.run(job.command(0, ['plan', '--model.hf=read-base', '--training.seq_len=8']), capture_output=True, text=True)
    if done.returncode and ('not computed here' in done.stderr or 'neither read nor written yet' in done.stderr):
        print(f'# {name} is left out: {done.stderr.strip()}')
        return False
    return True


def make_adapter(name, base, folder):
    """Random adapters: with B = 0 the first gradient of A is zero."""
    model = peft.get_peft_model(open_base(base), peft.LoraConfig(task_type='CAUSAL_LM', **MODELS[name][2]))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if 'lora_' in key:
                p.normal_(0, 0.1)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)


def open_base(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if hasattr(model, 'set_experts_implementation'):
        model.set_experts_implementation('eager')  # the others have no float64
    return model


def make_tokens(vocabulary):
    stream = torch.randint(0, vocabulary, (STEPS * BATCH * SEQ + 1,), generator=torch.Generator().manual_seed(10)).tolist()
    with open('tokens.bin', 'wb') as f:
        f.write(b''.join(t.to_bytes(2, 'little') for t in stream))
    return stream


def batch(stream, step):
    at = step * BATCH * SEQ
    return torch.tensor([stream[at + i * SEQ:at + (i + 1) * SEQ + 1] for i in range(BATCH)])


def reference(base, adapter, stream):
    model = peft.PeftModel.from_pretrained(open_base(base), adapter, is_trainable=True).double().eval()
    trained = {key.replace('.default', ''): p for key, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=2e-3, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        rows = batch(stream, step)
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {key: p.detach() for key, p in trained.items()}, model


def keys(name):
    lora = MODELS[name][2]
    targets = lora['target_modules']
    return {'lora.rank': lora['r'], 'lora.alpha': lora['lora_alpha'], 'lora.use_rslora': lora.get('use_rslora', False),
            'lora.target_modules': targets if isinstance(targets, str) else ','.join(targets),
            'lora.target_parameters': ','.join(lora.get('target_parameters', []))}


def off(a, b):
    return ((a - b).norm() / b.norm().clamp_min(1e-300)).item()


@torch.no_grad()
def logits_of(model, rows):
    return model.double().eval()(input_ids=rows[:, :-1], use_cache=False).logits


def compare_changes(before, found, wanted):
    wrong = [f'tensors {sorted(found)}, wanted {sorted(wanted)}'] * (found.keys() != wanted.keys())
    for key in found.keys() & wanted.keys():
        change = off(found[key].double() - before[key].double(), wanted[key] - before[key].double())
        wrong += [f'{key}: its change is {change:.2g} off'] if not change <= CHANGE_BOUND else []
    return wrong


def case_train(name):
    folder = slug(name)
    stream = make_tokens(make(name, f'{folder}-base'))
    make_adapter(name, f'{folder}-base', f'{folder}-adapter')
    before = load_file(f'{folder}-adapter/adapter_model.safetensors')
    losses, after, model = reference(f'{folder}-base', f'{folder}-adapter', stream)
    steps = job.train(folder, {**RUN, **keys(name), 'model.hf_assets_path': f'../{folder}-base',
                               'lora.adapter_path': f'../{folder}-adapter'})
    wrong = job.differ('loss', job.losses(steps), losses, LOSS_BOUND)
    for where in f'{folder}-out', f'{folder}-merged':
        shutil.rmtree(where, ignore_errors=True)
    job.sherd('ckpt', 'export', f'{folder}/out', '--adapter', f'{folder}-out')
    job.sherd('ckpt', 'export', f'{folder}/out', '--merge', '-o', f'{folder}-merged')
    wrong += compare_changes(before, load_file(f'{folder}-out/adapter_model.safetensors'), after)
    # The adapter as PEFT opens it, and the merged model as transformers opens it.
    rows = batch(stream, 0)
    opened = peft.PeftModel.from_pretrained(open_base(f'{folder}-base'), f'{folder}-out')
    wanted = logits_of(opened, rows)
    for what, found, bound in (('logits of 20 steps', logits_of(model, rows), LOGIT_BOUND),
                               ('merged', logits_of(open_base(f'{folder}-merged'), rows), MERGE_BOUND)):
        wrong += [f'{what}: {off(found, wanted):.2g} off'] if not off(found, wanted) <= bound else []
    _, info = transformers.AutoModelForCausalLM.from_pretrained(f'{folder}-merged', output_loading_info=True)
    wrong += [f'{key}: {sorted(value)}' for key, value in info.items() if value]
    # And PEFT's own merge of it.
    theirs = opened.float().merge_and_unload().state_dict()
    ours = open_base(f'{folder}-merged').state_dict()  # files may have other names, and a matrix for each expert
    wrong += [f'{key}: {off(ours[key].double(), theirs[key].double()):.2g} off PEFT\'s merge' for key in ours
              if not off(ours[key].double(), theirs[key].double()) <= MERGE_BOUND]
    return wrong


def case_begin(name):
    """Without initial adapters: A has PEFT's distribution, B is zero, and the model is unchanged."""
    folder = f'{slug(name)}-begin'
    stream = make_tokens(make(name, f'{folder}-base'))
    steps = job.train(folder, {**RUN, **keys(name), 'model.hf_assets_path': f'../{folder}-base', 'training.steps': 1,
                               'checkpoint.create_seed_checkpoint': True})
    shutil.rmtree(f'{folder}-out', ignore_errors=True)
    job.sherd('ckpt', 'export', f'{folder}/out/checkpoint/step-00000000.h5', '--adapter', f'{folder}-out')
    ours = load_file(f'{folder}-out/adapter_model.safetensors')
    make_adapter(name, f'{folder}-base', f'{folder}-peft')
    theirs = peft.get_peft_model(open_base(f'{folder}-base'), peft.LoraConfig(task_type='CAUSAL_LM', **MODELS[name][2]))
    theirs = {key.replace('.default', ''): p for key, p in theirs.named_parameters() if 'lora_' in key}
    wrong = [f'tensors {sorted(ours)}'] * (ours.keys() != theirs.keys())
    for key in ours.keys() & theirs.keys():
        bound = ours[key].shape[1] ** -0.5 if 'lora_A' in key else 0
        spread = ours[key].abs().max().item()
        if ours[key].shape != theirs[key].shape or spread > bound or bound and spread < 0.8 * bound:
            wrong.append(f'{key}: up to {spread}, PEFT up to {theirs[key].abs().max().item()}')
    rows = batch(stream, 0)
    loss = torch.nn.functional.cross_entropy(logits_of(open_base(f'{folder}-base'), rows).flatten(0, 1), rows[:, 1:].flatten())
    return wrong + job.differ('loss', job.losses(steps), [loss.item()], LOSS_BOUND)


def case_bfloat16():
    """A model in bfloat16: merged in float32 and rounded once, to the bit as torch rounds (except exact ties)."""
    name = 'llama'
    make_tokens(make(name, 'bf16-base', torch.bfloat16))
    make_adapter(name, 'bf16-base', 'bf16-adapter')
    job.train('bf16', {**RUN, **keys(name), 'model.hf_assets_path': '../bf16-base', 'lora.adapter_path': '../bf16-adapter',
                       'training.steps': 2, 'training.mixed_precision_param': 'bfloat16'})
    for where in 'bf16-out', 'bf16-merged':
        shutil.rmtree(where, ignore_errors=True)
    job.sherd('ckpt', 'export', 'bf16/out', '--adapter', 'bf16-out')
    job.sherd('ckpt', 'export', 'bf16/out', '--merge', '-o', 'bf16-merged', '--dtype', 'bfloat16')
    theirs = peft.PeftModel.from_pretrained(open_base('bf16-base'), 'bf16-out').double().merge_and_unload().state_dict()
    ours = load_file('bf16-merged/model.safetensors')
    wrong = []
    for key, p in ours.items():
        differs = (p != theirs[key].float().to(torch.bfloat16)).double().mean().item()
        wrong += [f'{key}: {differs:.2g} of it differs'] if differs > 1e-3 else []
    return wrong


def case_taken_for_experts():
    """PEFT would take adapters of dense and shared parts for those of experts, so they are exported merged alone."""
    name, wrong = 'deepseek_v3, latent attention and experts', []
    make_tokens(make(name, 'taken-base'))
    for module in 'mlp.gate_proj', 'shared_experts.down_proj':
        job.train('taken', {**RUN, 'model.hf_assets_path': '../taken-base', 'training.steps': 1, 'lora.rank': 2, 'lora.target_modules': module})
        try:
            job.sherd('ckpt', 'export', 'taken/out', '--adapter', 'taken-out')
            wrong.append(f'{module}: written')
        except job.Failed as refused:
            wrong += [] if 'of a deepseek_v3 outside of experts' in str(refused) else [str(refused)]
    return wrong


if __name__ == '__main__':
    torch.set_num_threads(1)
    names = [name for name in MODELS if is_read(name)]
    sys.exit(job.run_cases([(f'{name}: {STEPS} steps, export, merge', case_train, name) for name in names]
                           + [(f'{name}: where it begins', case_begin, name) for name in names if name in ('llama', 'phi3', 'gpt2', 'qwen3_moe, experts')]
                           + [('bfloat16: merged', case_bfloat16), ('deepseek_v3: outside of experts', case_taken_for_experts)]))
