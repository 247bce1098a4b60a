"""GPT-2, Llama and the families that took over its names, in plain PyTorch, with Hugging Face's names and meaning, and
their training.

Everything is float64. The compared program is float32, so a difference is that program's error and not the reference's.
Weights are a dictionary of tensors by name; `c` is a configuration, a dictionary of "section.key".
"""
import functools
import math
import re

import torch


def layer_norm(w, name, x, c):
    x = x - x.mean(-1, keepdim=True)
    x = x / torch.sqrt(x.square().mean(-1, keepdim=True) + c['model.norm_eps'])
    return x * w[f'{name}.weight'] + w.get(f'{name}.bias', 0)


def rms_norm(w, name, x, c):
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + c['model.norm_eps']) * w[f'{name}.weight']


def rms_norm_plus_one(w, name, x, c):
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + c['model.norm_eps']) * (1 + w[f'{name}.weight'])


def windowed(c, block):
    """The configuration of a block with a window, which may have its own frequencies; None if the block has no
    window."""
    if not c.get('model.attention_window') or not kind(c, block).startswith('sliding'):
        return None
    local = c.get('model.rope_local_base_freq')
    return {**c, 'model.rope_theta': local, 'model.rope_factor': 0} if local else c


def kind(c, block):
    """The word of a block, by model.layer_types without runs, or by the keys that came before it."""
    words = c.get('model.layer_types', 'sliding').split(',')
    word, full, nope = words[block % len(words)], c.get('model.full_attention_interval'), c.get('model.no_rope_layer_interval')
    word = 'full' if full and (block + 1) % full == 0 else word
    return word + '_nope' if nope and (block + 1) % nope == 0 else word


def rope_frequencies(c):
    """[D/2], and the factor of cos and sin. Llama 3's scaling divides the slow frequencies by a factor, with a ramp
    between slow and fast over the number of turns; YaRN's has the ramp over the index."""
    dim, factor, kind = c.get('model.rotary_dim') or c['model.head_dim'], c.get('model.rope_factor', 0), c.get('model.rope_type', 'llama3')
    freq = c['model.rope_theta'] ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if not factor:
        return freq, 1
    if kind == 'linear':
        return freq / factor, 1
    turns = c['model.rope_original_max_len'] * freq / (2 * math.pi)
    if kind == 'llama3':
        low, high = c['model.rope_low_freq_factor'], c['model.rope_high_freq_factor']
        fast = ((turns - low) / (high - low)).clamp(0, 1)
        return fast * freq + (1 - fast) * freq / factor, 1
    # The index i at which theta^(-2i/D) makes that many turns.
    begin, end = (math.log(c['model.rope_original_max_len'] / (2 * math.pi * beta)) * dim / 2
                  / math.log(c['model.rope_theta']) for beta in (c['model.rope_beta_fast'], c['model.rope_beta_slow']))
    if c.get('model.rope_truncate', True):
        begin, end = math.floor(begin), math.ceil(end)
    begin, end = max(begin, 0), min(end, dim - 1)
    slow = ((torch.arange(dim // 2, dtype=torch.float64) - begin) / (end - begin)).clamp(0, 1)
    return (1 - slow) * freq + slow * freq / factor, c.get('model.rope_attention_factor', 0.1 * math.log(factor) + 1)


def rotate(x, c):
    """[B,H,T,D]: element i of a head rotates with element i + R/2."""
    freq, scale = rope_frequencies(c)
    angle = torch.outer(torch.arange(x.shape[2], dtype=torch.float64), freq)
    part, cos, sin = 2 * len(freq), scale * angle.cos(), scale * angle.sin()
    if FAMILIES.get(c['model.family'], {}).get('pairs'):
        a, b = x[..., :part:2], x[..., 1:part:2]
        return torch.cat([torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2), x[..., part:]], -1)
    a, b = x[..., :part].chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., part:]], -1)


