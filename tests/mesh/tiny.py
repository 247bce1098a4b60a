"""The smallest models that still have everything: grouped heads, blocks, sizes that no number of ranks divides."""
import array
import pathlib
import random

GLOBAL_BATCH = 24  # 1, 2, 3, 4, 6 and 8 ranks divide it
SEQ_LEN = 12
STEPS = 10

COMMON = {
    'model.n_layers': 3, 'model.dim': 20, 'model.n_heads': 5, 'model.head_dim': 4, 'model.max_seq_len': 16,
    'model.vocab_size': 61, 'model.ffn_dim': 28, 'model.init_std': 0.2,
    'training.seq_len': SEQ_LEN, 'training.global_batch_size': GLOBAL_BATCH, 'training.local_batch_size': 1,
    'training.steps': STEPS, 'training.max_norm': 1.0, 'training.threads': 1,
    'training.mixed_precision_param': 'float32',
    'optimizer.lr': 1e-2, 'lr_scheduler.warmup_steps': 3, 'lr_scheduler.total_steps': STEPS,
}
# Tied weights are used in the first and the last unit; untied ones form a separate unit. One model has each kind.
MODELS = {
    'gpt2': {**COMMON, 'model.family': 'gpt2', 'model.tie_word_embeddings': True},
    'llama': {**COMMON, 'model.family': 'llama', 'model.n_kv_heads': 1, 'model.tie_word_embeddings': False},
}
# A dense block, then blocks with experts, of which a token has some and all have one.
EXPERTS = {**COMMON, 'model.family': 'qwen2_moe', 'model.n_kv_heads': 1, 'model.first_dense_layers': 1, 'model.n_experts': 6,
           'model.n_experts_per_token': 2, 'model.expert_ffn_dim': 9, 'model.shared_ffn_dim': 7, 'moe.aux_loss_coeff': 0.01,
           'moe.load_balance_coeff': 0.02}
# Changes that give it biases in the experts, whose weights have gradients from there too. None: left out.
OSS = {'model.family': 'gpt_oss', 'model.attention_window': 8, 'model.layer_types': 'sliding,full', 'model.ffn_dim': None,
       'model.first_dense_layers': None, 'model.shared_ffn_dim': None}
# Changes that give a model with experts latent attention, and a router by sigmoids that chooses from groups of eight.
LATENT = {'model.family': 'deepseek_v3', 'model.n_kv_heads': None, 'model.rotary_dim': 2, 'model.q_lora_rank': 7,
          'model.kv_lora_rank': 6, 'model.v_head_dim': 3, 'model.n_experts': 8, 'model.router': 'sigmoid',
          'model.route_groups': 4, 'model.route_top_groups': 2}
# That router in a hybrid: blocks of Mamba-2, of experts without gates, and of attention. None: left out.
NANO = {'model.family': 'nemotron_h', 'model.layer_types': 'linear,moe,full_nope,moe', 'model.n_layers': 4, 'model.ffn_dim': None,
        'model.first_dense_layers': None, 'model.tie_word_embeddings': False, 'model.linear_key_heads': 1,
        'model.linear_value_heads': 2, 'model.linear_key_dim': 4, 'model.linear_value_dim': 6, 'model.linear_conv_size': 3,
        'model.n_experts': 8, 'model.router': 'sigmoid', 'model.route_groups': 4, 'model.route_top_groups': 2}
# Changes that give the blocks of a llama inputs of their own, and the later ones keys and values of the first and the third.
SHARING = {'model.family': 'gemma4_text', 'model.n_layers': 6, 'model.kv_shared_layers': 3, 'model.double_wide_ffn': True,
           'model.per_layer_dim': 6, 'model.global_head_dim': 6, 'model.rotary_dim': 2, 'model.attention_window': 5,
           'model.layer_types': 'full,2*sliding', 'model.tie_word_embeddings': True, 'model.norm_eps': 0.1}


def write_tokens(path='tokens.bin', count=200 * SEQ_LEN + 1):
    """Plain uint16; fewer windows than a run uses, so a run passes the end of an epoch. Returns the absolute path."""
    draw = random.Random(5)
    path = pathlib.Path(path).absolute()
    path.write_bytes(array.array('H', [draw.randrange(COMMON['model.vocab_size']) for _ in range(count)]).tobytes())
    return str(path)


def write_sentences(path='sentences.bin', count=60000):
    """The same for a text that can be learnt: each token is one of the four that may follow the previous one."""
    draw, vocab = random.Random(8), COMMON['model.vocab_size']
    path = pathlib.Path(path).absolute()
    after = [[draw.randrange(vocab) for _ in range(4)] for _ in range(vocab)]
    text = [0]
    while len(text) < count:
        text.append(after[text[-1]][min(int(draw.expovariate(0.8)), 3)])
    path.write_bytes(array.array('H', text).tobytes())
    return str(path)
