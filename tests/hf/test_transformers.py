#!/usr/bin/env python3
"""Folders of transformers with random models: 20 steps of training from each, the export, and the meaning of
config.json when keys are absent. Prints TAP. Needs the virtual environment that tests/hf/venv makes; SHERD_HF_VENV
names it.
"""
import array
import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

job.enter_venv()
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

STEPS, BATCH, SEQ = 20, 4, 33
LOSS_BOUND = 1e-5
GRADIENT_BOUND = 2e-5  # norm of the difference over norm, each tensor
CHANGE_BOUND = 1e-4  # norm of the difference over norm, of the change of a tensor in 20 steps
# An eps this large keeps gradients that are zero up to rounding, like those of key biases, from moving a weight.
RUN = {
    'training.seq_len': SEQ, 'training.local_batch_size': BATCH, 'training.global_batch_size': BATCH, 'training.steps': STEPS,
    'training.mixed_precision_param': 'float32', 'training.max_norm': 0, 'training.threads': 1, 'data.shuffle': False,
    'training.dataset_path': '../tokens.bin', 'optimizer.lr': 2e-3, 'optimizer.beta1': 0.9, 'optimizer.beta2': 0.95,
    'optimizer.eps': 1e-4, 'optimizer.weight_decay': 0.1, 'lr_scheduler.decay_type': 'constant',
    'checkpoint.last_save_in_hf': True,
}
# One step of SGD leaves the weights plus the gradient times -lr; with lr this large, the weights are far below
# rounding.
SLOPE = {**RUN, 'training.steps': 1, 'optimizer.name': 'SGD', 'optimizer.beta1': 0, 'optimizer.weight_decay': 0,
         'optimizer.lr': 1e3}
for key in 'optimizer.beta2', 'optimizer.eps':
    del SLOPE[key]
SIZES = dict(vocab_size=101, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             max_position_embeddings=64)
LLAMA3 = {'rope_type': 'llama3', 'rope_theta': 500.0, 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
          'original_max_position_embeddings': 256}
# Of the eight frequencies two lie before the ramp and one after it.
YARN = {'rope_type': 'yarn', 'rope_theta': 100.0, 'factor': 4.0, 'original_max_position_embeddings': 32, 'beta_fast': 4.0}
MINISTRAL = dict(YARN, original_max_position_embeddings=48, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)
LONGROPE = {'rope_type': 'longrope', 'rope_theta': 100.0, 'short_factor': [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
            'long_factor': [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0]}
GROUPED = dict(SIZES, num_key_value_heads=2, pad_token_id=None, bos_token_id=1, eos_token_id=2)
NEOX = dict(SIZES, pad_token_id=None, bos_token_id=1, eos_token_id=2)
FEW = dict(num_experts=6, num_experts_per_tok=2)
QWEN_MOE = dict(FEW, moe_intermediate_size=48)
OSS = dict(GROUPED, head_dim=24, sliding_window=9, num_local_experts=6, num_experts_per_tok=2)
# The norm of what a head makes is steep where a query meets no key: the class computes that in float32 whatever its type.
DELTA = dict(head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
             rms_norm_eps=0.1)
NEMOTRON = dict(GROUPED, mamba_num_heads=4, mamba_head_dim=12, ssm_state_size=8, n_groups=2, head_dim=24, layer_norm_epsilon=0.1)
del NEMOTRON['num_hidden_layers']
NANO = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, moe_shared_expert_intermediate_size=56, n_group=4,
            topk_group=2, routed_scaling_factor=2.5)
DEEPSEEK = dict(NEOX, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=16,
                n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, n_shared_experts=2, n_group=4, topk_group=2,
                first_k_dense_replace=1, num_nextn_predict_layers=0)
GEMMA4 = dict(GROUPED, head_dim=16, global_head_dim=24, sliding_window=9, hidden_size_per_layer_input=0, vocab_size_per_layer_input=101,
              layer_types=['full_attention', 'sliding_attention', 'full_attention'])
SMALL4 = dict(GEMMA4, rms_norm_eps=0.1, num_hidden_layers=7, num_kv_shared_layers=3, hidden_size_per_layer_input=10,
              layer_types=[f'{kind}_attention' for kind in 'sliding full sliding sliding full sliding full'.split()])
GRANITE = dict(embedding_multiplier=3.0, residual_multiplier=0.6, logits_scaling=1.5)
HYBRID = dict(dict(GROUPED, num_hidden_layers=4), **GRANITE, attention_multiplier=0.25, mamba_n_heads=8, mamba_d_head=16, mamba_d_state=8,
              mamba_chunk_size=16, shared_intermediate_size=72, rms_norm_eps=0.1)
GPT2 = dict(vocab_size=97, n_embd=64, n_layer=3, n_head=4, n_positions=33, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
            bos_token_id=None, eos_token_id=None)