def visible(tokens, separator):
    """[B,1,T,T]: which positions each may attend to: the past, and with a separator (>= 0) only the same document."""
    past = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    if separator < 0:
        return past[None, None]
    ends = (tokens == separator).long()
    document = ends.cumsum(1) - ends  # a separator belongs to the document it ends
    return (past & (document[:, :, None] == document[:, None, :]))[:, None]


def capped(x, cap):
    return cap * torch.tanh(x / cap) if cap else x


def attend(q, k, v, mask, scalar=0, sinks=None, cap=0):
    """[B,H,T,D] each, K and V may have fewer heads; returns [B,T,H*D]. scalar: used instead of D under the root; sinks
    [H]: one more score of each query, without a value."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = q @ k.transpose(2, 3) / math.sqrt(scalar or q.shape[3])
    score = capped(score, cap).masked_fill(~mask, -math.inf)
    if sinks is not None:
        score = torch.cat([score, sinks[:, None, None].expand(*score.shape[:3], 1)], -1)
        return (score.softmax(-1)[..., :-1] @ v).transpose(1, 2).flatten(2)
    return (score.softmax(-1) @ v).transpose(1, 2).flatten(2)


def heads(x, dim):
    return x.unflatten(2, (-1, dim)).transpose(1, 2)


def gpt2_block(w, name, x, mask, c):
    def linear(part, x):  # Conv1D: [in,out]
        return x @ w[f'{name}.{part}.weight'] + w[f'{name}.{part}.bias']

    q, k, v = (heads(part, c['model.head_dim']) for part in
               linear('attn.c_attn', layer_norm(w, f'{name}.ln_1', x, c)).chunk(3, -1))
    x = x + linear('attn.c_proj', attend(q, k, v, mask))
    up = linear('mlp.c_fc', layer_norm(w, f'{name}.ln_2', x, c))
    return x + linear('mlp.c_proj', gelu(up))


# How the families that took over Llama's names differ from it. Biases: the products that have one.
QKV, OUT = ('self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj'), ('self_attn.o_proj',)
GATED = ('mlp.gate_proj', 'mlp.up_proj', 'mlp.down_proj')
GEMMA = {'norm': rms_norm_plus_one, 'geglu': True, 'scaled': True, 'norms': ('input_layernorm', 'pre_feedforward_layernorm'),
         'after': ('post_attention_layernorm', 'post_feedforward_layernorm')}
FAMILIES = {
    'llama': {},
    'mistral': {},
    'qwen2': {'biases': QKV},
    'phi3': {'stacked': True},
    'smollm3': {},
    'granite': {},
    'qwen3': {'qk_norm': True},
    'olmo2': {'qk_norm': True, 'norms': (), 'after': ('post_attention_layernorm', 'post_feedforward_layernorm')},
    'olmo3': {'qk_norm': True, 'norms': (), 'after': ('post_attention_layernorm', 'post_feedforward_layernorm')},
    'exaone4': {'qk_norm': True, 'norms': (), 'after': ('post_attention_layernorm', 'post_feedforward_layernorm')},
    'seed_oss': {'biases': QKV},
    'gemma': {'norm': rms_norm_plus_one, 'geglu': True, 'scaled': True},
    'gemma3_text': {**GEMMA, 'qk_norm': True},
    'gemma2': GEMMA,
    'starcoder2': {'norm': layer_norm, 'gelu': True, 'biases': QKV + OUT + ('mlp.c_fc', 'mlp.c_proj')},
    'mixtral': {},
    'qwen2_moe': {'biases': QKV},
    'qwen3_moe': {'qk_norm': True},
    'olmoe': {'qk_norm': True},
    'gpt_oss': {'biases': QKV + OUT},
    'glm4': {'biases': QKV, 'pairs': True, 'gate_up': True, 'after': ('post_self_attn_layernorm', 'post_mlp_layernorm')},
    # One norm for both branches, which read the block's input.
    'cohere2': {'norm': layer_norm, 'pairs': True, 'norms': ('input_layernorm', 'input_layernorm'), 'parallel': True},
}


def biases(c):
    return (FAMILIES[c['model.family']].get('biases', ()) + (QKV + OUT if c.get('model.attention_bias') else ())
            + (GATED if c.get('model.mlp_bias') else ()))


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def swiglu(x, gate, up, down):
    gate = x @ gate.T
    return (gate * torch.sigmoid(gate) * (x @ up.T)) @ down.T


def best(score, k):
    """Which are the k largest, and by what part of itself the last of them is larger than the first of the others."""
    order = score.detach().sort(-1, descending=True)
    chosen = torch.zeros_like(score).scatter(-1, order.indices[..., :k], 1) > 0
    last, other = (order.values[..., i] for i in (k - 1, min(k, score.shape[-1] - 1)))
    return chosen, 1 - (other / last).max() if k < score.shape[-1] else torch.tensor(1.0)


def choose(score, c):
    """[B,T,E]: which experts a token has, of the groups whose two best together are largest; and the smallest gap."""
    groups, open_gap = c.get('model.route_groups', 0), torch.tensor(1.0)
    if groups:
        parts = score.unflatten(-1, (groups, -1))
        two = parts.topk(min(2, parts.shape[-1]), -1).values.sum(-1)
        of_best, open_gap = best(two, c['model.route_top_groups'])
        score = (parts * of_best[..., None]).flatten(-2)
    chosen, gap = best(score, c['model.n_experts_per_token'])
    return chosen, float(min(gap, open_gap))


def clamped(w, name, e, x):
    """An expert of gpt-oss: gate and up alternate."""
    up, down = (lambda x, part=part: x @ w[f'{name}.experts.{part}_proj'][e] + w[f'{name}.experts.{part}_proj_bias'][e]
                for part in ('gate_up', 'down'))
    gate, linear = up(x).unflatten(-1, (-1, 2)).unbind(-1)
    gate, linear = gate.clamp(max=7), linear.clamp(-7, 7)
    return down((linear + 1) * gate * torch.sigmoid(1.702 * gate))


def experts(w, name, x, c):
    """Each expert for each token; those that a token does not have weigh 0."""
    oss = c['model.family'] == 'gpt_oss'
    logits = x @ w[f'{name}.router.weight'].T + w[f'{name}.router.bias'] if oss else x @ w[f'{name}.gate.weight'].T
    score = logits.sigmoid() if c.get('model.router') == 'sigmoid' else logits.softmax(-1)
    chosen, gap = choose(score, c)
    c['routed'].append({'score': score, 'chosen': chosen, 'gap': gap, 'lse': logits.logsumexp(-1)})
    weight = score * chosen
    if c.get('model.route_norm') or oss:
        weight = weight / weight.sum(-1, keepdim=True)
    weight = weight * c.get('model.route_scale', 1)
    if oss:
        return sum(weight[..., e, None] * clamped(w, name, e, x) for e in range(c['model.n_experts']))
    y = sum(weight[..., e, None] * swiglu(x, *gate_up.chunk(2), down) for e, (gate_up, down) in
            enumerate(zip(*(w[f'{name}.experts.{part}_proj.weight'] for part in ('gate_up', 'down')))))
    if c.get('model.shared_ffn_dim'):
        shared = swiglu(x, *(w[f'{name}.shared_expert.{part}_proj.weight'] for part in ('gate', 'up', 'down')))
        y = y + (x @ w[f'{name}.shared_expert_gate.weight'].T).sigmoid() * shared
    return y


def router_losses(routed, c):
    """The losses that spread tokens over experts and keep logits small. A micro-step has its own shares of choices; the
    losses are means over all tokens of the batch, whether or not their targets count, as in transformers."""
    def by_micro_step(x):
        return x.unflatten(0, (-1, c['training.local_batch_size']))

    total, tokens = 0, c['training.global_batch_size'] * c['training.seq_len']
    for r in (r for r in routed if 'chosen' in r):
        share = by_micro_step(r['chosen'].double()).mean((1, 2)) / c['model.n_experts_per_token']
        score = by_micro_step(r['score'] / r['score'].sum(-1, keepdim=True)).sum((1, 2))
        total = total + c.get('moe.aux_loss_coeff', 0) * c['model.n_experts'] * (share * score).sum() / tokens
        total = total + c.get('moe.z_loss_coeff', 0) * r['lse'].square().sum() / tokens
    return total


def statements(w, mlp, x, c):
    """The feed-forward part of model.ffn; widths are those of the weights."""
    values = {'x': x}
    functions = {'linear': lambda x, name, width: x @ w[f'{mlp}.{name}.weight'].T, 'add': torch.add, 'gelu': gelu,
                 'norm': lambda x, name: rms_norm(w, f'{mlp}.{name}', x, c),
                 'swiglu': lambda x: (lambda gate, up: gate * torch.sigmoid(gate) * up)(*x.chunk(2, -1))}
    for statement in c['model.ffn'].split(';'):
        made, operation, words = re.fullmatch(r'\s*(\w+) = (\w+)\((.*)\)', statement).groups()
        values[made] = functions[operation](*(values.get(word, word) for word in words.split(', ')))
    return values[made]


def llama_block(w, name, x, mask, c, turned):
    """turned: whether the block has rotary positions."""
    family = FAMILIES[c['model.family']]
    norm, stacked, biased = family.get('norm', rms_norm), family.get('stacked'), biases(c)

    def linear(part, x):
        y = x @ w[f'{name}.{part}.weight'].T
        return y + w[f'{name}.{part}.bias'] if part in biased else y

    def normed(names, i, x):
        return norm(w, f'{name}.{names[i]}', x, c) if names else x

    before = functools.partial(normed, family.get('norms', ('input_layernorm', 'post_attention_layernorm')))
    after = functools.partial(normed, family.get('after', ()))

    def qk_norm(part, x):
        """A weight as wide as one head, or as all heads."""
        weight = f'{name}.self_attn.{part}_norm'
        return norm(w, weight, x.unflatten(-1, (-1, len(w[f'{weight}.weight']))), c).flatten(-2)

    y, dim = before(0, x), c['model.head_dim']
    sizes = [dim * c['model.n_heads'], dim * c['model.n_kv_heads'], dim * c['model.n_kv_heads']]
    q, k, v = linear('self_attn.qkv_proj', y).split(sizes, -1) if stacked else [linear(part, y) for part in QKV]
    if family.get('qk_norm'):
        q, k = qk_norm('q', q), qk_norm('k', k)
    q, k, v = (heads(part, dim) for part in (q, k, v))
    if turned:
        q, k = rotate(q, c), rotate(k, c)
    by, second = c.get('model.residual_multiplier', 1), x
    x = x + by * after(0, linear('self_attn.o_proj', attend(q, k, v, mask, c.get('model.query_pre_attn_scalar'),
                                                                 w.get(f'{name}.self_attn.sinks'), c.get('model.attention_softcap'))))
    y = before(1, second if family.get('parallel') else x)
    if f'{name}.mlp.gate.weight' in w or f'{name}.mlp.router.weight' in w:
        return x + experts(w, f'{name}.mlp', y, c)
    if 'model.ffn' in c:
        return x + statements(w, f'{name}.mlp', y, c)
    if family.get('gelu'):
        return x + linear('mlp.c_proj', gelu(linear('mlp.c_fc', y)))
    gate, up = linear('mlp.gate_up_proj', y).chunk(2, -1) if stacked or family.get('gate_up') else (linear(part, y) for part in GATED[:2])
    if 'model.ffn_op' in c:  # examples/plugins/clamped.c
        limit = float(c['plugin.numbers'].split('=')[1])
        c['routed'].append({'gap': float(min((x.detach() - limit).abs().min() for x in (gate, up, -up)))})
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return x + linear('mlp.down_proj', (up + 1) * gate * torch.sigmoid(1.702 * gate))
    return x + by * after(1, linear('mlp.down_proj', (gelu(gate) if family.get('geglu') else gate * torch.sigmoid(gate)) * up))


def gpt_neox_block(w, name, x, mask, c):
    """Both branches read the block's input; the rows of query_key_value are grouped by head."""
    def linear(part, x):
        return x @ w[f'{name}.{part}.weight'].T + w[f'{name}.{part}.bias']

    qkv = linear('attention.query_key_value', layer_norm(w, f'{name}.input_layernorm', x, c))
    q, k, v = heads(qkv, 3 * c['model.head_dim']).chunk(3, -1)
    attention = linear('attention.dense', attend(rotate(q, c), rotate(k, c), v, mask))
    up = linear('mlp.dense_h_to_4h', layer_norm(w, f'{name}.post_attention_layernorm', x, c))
    return x + attention + linear('mlp.dense_4h_to_h', 0.5 * up * (1 + torch.erf(up / math.sqrt(2))))


