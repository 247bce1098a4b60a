"""Names of torchtitan and nanoGPT as those of transformers, with what happens to the numbers on the way. A moment goes
the way of its weight."""
import re

from .base import Refused, shown

_BLOCK = {
    'attention.wq.weight': 'self_attn.q_proj.weight', 'attention.wk.weight': 'self_attn.k_proj.weight',
    'attention.wv.weight': 'self_attn.v_proj.weight', 'attention.wo.weight': 'self_attn.o_proj.weight',
    'attention.qkv_linear.wq.weight': 'self_attn.q_proj.weight', 'attention.qkv_linear.wk.weight': 'self_attn.k_proj.weight',
    'attention.qkv_linear.wv.weight': 'self_attn.v_proj.weight', 'attention.q_norm.weight': 'self_attn.q_norm.weight',
    'attention.k_norm.weight': 'self_attn.k_norm.weight', 'feed_forward.w1.weight': 'mlp.gate_proj.weight',
    'feed_forward.w2.weight': 'mlp.down_proj.weight', 'feed_forward.w3.weight': 'mlp.up_proj.weight',
    'attention_norm.weight': 'input_layernorm.weight', 'ffn_norm.weight': 'post_attention_layernorm.weight',
}
_OUTSIDE = {'tok_embeddings.weight': 'model.embed_tokens.weight', 'norm.weight': 'model.norm.weight',
            'output.weight': 'lm_head.weight'}
_BUFFERS = 'freqs_cis', 'rope_cache'


def is_titan(names):
    return 'tok_embeddings.weight' in names


def _turn_pairs(heads):
    """Rows of a head: torchtitan turns neighbours (2i, 2i+1), transformers the halves (i, i + D/2)."""
    def change(tensor):
        rows, columns = tensor.shape
        return tensor.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
    return change


def titan_name(name, where):
    block = re.fullmatch(r'layers\.(\d+)\.(.+)', name)
    there = f'model.layers.{block[1]}.{_BLOCK[block[2]]}' if block and block[2] in _BLOCK else _OUTSIDE.get(name)
    if not there:
        raise Refused(f'{where}: {shown(name)} is not a weight of a dense model of torchtitan')
    return there


def from_titan(table, config, where):
    """{name: Tensor} of a model or of its moments, under the names of transformers."""
    kind = config.get('model_type')
    if kind not in ('llama', 'qwen3'):
        raise Refused(f'{where}: of torchtitan, llama3 and qwen3 are understood; config.json says {shown(kind)}')
    heads = {'q_proj': config.get('num_attention_heads')}
    heads['k_proj'] = config.get('num_key_value_heads') or heads['q_proj']
    out = {}
    for name, tensor in table.items():
        if name in _BUFFERS:
            continue
        there = titan_name(name, where)
        of = there.split('.')[-2]
        if kind == 'llama' and of in heads:
            if not isinstance(heads[of], int) or len(tensor.shape) != 2 or tensor.shape[0] % (2 * heads[of]):
                raise Refused(f'{where}: {shown(name)} does not have the heads of config.json')
            tensor = tensor.map(tensor.shape, _turn_pairs(heads[of]))
        out[there] = tensor
    return out


# ---- GPT-2 as nanoGPT and llm.c have it: matrices [out, in], in transformers [in, out] ----

TURNED = 'attn.c_attn.weight', 'attn.c_proj.weight', 'mlp.c_fc.weight', 'mlp.c_proj.weight'


def turn(name, tensor):
    if name.endswith(TURNED):
        return tensor.map(tensor.shape[::-1], lambda there: there.t())
    return tensor


def gpt2_config(layers, heads, width, positions, vocabulary):
    return {'architectures': ['GPT2LMHeadModel'], 'model_type': 'gpt2', 'n_layer': layers, 'n_head': heads, 'n_embd': width,
            'n_positions': positions, 'vocab_size': vocabulary, 'activation_function': 'gelu_new', 'layer_norm_epsilon': 1e-5,
            'attn_pdrop': 0.0, 'embd_pdrop': 0.0, 'resid_pdrop': 0.0, 'tie_word_embeddings': True,
            'bos_token_id': None, 'eos_token_id': None, 'dtype': 'float32'}