MODELS = {
    'llama': (transformers.LlamaConfig, dict(SIZES)),
    'llama tied, grouped, wide heads': (transformers.LlamaConfig, dict(SIZES, tie_word_embeddings=True, num_key_value_heads=2,
                                                                       head_dim=24, rms_norm_eps=1e-5)),
    'llama, llama3 rope': (transformers.LlamaConfig, dict(SIZES, rope_parameters=LLAMA3, num_key_value_heads=1)),
    'llama, linear rope, biases': (transformers.LlamaConfig, dict(
        SIZES, rope_parameters={'rope_type': 'linear', 'rope_theta': 1e4, 'factor': 3.0}, attention_bias=True, mlp_bias=True)),
    'llama, yarn': (transformers.LlamaConfig, dict(SIZES, rope_parameters=YARN)),
    'llama, yarn, ends not rounded': (transformers.LlamaConfig, dict(
        SIZES, rope_parameters=dict(YARN, truncate=False, attention_factor=1.3, beta_slow=0.5))),
    'llama, yarn, two scales': (transformers.LlamaConfig, dict(
        SIZES, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.5))),
    'llama, dynamic rope': (transformers.LlamaConfig, dict(
        SIZES, rope_parameters={'rope_type': 'dynamic', 'rope_theta': 1e4, 'factor': 2.0})),
    'mistral': (transformers.MistralConfig, dict(GROUPED, sliding_window=64)),
    'mistral, tied, wide heads': (transformers.MistralConfig, dict(GROUPED, head_dim=24, tie_word_embeddings=True,
                                                                   sliding_window=None)),
    'qwen2': (transformers.Qwen2Config, dict(GROUPED)),
    'qwen2, tied, window': (transformers.Qwen2Config, dict(GROUPED, tie_word_embeddings=True, use_sliding_window=True,
                                                           sliding_window=33, max_window_layers=1)),
    'mistral, window seen': (transformers.MistralConfig, dict(GROUPED, sliding_window=9)),
    'qwen2, window seen': (transformers.Qwen2Config, dict(GROUPED, use_sliding_window=True, sliding_window=9,
                                                          max_window_layers=1)),
    'qwen3, window seen, one block without': (transformers.Qwen3Config, dict(
        GROUPED, head_dim=24, use_sliding_window=True, sliding_window=9,
        layer_types=['sliding_attention', 'full_attention', 'sliding_attention'])),
    'phi3': (transformers.Phi3Config, dict(GROUPED)),
    'phi3, a part of each head turned': (transformers.Phi3Config, dict(GROUPED, rope_parameters={
        'rope_type': 'default', 'rope_theta': 1e4, 'partial_rotary_factor': 0.75})),
    'phi3, longrope, short': (transformers.Phi3Config, dict(GROUPED, rope_parameters=LONGROPE, original_max_position_embeddings=33)),
    'phi3, longrope, long, a part of each head turned': (transformers.Phi3Config, dict(
        GROUPED, original_max_position_embeddings=20, rope_parameters=dict(
            LONGROPE, partial_rotary_factor=0.5, short_factor=[1.0, 1.25, 1.5, 2.0], long_factor=[1.0, 2.0, 5.5, 9.0]))),
    'llama, longrope, long': (transformers.LlamaConfig, dict(
        SIZES, rope_parameters=dict(LONGROPE, original_max_position_embeddings=32, factor=4.0, attention_factor=1.25))),
    'phi3, tied': (transformers.Phi3Config, dict(GROUPED, tie_word_embeddings=True)),
    'smollm3': (transformers.SmolLM3Config, dict(GROUPED, num_hidden_layers=4)),
    'smollm3, untied, other blocks': (transformers.SmolLM3Config, dict(GROUPED, tie_word_embeddings=False,
                                                                       no_rope_layers=[1, 0, 1])),
    'smollm3, blocks of four kinds': (transformers.SmolLM3Config, dict(
        GROUPED, num_hidden_layers=5, no_rope_layers=[0, 1, 0, 1, 1], use_sliding_window=True, sliding_window=9,
        layer_types=['sliding_attention', 'sliding_attention', 'full_attention', 'full_attention', 'sliding_attention'])),
    'starcoder2': (transformers.Starcoder2Config, dict(GROUPED)),
    'starcoder2, untied': (transformers.Starcoder2Config, dict(GROUPED, tie_word_embeddings=False)),
    'qwen3': (transformers.Qwen3Config, dict(GROUPED, head_dim=24)),
    'qwen3, tied, biases': (transformers.Qwen3Config, dict(GROUPED, head_dim=16, tie_word_embeddings=True,
                                                           attention_bias=True)),
    'olmo2': (transformers.Olmo2Config, dict(GROUPED)),
    'olmo2, tied, biases': (transformers.Olmo2Config, dict(GROUPED, tie_word_embeddings=True, attention_bias=True)),
    'olmo3, yarn in blocks without a window': (transformers.Olmo3Config, dict(
        GROUPED, num_hidden_layers=4, sliding_window=9, rope_parameters={
            'full_attention': YARN, 'sliding_attention': {'rope_type': 'default', 'rope_theta': 500.0}})),
    'olmo3, tied, biases, other blocks': (transformers.Olmo3Config, dict(
        GROUPED, sliding_window=12, tie_word_embeddings=True, attention_bias=True,
        layer_types=['full_attention', 'sliding_attention', 'sliding_attention'])),
    'exaone4': (transformers.Exaone4Config, dict(GROUPED, num_hidden_layers=5, sliding_window=9)),
    'exaone4, tied, without a window, linear rope': (transformers.Exaone4Config, dict(
        GROUPED, sliding_window=None, tie_word_embeddings=True, layer_types=['full_attention'] * 3,
        rope_parameters={'rope_type': 'linear', 'rope_theta': 1e4, 'factor': 3.0})),
    'seed_oss': (transformers.SeedOssConfig, dict(GROUPED, head_dim=24)),
    'seed_oss, tied, biases': (transformers.SeedOssConfig, dict(GROUPED, head_dim=16, mlp_bias=True, tie_word_embeddings=True)),
    'gemma': (transformers.GemmaConfig, dict(GROUPED, head_dim=24)),
    'gemma, untied': (transformers.GemmaConfig, dict(GROUPED, head_dim=16, tie_word_embeddings=False,
                                                     attention_bias=True)),
    'gemma2, window seen': (transformers.Gemma2Config, dict(
        GROUPED, num_hidden_layers=4, head_dim=24, sliding_window=9, query_pre_attn_scalar=20, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0)),
    'gemma2, untied, biases, one cap, other blocks': (transformers.Gemma2Config, dict(
        GROUPED, head_dim=16, sliding_window=12, tie_word_embeddings=False, attention_bias=True, attn_logit_softcapping=None,
        layer_types=['full_attention', 'sliding_attention', 'sliding_attention'])),
    'gemma3_text, window seen': (transformers.Gemma3TextConfig, dict(
        GROUPED, num_hidden_layers=4, head_dim=24, sliding_window=9, query_pre_attn_scalar=20,
        layer_types=['sliding_attention', 'sliding_attention', 'full_attention', 'sliding_attention'])),
    'gemma3_text, untied, linear rope': (transformers.Gemma3TextConfig, dict(
        GROUPED, num_hidden_layers=7, head_dim=16, sliding_window=12, query_pre_attn_scalar=16, tie_word_embeddings=False,
        attention_bias=True, rope_parameters={
            'full_attention': {'rope_type': 'linear', 'rope_theta': 500.0, 'factor': 8.0},
            'sliding_attention': {'rope_type': 'default', 'rope_theta': 100.0}})),
    'gpt_neox': (transformers.GPTNeoXConfig, dict(NEOX)),
    'gpt_neox, tied, all of each head turned': (transformers.GPTNeoXConfig, dict(NEOX, tie_word_embeddings=True, rope_parameters={
        'rope_type': 'default', 'rope_theta': 500.0, 'partial_rotary_factor': 1.0})),
    'mixtral': (transformers.MixtralConfig, dict(GROUPED, num_local_experts=5)),
    'mixtral, tied, window seen': (transformers.MixtralConfig, dict(
        GROUPED, num_local_experts=4, num_experts_per_tok=3, head_dim=24, tie_word_embeddings=True, sliding_window=9)),
    'qwen2_moe': (transformers.Qwen2MoeConfig, dict(GROUPED, **QWEN_MOE, shared_expert_intermediate_size=40)),
    'qwen2_moe, first block dense, window in one, scores divided': (transformers.Qwen2MoeConfig, dict(
        GROUPED, **QWEN_MOE, shared_expert_intermediate_size=56, mlp_only_layers=[0], norm_topk_prob=True,
        use_sliding_window=True, sliding_window=9,
        layer_types=['full_attention', 'full_attention', 'sliding_attention'])),
    'qwen3_moe': (transformers.Qwen3MoeConfig, dict(GROUPED, **QWEN_MOE, norm_topk_prob=True, head_dim=24)),
    'qwen3_moe, tied, biases, experts in each second block': (transformers.Qwen3MoeConfig, dict(
        GROUPED, **QWEN_MOE, num_hidden_layers=4, decoder_sparse_step=2, attention_bias=True, tie_word_embeddings=True)),
    'olmoe': (transformers.OlmoeConfig, dict(GROUPED, **FEW)),
    'olmoe, tied, biases, scores divided': (transformers.OlmoeConfig, dict(
        GROUPED, **FEW, attention_bias=True, tie_word_embeddings=True, norm_topk_prob=True)),
    'granite': (transformers.GraniteConfig, dict(GROUPED, **GRANITE, attention_multiplier=0.25)),
    'granite, tied, biases': (transformers.GraniteConfig, dict(
        GROUPED, **GRANITE, attention_multiplier=20 ** -0.5, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    'granitemoe': (transformers.GraniteMoeConfig, dict(GROUPED, **GRANITE, attention_multiplier=0.0625, num_local_experts=5)),
    'granitemoe, tied, biases': (transformers.GraniteMoeConfig, dict(
        GROUPED, attention_multiplier=0.25, logits_scaling=0.5, attention_bias=True, num_local_experts=6,
        num_experts_per_tok=3, tie_word_embeddings=True)),
    'gpt_oss': (transformers.GptOssConfig, dict(OSS, rope_parameters=dict(YARN, truncate=False))),
    'gpt_oss, tied, other blocks, linear rope': (transformers.GptOssConfig, dict(
        OSS, head_dim=16, num_local_experts=4, num_experts_per_tok=3, tie_word_embeddings=True,
        layer_types=['full_attention', 'full_attention', 'sliding_attention'],
        rope_parameters={'rope_type': 'linear', 'rope_theta': 500.0, 'factor': 3.0})),
    'cohere2': (transformers.Cohere2Config, dict(GROUPED, num_hidden_layers=4, sliding_window=9, sliding_window_pattern=3)),
    # The gradient of a key's bias is 0 where there are no positions.
    'cohere2, untied, biases, linear rope': (transformers.Cohere2Config, dict(
        GROUPED, tie_word_embeddings=False, attention_bias=True, logit_scale=0.5, sliding_window=9,
        layer_types=['sliding_attention'] * 3,
        rope_parameters={'rope_type': 'linear', 'rope_theta': 500.0, 'factor': 3.0})),
    'cohere': (transformers.CohereConfig, dict(GROUPED, logit_scale=0.5)),
    'qwen3_5_text': (transformers.Qwen3_5TextConfig, dict(GROUPED, num_hidden_layers=4, **DELTA)),
    'qwen3_5_text, tied, biases, other blocks': (transformers.Qwen3_5TextConfig, dict(
        GROUPED, tie_word_embeddings=True, attention_bias=True, layer_types=['full_attention', 'linear_attention', 'linear_attention'],
        **dict(DELTA, linear_num_value_heads=2, linear_conv_kernel_dim=3))),
    'glm4': (transformers.Glm4Config, dict(GROUPED, head_dim=24)),
    'glm4, tied, all of each head turned': (transformers.Glm4Config, dict(
        GROUPED, head_dim=16, tie_word_embeddings=True,
        rope_parameters={'rope_type': 'linear', 'rope_theta': 500.0, 'factor': 3.0, 'partial_rotary_factor': 1.0})),
    'ministral3': (transformers.Ministral3Config, dict(GROUPED, head_dim=24, rope_parameters=MINISTRAL)),
    'ministral3, tied, a window': (transformers.Ministral3Config, dict(
        GROUPED, head_dim=16, tie_word_embeddings=True, sliding_window=9, rope_parameters=MINISTRAL)),
    'gemma4_text': (transformers.Gemma4TextConfig, dict(
        GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1, final_logit_softcapping=5.0)),
    'gemma4_text, untied, values of their own, biases, other positions': (transformers.Gemma4TextConfig, dict(
        GEMMA4, tie_word_embeddings=False, attention_bias=True, rope_parameters={
            'sliding_attention': {'rope_type': 'default', 'rope_theta': 30.0},
            'full_attention': {'rope_type': 'proportional', 'rope_theta': 200.0, 'partial_rotary_factor': 0.5}})),
    # Two blocks read keys and values of the second one, and one those of the fourth.
    'gemma4_text, inputs for each block, shared keys and values': (transformers.Gemma4TextConfig, dict(
        SMALL4, use_double_wide_mlp=True, final_logit_softcapping=5.0)),
    'gemma4_text, shared keys that are values, untied, biases': (transformers.Gemma4TextConfig, dict(
        SMALL4, attention_k_eq_v=True, num_global_key_value_heads=1, tie_word_embeddings=False, attention_bias=True)),
    'gemma4_text, inputs alone': (transformers.Gemma4TextConfig, dict(GEMMA4, rms_norm_eps=0.1, hidden_size_per_layer_input=6)),
    'deepseek_v3': (transformers.DeepseekV3Config, dict(
        DEEPSEEK, rope_parameters=dict(YARN, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0))),
    'deepseek_v3, tied, queries from the stream, no dense block': (transformers.DeepseekV3Config, dict(
        DEEPSEEK, q_lora_rank=None, v_head_dim=20, n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=0,
        norm_topk_prob=False, routed_scaling_factor=1.0, tie_word_embeddings=True,
        rope_parameters=dict(YARN, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=0.4))),
    'nemotron_h': (transformers.NemotronHConfig, dict(
        NEMOTRON, layers_block_type=['linear_attention', 'mlp', 'full_attention', 'linear_attention'])),
    # Half of the steps are below the least one.
    'nemotron_h, biases, one group, a least step': (transformers.NemotronHConfig, dict(
        NEMOTRON, layers_block_type=['mlp', 'linear_attention'], mlp_bias=True, n_groups=1, conv_kernel=3, time_step_min=0.7)),
    'nemotron_h, experts': (transformers.NemotronHConfig, dict(
        {**NEMOTRON, **NANO}, layers_block_type=['linear_attention', 'moe', 'full_attention', 'moe', 'mlp'])),
    'nemotron_h, experts, biases, no groups, no division': (transformers.NemotronHConfig, dict(
        {**NEMOTRON, **NANO}, layers_block_type=['moe', 'linear_attention'], mlp_bias=True, n_group=1, topk_group=1, norm_topk_prob=False,
        routed_scaling_factor=1.0)),
    'granitemoehybrid': (transformers.GraniteMoeHybridConfig, dict(
        HYBRID, num_local_experts=5, layer_types=['linear_attention', 'full_attention', 'linear_attention', 'linear_attention'])),
    # Half of the steps are below the least one.
    'granitemoehybrid, tied, biases, no experts, two groups, a least step': (transformers.GraniteMoeHybridConfig, dict(
        HYBRID, num_local_experts=0, num_experts_per_tok=0, mamba_n_groups=2, mamba_d_conv=3, mamba_n_heads=4, mamba_d_head='auto',
        tie_word_embeddings=True, attention_bias=True, position_embedding_type='rope', time_step_limit=(0.7, float('inf')),
        layer_types=['linear_attention', 'linear_attention', 'full_attention', 'linear_attention'])),
    'granitemoehybrid, attention alone': (transformers.GraniteMoeHybridConfig, dict(
        HYBRID, num_local_experts=0, position_embedding_type='rope', layer_types=['full_attention'] * 4,
        rope_parameters={'rope_type': 'default', 'rope_theta': 500.0})),
    'gpt2': (transformers.GPT2Config, dict(GPT2)),
    'gpt2 untied, n_inner': (transformers.GPT2Config, dict(GPT2, tie_word_embeddings=False, n_inner=80)),
}


# One loss of all blocks together has other gradients than one for each.
ONE_BLOCK = {'mixtral': {'num_hidden_layers': 1}, 'qwen2_moe': {'mlp_only_layers': [0, 1]}, 'qwen3_moe': {'mlp_only_layers': [0, 1]},
             'olmoe': {'num_hidden_layers': 1}, 'granitemoe': {'num_hidden_layers': 1}}


def draw(model):
    plus_one = model.config.model_type.startswith(('gemma', 'qwen3_5')) and model.config.model_type != 'gemma4_text'  # the identity is then at 0
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith('gate_up_proj') and model.config.model_type == 'gpt_oss':
                p.normal_(0, 0.4)  # so that its clamp is met
            elif p.ndim > 1:
                p.normal_(0, 0.3 if 'wte' in name or 'wpe' in name or 'embed' in name else 0.15)
            elif name.endswith('weight'):
                around = 0.0 if plus_one and 'linear_attn' not in name else 1.0
                p.uniform_(around - 0.5, around + 0.5)
            else:
                p.normal_(0, 0.2)
        for name, b in model.named_buffers():
            if name.endswith('e_score_correction_bias'):
                b.normal_(0, 0.1)
            if name.endswith('layer_scalar'):
                b.uniform_(0.5, 1.5)


def make(name, dtype, folder, changes=(), **options):
    torch.manual_seed(20)
    kind, values = MODELS[name]
    model = transformers.AutoModelForCausalLM.from_config(kind(**{**values, **dict(changes)}))
    draw(model)
    model = model.to(dtype)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, **options)
    return model