def gpt_neox(w, tokens, mask, c):
    x = w['gpt_neox.embed_in.weight'][tokens]
    for i in range(c['model.n_layers']):
        x = gpt_neox_block(w, f'gpt_neox.layers.{i}', x, mask, c)
    return layer_norm(w, 'gpt_neox.final_layer_norm', x, c)


def gpt2(w, tokens, mask, c):
    """[B,T] tokens to [B,T,C]."""
    x = w['transformer.wte.weight'][tokens] + w['transformer.wpe.weight'][:tokens.shape[1]]
    for i in range(c['model.n_layers']):
        x = gpt2_block(w, f'transformer.h.{i}', x, mask, c)
    return layer_norm(w, 'transformer.ln_f', x, c)


def llama(w, tokens, mask, c):
    x = w['model.embed_tokens.weight'][tokens]
    if FAMILIES[c['model.family']].get('scaled'):
        x = x * math.sqrt(c['model.dim'])
    x = x * c.get('model.embedding_multiplier', 1)
    for i in range(c['model.n_layers']):
        short = windowed(c, i)
        seen = mask.triu(1 - c['model.attention_window']) if short else mask
        x = llama_block(w, f'model.layers.{i}', x, seen, short or c, not kind(c, i).endswith('nope'))
    return FAMILIES[c['model.family']].get('norm', rms_norm)(w, 'model.norm', x, c)


IGNORED = -100  # a target that does not count


def logits_of(w, tokens, c, routed):
    """[B,T] to [B,T,V]; what routers choose is appended to `routed`."""
    family = c['model.family']
    separator = c['data.document_separator'] if c.get('data.document_mask') else -1
    run, embedding, head = {'gpt2': (gpt2, 'transformer.wte.weight', 'lm_head.weight'),
                            'gpt_neox': (gpt_neox, 'gpt_neox.embed_in.weight', 'embed_out.weight')}.get(
        family, (llama, 'model.embed_tokens.weight', 'lm_head.weight'))
    x = run(w, tokens, visible(tokens, separator), {**c, 'routed': routed})
    logits = x @ w[head if head in w else embedding].T / c.get('model.logits_scaling', 1)
    return capped(logits, c.get('model.logits_softcap'))


def scores(weights, texts, c):
    """The log-probability of each text's ending: pairs of lists of tokens, each text alone."""
    w = {name: torch.tensor(value, dtype=torch.float64) for name, value in weights.items()}
    found = []
    for context, ending in texts:
        tokens = torch.tensor([[*context, *ending]])
        likely = logits_of(w, tokens[:, :-1], {**c, 'data.document_mask': False}, [])[0].log_softmax(-1)
        found.append(float(sum(likely[i, tokens[0, i + 1]] for i in range(len(context) - 1, len(likely)))))
    return found