def make_tokens(vocabulary):
    stream = torch.randint(0, vocabulary, (STEPS * BATCH * SEQ + 1,), generator=torch.Generator().manual_seed(10)).tolist()
    with open('tokens.bin', 'wb') as f:
        array.array('H', stream).tofile(f)
    return stream


def load(folder):
    """Load the model again: to(bfloat16) rounds the rotary frequencies too."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, experts_implementation='eager')
    return model.double().eval()


def loss_of(model, stream, step):
    at = step * BATCH * SEQ
    rows = torch.tensor([stream[at + i * SEQ:at + (i + 1) * SEQ + 1] for i in range(BATCH)])
    logits = model(rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def reference(folder, stream):
    model = load(folder)
    groups = {0.1: [], 0: []}  # as Trainer has them: no decay of biases, even if there is one for each expert
    for name, p in model.named_parameters():
        groups[0.1 if p.ndim > 1 and not name.endswith('_bias') else 0].append(p)
    groups = [{'params': params, 'weight_decay': decay} for decay, params in groups.items()]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95), eps=1e-4)
    losses = []
    for step in range(STEPS):
        loss = loss_of(model, stream, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, parameters(model)


def parameters(model):
    """And the factors of blocks, which training leaves alone."""
    still = [(name, b) for name, b in model.named_buffers() if name.endswith('layer_scalar')]
    return {name: p.detach().clone() for name, p in [*model.named_parameters(), *still]}


def exported(folder):
    """What transformers reads from a folder: files may have other names, and a matrix for each expert."""
    return parameters(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype='auto'))


def compare_changes(before, found, wanted):
    wrong = []
    for name, p in found.items():
        a, b = p.double() - before[name].double(), wanted[name].double() - before[name].double()
        off = ((a - b).norm() / b.norm().clamp_min(1e-300)).item()
        wrong += [f'{name}: its change is {off:.2g} off, bound {CHANGE_BOUND:g}'] if not off <= CHANGE_BOUND else []
    return wrong


def check_loading(folder):
    """from_pretrained() prints no warning."""
    _, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    return [f'{folder}: {key}: {sorted(value)}' for key, value in info.items() if value]


def slug(text):
    return ''.join(c if c.isalnum() else '-' for c in text)


def case_train(name, dtype):
    folder = f'{slug(name)}-{dtype}'.replace('torch.', '')
    model = make(name, dtype, f'{folder}-hf', max_shard_size='100KB')
    before = parameters(model)
    stream = make_tokens(model.config.vocab_size)
    losses, after = reference(f'{folder}-hf', stream)
    steps = job.train(folder, {**RUN, 'model.hf_assets_path': f'../{folder}-hf'})
    last = f'{folder}/out/checkpoint/hf-{STEPS:08}'
    return (job.differ('loss', job.losses(steps), losses, LOSS_BOUND)
            + compare_changes(before, exported(last), after) + check_loading(last))


def case_gradients(name):
    """The gradient of each tensor, at the first step."""
    folder = f'{slug(name)}-slope'
    make(name, torch.float32, f'{folder}-hf')
    model = load(f'{folder}-hf')
    stream = make_tokens(model.config.vocab_size)
    loss_of(model, stream, 0).backward()
    job.train(folder, {**SLOPE, 'model.hf_assets_path': f'../{folder}-hf'})
    return compare_gradients(folder, model)


def compare_gradients(folder, model):
    after = exported(f'{folder}/out/checkpoint/hf-{1:08}')
    wrong = []
    for name, p in model.named_parameters():
        found = (p.detach() - after[name].double()) / SLOPE['optimizer.lr']
        off = ((found - p.grad).norm() / p.grad.norm()).item()
        wrong += [f'{name}: its gradient is {off:.2g} off, bound {GRADIENT_BOUND:g}'] if not off <= GRADIENT_BOUND else []
    return wrong


def case_balance(name, changes):
    """transformers' own loss that balances experts, in a model with one block of them: its part of the gradients, and what
    a step reports, with moe.aux_loss_coeff as doc/from-others.md converts it."""
    folder, weight = f'{slug(name)}-balance', 0.5
    make(name, torch.float32, f'{folder}-hf', changes)
    model = load(f'{folder}-hf')
    stream = make_tokens(model.config.vocab_size)
    rows = torch.tensor(stream[:BATCH * SEQ]).view(BATCH, SEQ)
    aux = weight * model(rows, use_cache=False, output_router_logits=True).aux_loss
    (loss_of(model, stream, 0) + aux).backward()
    steps = job.train(folder, {**SLOPE, 'model.hf_assets_path': f'../{folder}-hf',
                               'moe.aux_loss_coeff': weight * model.config.num_experts_per_tok})
    return job.differ('aux_loss', [steps[0]['aux_loss']], [aux.item()], LOSS_BOUND) + compare_gradients(folder, model)


def case_export(name):
    """Exports in each type, in one file and several; read back, they have the same numbers and the same tied
    tensors."""
    wrong = []
    model = make(name, torch.bfloat16, 'export-hf')
    shutil.rmtree('export-ckpt', ignore_errors=True)
    job.sherd('ckpt', 'import', 'export-hf', '-o', 'export-ckpt')
    for dtype in 'float32', 'bfloat16', 'float16':
        for size in '100KB', '5GB':
            shutil.rmtree('export-out', ignore_errors=True)
            job.sherd('ckpt', 'export', 'export-ckpt', '-o', 'export-out', '--dtype', dtype, '--max-shard-size', size)
            wrong += check_loading('export-out')
            back = transformers.AutoModelForCausalLM.from_pretrained('export-out', dtype='auto')
            if back.dtype != getattr(torch, dtype):
                wrong.append(f'{dtype}: it says {back.dtype}')
            for key, p in model.state_dict().items():
                if not torch.equal(back.state_dict()[key].double(), p.to(getattr(torch, dtype)).double()):
                    wrong.append(f'{dtype}, {size}: {key} differs')
    return wrong


def pack(folder):
    """Give the folder of a gpt_oss experts in MXFP4, any codes and scales around one; returns its tensors, unpacked by
    transformers."""
    config = json.loads(pathlib.Path(f'{folder}/config.json').read_text())
    config['quantization_config'] = {'quant_method': 'mxfp4', 'modules_to_not_convert': ['lm_head']}
    pathlib.Path(f'{folder}/config.json').write_text(json.dumps(config))
    tensors = load_file(f'{folder}/model.safetensors')
    plain = dict(tensors)
    draw = torch.Generator().manual_seed(5)
    for name in [name for name in tensors if name.endswith(('experts.gate_up_proj', 'experts.down_proj'))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=draw, dtype=torch.uint8)
        scales = torch.randint(118, 126, blocks.shape[:-1], generator=draw, dtype=torch.uint8)
        tensors |= {f'{name}_blocks': blocks, f'{name}_scales': scales}
        plain[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(tensors, f'{folder}/model.safetensors')
    return plain


def case_mxfp4():
    """What transformers unpacks, and what a run does with it, on one rank and two."""
    torch.manual_seed(20)
    make('gpt_oss', torch.float32, 'mxfp4-hf')
    plain = pack('mxfp4-hf')
    shutil.rmtree('mxfp4-ckpt', ignore_errors=True)
    shutil.rmtree('mxfp4-out', ignore_errors=True)
    job.sherd('ckpt', 'import', 'mxfp4-hf', '-o', 'mxfp4-ckpt')
    job.sherd('ckpt', 'export', 'mxfp4-ckpt', '-o', 'mxfp4-out', '--dtype', 'float32')
    found = load_file('mxfp4-out/model.safetensors')
    wrong = [f'{name} differs' for name in plain if not torch.equal(found[name], plain[name].contiguous())] + check_loading('mxfp4-out')
    make_tokens(101)
    runs = [job.losses(job.train(f'mxfp4-{i}', {**RUN, 'training.steps': 2, 'training.local_batch_size': 2,
                                                'model.hf_assets_path': f'../{folder}'}, ranks))
            for i, (folder, ranks) in enumerate((('mxfp4-out', 0), ('mxfp4-hf', 0), ('mxfp4-out', 2), ('mxfp4-hf', 2)))
            if not ranks or job.can_launch()]
    wrong += [f'losses {packed}, of the unpacked model {unpacked}' for unpacked, packed in zip(runs[::2], runs[1::2]) if unpacked != packed]
    tensors = load_file('mxfp4-hf/model.safetensors')
    name = 'model.layers.1.mlp.experts.down_proj'
    for changes, message in (({f'{name}_scales': None}, f'{name}_scales is missing'),
                             ({f'{name}_scales': tensors[f'{name}_scales'][:, :, :1].contiguous()}, f'{name}_scales is U8'),
                             ({f'{name}_scales': torch.full_like(tensors[f'{name}_scales'], 255)}, 'is not a finite number'),
                             ({name: plain[name].contiguous()}, f'{name}_blocks')):
        save_file({key: value for key, value in {**tensors, **changes}.items() if value is not None}, 'mxfp4-hf/model.safetensors')
        shutil.rmtree('mxfp4-bad', ignore_errors=True)
        try:
            job.sherd('ckpt', 'import', 'mxfp4-hf', '-o', 'mxfp4-bad')
            wrong.append(f'taken in spite of: {message}')
        except job.Failed as refused:
            wrong += [] if message in str(refused) else [f'{refused}, expected {message}']
    return wrong


def case_first_length():
    """A ministral3 is one up to original_max_position_embeddings; the factor on later queries is refused."""
    make('ministral3', torch.float32, 'long-hf')
    job.sherd('plan', '--model.hf=long-hf', '--training.seq_len=48')
    try:
        job.sherd('plan', '--model.hf=long-hf', '--training.seq_len=49')
    except job.Failed as refused:
        return [] if 'queries from position 48 on' in str(refused) and 'training.seq_len of at most 48' in str(refused) else [str(refused)]
    return ['a sequence of 49 tokens is taken']


def case_further_words():
    """Tensors of a block after the last, which predicts a second word, are named and left out; others are refused."""
    make('deepseek_v3', torch.float32, 'more-hf')
    tensors = load_file('more-hf/model.safetensors')
    more = {'model.layers.3.eh_proj.weight': torch.zeros(64, 128), 'model.layers.3.input_layernorm.weight': torch.ones(64)}
    wrong = []
    for name, extra, words in (('more', more, '2 tensors of blocks after the last one are left out'),
                               ('other', {'model.layers.2.eh_proj.weight': torch.zeros(2)}, 'is not a tensor of this model')):
        save_file({**tensors, **extra}, 'more-hf/model.safetensors')
        shutil.rmtree(name, ignore_errors=True)
        try:
            said = job.launch('ckpt', 'import', 'more-hf', '-o', name)[1]
        except job.Failed as refused:
            said = str(refused)
        wrong += [] if words in said else [f'{said}, expected {words}']
    shutil.rmtree('more-out', ignore_errors=True)
    job.sherd('ckpt', 'export', 'more', '-o', 'more-out')
    return wrong + check_loading('more-out')


def case_unread():
    """Keys and values of blocks that read those of others, as in Google's folders, are named and left out; of other blocks they
    are refused."""
    name = 'gemma4_text, shared keys that are values, untied, biases'
    make(name, torch.float32, 'unread-hf')
    tensors = load_file('unread-hf/model.safetensors')
    vectors = {'model.layers.6.self_attn.k_norm.weight': torch.ones(24), 'model.layers.6.self_attn.k_proj.weight': torch.zeros(24, 64)}
    wrong = []
    for out, extra, words in (('unread', vectors, '2 tensors of keys and values are left out'),
                              ('unread-bad', {'model.layers.1.self_attn.v_proj.weight': torch.zeros(24, 64)}, 'is not a tensor of this model')):
        save_file({**tensors, **extra}, 'unread-hf/model.safetensors')
        shutil.rmtree(out, ignore_errors=True)
        try:
            said = job.launch('ckpt', 'import', 'unread-hf', '-o', out)[1]
        except job.Failed as refused:
            said = str(refused)
        wrong += [] if words in said else [f'{said}, expected {words}']
    return wrong


EPS = {'gpt2': 'layer_norm_epsilon', 'gpt_neox': 'layer_norm_eps', 'cohere2': 'layer_norm_eps', 'cohere': 'layer_norm_eps', 'starcoder2': 'norm_epsilon',
       'nemotron_h': 'layer_norm_epsilon'}
FIELDS = {'model.n_layers': 'num_hidden_layers', 'model.dim': 'hidden_size', 'model.n_heads': 'num_attention_heads',
          'model.vocab_size': 'vocab_size', 'model.max_seq_len': 'max_position_embeddings',
          'model.tie_word_embeddings': 'tie_word_embeddings', 'model.init_std': 'initializer_range'}


def meaning(config):
    """How transformers reads a file, in Sherd's keys."""
    if config.model_type == 'gemma4_text':
        config.allow_global_per_layer_attribute_access = True
    heads = config.num_attention_heads
    gpt2 = config.model_type == 'gpt2'
    values = {key: getattr(config, field) for key, field in FIELDS.items()}
    values['model.n_kv_heads'] = getattr(config, 'num_key_value_heads', heads)
    values['model.head_dim'] = getattr(config, 'head_dim', None) or config.hidden_size // heads
    if latent(config):
        values |= latent(config)
    values |= other_heads(config)
    values['model.ffn_dim'] = (config.n_inner or 4 * config.n_embd) if gpt2 else config.intermediate_size
    if getattr(config, 'num_local_experts', None) == 0:
        values['model.ffn_dim'] = config.shared_intermediate_size
    elif hasattr(config, 'num_experts_per_tok') and (config.model_type != 'nemotron_h' or 'moe' in config.layer_types):
        values |= experts(config)
    values['model.norm_eps'] = getattr(config, EPS.get(config.model_type, 'rms_norm_eps'))
    values['model.attention_bias'] = getattr(config, 'attention_bias', False) and config.model_type not in ('gpt_neox', 'seed_oss', 'gpt_oss', 'glm4')
    values['model.mlp_bias'] = getattr(config, 'mlp_bias', False)
    granite = config.model_type.startswith('granite')
    values['model.query_pre_attn_scalar'] = (
        round(config.attention_multiplier ** -2) if granite else 1 if other_heads(config) else getattr(config, 'query_pre_attn_scalar', 0))
    for key in 'embedding_multiplier', 'residual_multiplier', 'logits_scaling':
        values[f'model.{key}'] = getattr(config, key, 0)
    for key, cap in ('attention', 'attn_logit'), ('logits', 'final_logit'):
        values[f'model.{key}_softcap'] = getattr(config, f'{cap}_softcapping', None) or 0
    if hasattr(config, 'logit_scale'):
        values['model.logits_scaling'] = 1 / config.logit_scale
    if hasattr(config, 'rope_parameters'):
        rope = config.rope_parameters
        if 'full_attention' in rope:
            values['model.rope_local_base_freq'] = rope['sliding_attention']['rope_theta'] if any(windows(config)) else 0
            rope = rope['full_attention']
        scaled = rope['rope_type'] not in ('default', 'dynamic', 'proportional')
        values['model.rope_theta'] = rope['rope_theta']
        longer = config.max_position_embeddings / rope.get('original_max_position_embeddings', 1)
        values['model.rope_factor'] = (rope.get('factor') or max(longer, 1)) if scaled else 0
        values['model.rope_original_max_len'] = rope.get('original_max_position_embeddings', 0) if scaled else 0
        head = values.get('model.global_head_dim') or values['model.head_dim']
        part = config.qk_rope_head_dim if latent(config) else int(head * rope.get('partial_rotary_factor', 1))
        if other_heads(config):
            part = part // 2 * 2
        values['model.rotary_dim'] = 0 if part == head else part
        values['model.rope_beta_fast'] = rope.get('beta_fast', 32)
        for length in 'short', 'long':
            values[f'model.rope_{length}_factor'] = rope.get(f'{length}_factor', [])
    for key, field in (('key_heads', 'num_key_heads'), ('value_heads', 'num_value_heads'), ('key_dim', 'key_head_dim'),
                       ('value_dim', 'value_head_dim'), ('conv_size', 'conv_kernel_dim')):
        values[f'model.linear_{key}'] = getattr(config, f'linear_{field}', 0)
    return values | hybrid(config)