def weighed_mean(values, weights):
    return (values * weights).sum() / weights.sum()


def mean_loss(w, tokens, targets, weights, c):
    """[B,T] each. Returns (the loss, those of routers and of squares, the smallest gap of a choice of experts)."""
    routed, counts = [], targets != IGNORED
    logits = logits_of(w, tokens, c, routed)
    loss = weighed_mean(torch.nn.functional.cross_entropy(logits[counts], targets[counts], reduction='none'), weights[counts])
    squares = c.get('training.z_loss', 0) * weighed_mean(logits[counts].logsumexp(-1).square(), weights[counts])
    return loss, router_losses(routed, c) + squares, min((r['gap'] for r in routed), default=1)


def learning_rate(step, c):
    """The rate of a step, counted from 0: linear warm-up, then a half cosine down to min_lr_factor."""
    warmup, total, least = (c[f'lr_scheduler.{key}'] for key in ('warmup_steps', 'total_steps', 'min_lr_factor'))
    if step < warmup:
        return c['optimizer.lr'] * (step + 1) / warmup
    done = (step - warmup) / (total - warmup)
    return c['optimizer.lr'] * (least + (1 - least) * 0.5 * (1 + math.cos(math.pi * done)))


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al., arXiv:2302.06675."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group['betas']
            for p in group['params']:
                m = self.state[p].setdefault('exp_avg', torch.zeros_like(p))
                step = (beta1 * m + (1 - beta1) * p.grad).sign()
                p -= group['lr'] * (step + group['weight_decay'] * p)
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