def hybrid(config):
    """The sizes of Mamba-2, and the router of a nemotron_h with experts."""
    if config.model_type == 'granitemoehybrid':
        if 'linear_attention' not in config.layer_types:
            return {}
        return {'model.linear_key_heads': config.mamba_n_groups, 'model.linear_value_heads': config.mamba_n_heads,
                'model.linear_key_dim': config.mamba_d_state, 'model.linear_value_dim': config.mamba_d_head,
                'model.linear_conv_size': config.mamba_d_conv, 'model.linear_least_step': config.time_step_limit[0]}
    if config.model_type != 'nemotron_h':
        return {}
    router = {'model.shared_ffn_dim': config.moe_shared_expert_intermediate_size, 'model.router_bias': True,
              'model.route_scale': config.routed_scaling_factor, 'model.route_groups': config.n_group,
              'model.route_top_groups': config.topk_group} if 'moe' in config.layer_types else {'model.n_experts': 0}
    return {**router, 'model.linear_key_heads': config.n_groups, 'model.linear_value_heads': config.mamba_num_heads,
            'model.linear_key_dim': config.ssm_state_size, 'model.linear_value_dim': config.mamba_head_dim,
            'model.linear_conv_size': config.conv_kernel, 'model.linear_least_step': config.time_step_min}


def latent(config):
    """The numbers of latent attention and its router."""
    if config.model_type != 'deepseek_v3':
        return {}
    scaled = config.rope_parameters['rope_type'] == 'yarn'
    return {'model.head_dim': config.qk_nope_head_dim + config.qk_rope_head_dim, 'model.q_lora_rank': config.q_lora_rank or 0,
            'model.kv_lora_rank': config.kv_lora_rank, 'model.v_head_dim': config.v_head_dim, 'model.router_bias': True,
            'model.route_scale': config.routed_scaling_factor, 'model.route_groups': config.n_group,
            'model.route_top_groups': config.topk_group,
            'model.rope_mscale_all_dim': config.rope_parameters.get('mscale_all_dim', 0) if scaled else 0}


def other_heads(config):
    """Those of blocks without a window, if the class has them apart."""
    if config.model_type != 'gemma4_text':
        return {}
    full = [config.per_layer_config[i] for i, kind in enumerate(config.layer_types) if kind == 'full_attention'][0]
    heads = [full.head_dim, full.num_key_value_heads]
    usual = [config.head_dim, config.num_key_value_heads]
    return {'model.per_layer_dim': config.hidden_size_per_layer_input, 'model.kv_shared_layers': config.num_kv_shared_layers,
            'model.double_wide_ffn': config.num_kv_shared_layers > 0 and config.use_double_wide_mlp,
            'model.keys_as_values': config.attention_k_eq_v, **{key: 0 if a == b else a for key, a, b in zip(
        ['model.global_head_dim', 'model.global_kv_heads'], heads, usual)}}