# Of Keller Jordan and torch; of Emerging-Optimizers; of Amsel et al., arXiv:2505.16932, which expects a smaller norm.
COEFFICIENTS = {
    'simple': (1, [(3.4445, -4.7750, 2.0315)]),
    'quintic': (1, [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
                    (2.8366, -3.0525, 1.2012)]),
    'polar_express': (1.02, [(8.1566, -22.4833, 15.8788), (4.0429, -2.8089, 0.5000), (3.8917, -2.7725, 0.5061),
                             (3.2858, -2.3681, 0.4645), (2.3465, -1.7098, 0.4232)]),
}
ADJUST = {'original': lambda out, into: max(1, out / into) ** 0.5, 'match_rms_adamw': lambda out, into: 0.2 * max(out, into) ** 0.5,
          'spectral_unclamped': lambda out, into: (out / into) ** 0.5}


def orthogonal(x, kind, steps):
    room, triples = COEFFICIENTS[kind]
    turned = x.shape[0] > x.shape[1]
    x = (x.T if turned else x) / (x.norm() * room)
    for step in range(steps):
        a, b, c = triples[min(step, len(triples) - 1)]
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if turned else x


def is_matrix(name, x):
    return x.ndim > 1 and not any(part in name for part in ('embed', 'wte', 'wpe', 'lm_head', 'mlp.gate.weight', 'expert_gate'))


def product_matrices(name, x, c):
    """The matrices [out,in] of products, as views: what a file fuses is cut, unless optimizer.muon_split says otherwise."""
    split, dim = c.get('optimizer.muon_split', 'qkv'), c['model.head_dim']
    if x.ndim == 3:
        return [part for expert in x for part in (expert.chunk(2) if 'gate_up' in name and split != 'none' else [expert])]
    x = x.T if c['model.family'] == 'gpt2' else x
    if split == 'none':
        return [x]
    if 'gate_up_proj' in name:
        return x.chunk(2)
    kv = c.get('model.n_kv_heads', c['model.n_heads'])
    fused = 'c_attn' in name or 'qkv_proj' in name
    parts = x.split([c['model.n_heads'] * dim, kv * dim, kv * dim]) if fused else [x]
    apart = split == 'heads' and (fused or any(part in name for part in QKV))
    return [head for part in parts for head in part.split(dim)] if apart else parts


def read_groups(c):
    """The groups of optimizer.groups, each a dictionary."""
    return [dict(field.split('=', 1) for field in part.split()) for part in c.get('optimizer.groups', '').split(';') if part]


def group_of(name, c):
    return next((group for group in read_groups(c) if re.search(group['pattern'], name)), {})