def experts(config):
    alone = config.model_type in ('mixtral', 'olmoe', 'granitemoe', 'granitemoehybrid', 'gpt_oss')  # no other feed-forward layers
    return {'model.n_experts': config.num_local_experts if hasattr(config, 'num_local_experts') else config.num_experts,
            'model.n_experts_per_token': config.num_experts_per_tok,
            'model.expert_ffn_dim': config.intermediate_size if alone else config.moe_intermediate_size,
            'model.shared_ffn_dim': (config.n_shared_experts * config.moe_intermediate_size if latent(config)
                                     else getattr(config, 'shared_expert_intermediate_size', getattr(config, 'shared_intermediate_size', 0))),
            'model.route_norm': getattr(config, 'norm_topk_prob', True),
            **({'model.ffn_dim': (8 * config.hidden_size // 3 + 63) // 64 * 64} if alone else {})}


def dense(config):
    """Blocks without experts."""
    if latent(config):
        return list(range(config.first_k_dense_replace))
    if config.model_type == 'nemotron_h':
        return [i for i, kind in enumerate(config.layer_types) if kind != 'moe']
    return [i for i in range(config.num_hidden_layers) if (i + 1) % getattr(config, 'decoder_sparse_step', 1) or i in (
        getattr(config, 'mlp_only_layers', None) or [])]


def our_dense(values):
    if 'nemotron_h' in values['model.family']:
        return [i for i, kind in enumerate(kinds(values)) if kind != 'moe']
    first, every = int(values['model.first_dense_layers']), int(values['model.moe_every']) or 1
    return [i for i in range(int(values['model.n_layers'])) if i < first or (i + 1) % every]


def blocks(config):
    """Blocks without rotary positions."""
    switches = getattr(config, 'no_rope_layers', None) or [1] * config.num_hidden_layers
    if config.model_type in ('exaone4', 'cohere2') and config.sliding_window:
        switches = [kind == 'sliding_attention' for kind in config.layer_types]
    if config.model_type in ('nemotron_h', 'granitemoehybrid'):
        switches = [kind != 'full_attention' or getattr(config, 'position_embedding_type', '') == 'rope' for kind in config.layer_types]
    return [i for i, on in enumerate(switches[:config.num_hidden_layers]) if not on]


def windows(config):
    """The window of each block; 0: none."""
    window = getattr(config, 'sliding_window', None) or 0
    types = getattr(config, 'layer_types', None) or ['sliding_attention'] * config.num_hidden_layers
    return [window if kind == 'sliding_attention' else 0 for kind in types[:config.num_hidden_layers]]


def our_windows(values):
    window = int(values['model.attention_window'])
    return [window if kind.startswith('sliding') else 0 for kind in kinds(values)]


def kinds(values):
    """The word of each block."""
    runs = [run.rpartition('*') for run in values['model.layer_types'].strip('"').split(',') if run]
    words = [word for n, _, word in runs for _ in range(int(n or 1))]
    words = words or ['sliding' if int(values['model.attention_window']) else 'full']
    return [words[i % len(words)] for i in range(int(values['model.n_layers']))]


def unturned(values):
    return [i for i, kind in enumerate(kinds(values)) if kind.endswith('nope')]


def resolved(folder):
    text = job.sherd('plan', f'--model.hf={folder}', '--training.seq_len=8', '--print-config')
    section = text.split('model:\n')[1].split('\ntraining:')[0]
    return {f'model.{key}': value for key, value in (line.strip().split(': ') for line in section.splitlines())}


def same(ours, theirs):
    if isinstance(theirs, list):
        return json.loads(f"[{ours.strip(chr(34))}]") == theirs
    if isinstance(theirs, bool):
        return ours == str(theirs).lower()
    return float(ours) == float(theirs)


def older(config):
    """The configuration as transformers 4 wrote it."""
    config = dict(config)
    if config['model_type'] == 'gemma4_text':  # as Google wrote it
        full = list(config.pop('per_layer_config').values())[0]
        return dict(config, global_head_dim=full['head_dim'], num_global_key_value_heads=full.get('num_key_value_heads'))
    if config['model_type'] == 'nemotron_h':  # as NVIDIA wrote it
        letters = {'linear_attention': 'M', 'full_attention': '*', 'mlp': '-', 'moe': 'E'}
        config['hybrid_override_pattern'] = ''.join(letters[kind] for kind in config.pop('layers_block_type'))
    if config['model_type'] == 'granitemoehybrid':  # as IBM wrote it
        older_words = {'linear_attention': 'mamba', 'full_attention': 'attention'}
        config['layer_types'] = [older_words[kind] for kind in config['layer_types']]
        config['position_embedding_type'] = config['position_embedding_type'] or 'nope'
    rope = config.pop('rope_parameters', None)
    if rope and 'full_attention' in rope:
        if config['model_type'] != 'olmo3':  # whose class had one base for all blocks
            config['rope_local_base_freq'] = rope['sliding_attention']['rope_theta']
        rope = rope['full_attention']
    if rope:
        neox = config['model_type'] == 'gpt_neox'
        config['rotary_emb_base' if neox else 'rope_theta'] = rope['rope_theta']
        if 'partial_rotary_factor' in rope:
            config['rotary_pct' if neox else 'partial_rotary_factor'] = rope.pop('partial_rotary_factor')
        scaling = {key: value for key, value in rope.items() if key != 'rope_theta'}
        config['rope_scaling'] = scaling if rope['rope_type'] != 'default' else None
    if config['model_type'] == 'qwen3_moe':
        config['num_experts'] = config.pop('num_local_experts')
    config['torch_dtype'] = config.pop('dtype')
    return config


def case_config(name, spelling):
    """With each key absent in turn: the same model as AutoConfig's, or a refusal."""
    make(name, torch.float32, 'config-hf')
    path = pathlib.Path('config-hf/config.json')
    config = spelling(json.loads(path.read_text()))
    wrong = []
    for absent in [None, *(key for key in config if key != 'model_type')]:
        path.write_text(json.dumps({key: value for key, value in config.items() if key != absent}))
        try:
            theirs = transformers.AutoConfig.from_pretrained('config-hf')
        except Exception as refused:  # of many classes; then there is no model to compare with
            wrong += [] if absent else [str(refused)]
            continue
        try:
            ours = resolved('config-hf')
        except job.Failed as refused:
            wrong += [] if absent else [str(refused)]
            continue
        wrong += [f'without {absent}: {key} is {ours[key]}, for transformers {value}' for key, value in meaning(theirs).items()
                  if not same(ours[key], value)]
        if unturned(ours) != blocks(theirs):
            wrong += [f'without {absent}: blocks {unturned(ours)} have no positions']
        if our_dense(ours) != dense(theirs):
            wrong += [f'without {absent}: blocks {our_dense(ours)} have no experts']
        linear = [kind == 'linear_attention' for kind in getattr(theirs, 'layer_types', None) or [''] * theirs.num_hidden_layers]
        if [kind == 'linear' for kind in kinds(ours)] != linear[:theirs.num_hidden_layers]:
            wrong += [f'without {absent}: blocks {kinds(ours)} have no attention']
        if our_windows(ours) != windows(theirs):
            wrong += [f'without {absent}: windows {our_windows(ours)}, for transformers {windows(theirs)}']
    return wrong


if __name__ == '__main__':
    torch.set_num_threads(1)
    types = {name: [torch.float32] for name in MODELS}
    types['llama'] += [torch.bfloat16, torch.float16]
    sys.exit(job.run_cases(
        [(f'{name}, {dtype}: {STEPS} steps', case_train, name, dtype) for name in MODELS for dtype in types[name]]
        + [(f'{name}: gradients', case_gradients, name) for name in MODELS]
        + [(f'{name}: loss of balance', case_balance, name, changes) for name, changes in ONE_BLOCK.items()]
        + [(f'{name}: export', case_export, name) for name in MODELS]
        + [(f'{name}: config.json, {spelling.__name__}', case_config, name, spelling)
           for name in MODELS for spelling in (dict, older)]
        + [('gpt_oss: experts in MXFP4', case_mxfp4), ('ministral3: no longer texts', case_first_length),
           ('deepseek_v3: blocks after the last', case_further_words), ('gemma4_text: what no block reads', case_unread)]))