def split_by_groups(named, c):
    """A group of torch's for each parameter."""
    made = []
    for name, x in named:
        own = group_of(name, c)
        number = {key: float(own.get(key, c[f'optimizer.{key}'])) for key in ('beta1', 'beta2', 'eps')}
        decay = float(own['weight_decay']) if 'weight_decay' in own else c['optimizer.weight_decay'] if x.ndim > 1 else 0.0
        made.append({'params': [x], 'weight_decay': decay, 'betas': (number['beta1'], number['beta2']), 'eps': number['eps'],
                     'factor': float(own.get('lr', 1))})
    return made


def orthogonal_change(name, momentum, lr, c):
    """What a step by Muon takes off a tensor, from the momentum [...] that it leaves, without decay."""
    change = torch.from_numpy(momentum).double()
    for u in product_matrices(name, change, c):
        made = orthogonal(u, c.get('optimizer.muon_coefficients', 'simple'), c.get('optimizer.ns_steps', 5))
        u.copy_(lr * ADJUST[c.get('optimizer.adjust_lr_fn', 'match_rms_adamw')](*u.shape) * made)
    return change.numpy()


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon in float64, for each matrix in a tensor."""

    def __init__(self, named, c):
        super().__init__(split_by_groups(named, c), {'lr': 1})
        self.name, self.c = {x: name for name, x in named}, c

    @torch.no_grad()
    def step(self):
        c, mu = self.c, self.c['optimizer.momentum']
        for group, p in ((group, p) for group in self.param_groups for p in group['params']):
            m = self.state[p].setdefault('exp_avg', torch.zeros_like(p))
            m.lerp_(p.grad, 1 - mu)
            step = (1 - mu) * p.grad + mu * m if c.get('optimizer.nesterov', True) else m
            cautious, pieces = c.get('optimizer.cautious_decay', False), product_matrices(self.name[p], p, c)
            if not cautious:
                p.mul_(1 - group['lr'] * group['weight_decay'])
            for i, (at, u) in enumerate(zip(pieces, product_matrices(self.name[p], step, c))):
                u = orthogonal(u, c.get('optimizer.muon_coefficients', 'simple'), c.get('optimizer.ns_steps', 5))
                if group_of(self.name[p], c).get('optimizer', c.get('optimizer.name')) == 'normuon':
                    u = self.even_rows(p, i, u)
                if cautious:
                    at.mul_(1 - group['lr'] * group['weight_decay'] * (u * at > 0))
                at.sub_(group['lr'] * ADJUST[c.get('optimizer.adjust_lr_fn', 'match_rms_adamw')](*u.shape) * u)


    def even_rows(self, p, i, u):
        """Algorithm 1 of NorMuon (arXiv:2510.05491), with the norm of `u` in place of its factor."""
        mean = (u * u).mean(1, keepdim=True)
        v = self.state[p].setdefault(f'moment2 {i}', torch.zeros_like(mean))
        v.lerp_(mean, 1 - self.c.get('optimizer.muon_beta2', 0.95))
        even = u / v.clamp(min=1e-10).sqrt()
        return even * (u.norm() / even.norm().clamp(min=1e-8))


class Both:
    """Two optimizers as one."""

    def __init__(self, *parts):
        self.parts, self.param_groups = parts, [group for part in parts for group in part.param_groups]

    def zero_grad(self):
        for part in self.parts:
            part.zero_grad()

    def step(self):
        for part in self.parts:
            part.step()


def make_optimizer(w, c):
    named = [(name, x) for name, x in w.items() if is_matrix(name, x)
             and group_of(name, c).get('optimizer', c.get('optimizer.name')) in ('muon', 'normuon')]
    if named:
        rest = {name: x for name, x in w.items() if name not in dict(named)}
        return Both(Muon(named, c), make_optimizer(rest, {**c, 'optimizer.name': 'AdamW'}))
    if 'optimizer.groups' in c:
        return torch.optim.AdamW(split_by_groups(w.items(), c))
    matrices = [x for name, x in w.items() if x.ndim > 1 and not name.endswith('_bias')]  # those of experts are [E,O]
    vectors = [x for name, x in w.items() if x.ndim == 1 or name.endswith('_bias')]
    groups = [{'params': matrices, 'weight_decay': c['optimizer.weight_decay']},
              {'params': vectors, 'weight_decay': 0.0}]
    if c.get('optimizer.name') == 'SGD':
        return torch.optim.SGD(groups, lr=1, momentum=c['optimizer.beta1'])
    if c.get('optimizer.name') == 'Lion':
        return Lion(groups, {'lr': 1, 'betas': (c['optimizer.beta1'], c['optimizer.beta2'])})
    return torch.optim.AdamW([{'params': matrices, 'weight_decay': c['optimizer.weight_decay']},
                              {'params': vectors, 'weight_decay': 0.0}],
                             betas=(c['optimizer.beta1'], c['optimizer.beta2']), eps=c['optimizer.eps'])


def batch(stream, mask, step, c, weights=None):
    """Tokens, targets and what they weigh, [G,T], of a step from the token stream in file order; neighbours share one token."""
    length, size = c['training.seq_len'], c['training.global_batch_size']
    first = [(step * size + i) * length for i in range(size)]
    targets = stream if mask is None else torch.where(torch.tensor(mask) != 0, stream, IGNORED)
    weights = torch.ones(len(stream), dtype=torch.float64) if weights is None else torch.tensor(weights, dtype=torch.float64)
    return (torch.stack([stream[at:at + length] for at in first]),
            *(torch.stack([column[at + 1:at + length + 1] for at in first]) for column in (targets, weights)))


def clip(w, max_norm):
    norm = torch.sqrt(sum(x.grad.square().sum() for x in w.values()))
    if 0 < max_norm < norm:
        for x in w.values():
            x.grad *= max_norm / norm
    return float(norm)


def adapted(base, adapters, c):
    """The weights with their adapters added; GPT-2 stores matrices [in,out]."""
    scale = c.get('lora.alpha', 8) / c['lora.rank'] if adapters else 1
    w = dict(base)
    for name in adapters:
        if name.endswith('.lora_A.weight'):
            of = name.replace('.lora_A', '')
            more = scale * adapters[name.replace('.lora_A', '.lora_B')] @ adapters[name]
            w[of] = base[of] + (more.T if c['model.family'] == 'gpt2' else more)
    return w


def train(weights, stream, steps, c, mask=None, heavy=None):
    """mask, heavy: for each token whether it counts as a target, and what it weighs. If there are adapters, only they are trained. Returns (losses,
    gradient norms before clipping, trained weights after the last step, their gradients of the first step, the smallest
    gap of a choice of experts, what other losses add)."""
    base = {name: torch.tensor(value, dtype=torch.float64) for name, value in weights.items()}
    w = {name: value for name, value in base.items() if '.lora_' in name} or base
    for value in w.values():
        value.requires_grad = True
    stream = torch.tensor(stream, dtype=torch.long)
    optimizer = make_optimizer(w, c)
    losses, norms, first, gaps, added = [], [], None, [], []
    for step in range(steps):
        optimizer.zero_grad()
        whole = base if w is base else adapted(base, w, c)
        loss, router_loss, gap = mean_loss(whole, *batch(stream, mask, step, c, heavy), c)
        (loss + router_loss).backward()
        first = first or {name: x.grad.numpy().copy() for name, x in w.items()}
        losses.append(float(loss.detach()))
        gaps.append(gap)
        added.append(float(torch.as_tensor(router_loss).detach()))
        norms.append(clip(w, c['training.max_norm']))
        for group in optimizer.param_groups:
            group['lr'] = learning_rate(step, c) * group.get('factor', 1)
        optimizer.step()
    return losses, norms, {name: x.detach().numpy() for name, x in w.items()}, first, min(gaps), added
