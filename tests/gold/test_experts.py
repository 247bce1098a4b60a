#!/usr/bin/env python3
"""Models with experts lose what their definition in NumPy loses, each expert and token by itself. Prints TAP.

The definition is that of transformers: a token's experts are those with the largest scores, its result the sum of
theirs, weighed. Weights come from the checkpoint of a short run, so that norms and biases are not trivial.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'mesh'))
import job
import tiny

SEQUENCES = 20
LOSSES = {'moe.aux_loss_coeff': 0.25, 'moe.z_loss_coeff': 0.125}
routed = []  # for each block and token its experts, the shares of its scores, and its logits
CASES = {
    'mixtral': {'model.family': 'mixtral', 'model.route_norm': True, 'model.first_dense_layers': 0, 'model.shared_ffn_dim': 0},
    'qwen2_moe': {},
    'qwen3_moe': {'model.family': 'qwen3_moe', 'model.shared_ffn_dim': 0, 'model.router': 'sigmoid', 'model.moe_every': 2,
                  'model.route_groups': 3, 'model.route_top_groups': 2, 'model.route_scale': 2.5, 'model.route_norm': True},
    'olmoe': {'model.family': 'olmoe', 'model.first_dense_layers': 0, 'model.shared_ffn_dim': 0, 'model.n_kv_heads': 5},
}


def norm(x, weight):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * weight


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def swiglu(x, gate, up, down):
    g = x @ gate.T
    return (g * sigmoid(g) * (x @ up.T)) @ down.T


def rotate(x):
    """x [T,D], the halves of a head."""
    half = x.shape[1] // 2
    angle = np.outer(np.arange(len(x)), 10000.0 ** (-np.arange(half) / half))
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 1)


def attention(w, name, x, c):
    q, k, v = (x @ w[f'{name}.{p}_proj.weight'].T + w.get(f'{name}.{p}_proj.bias', 0) for p in 'qkv')
    wide, D = c['model.family'] == 'olmoe', c['model.head_dim']
    if wide:
        q, k = norm(q, w[f'{name}.q_norm.weight']), norm(k, w[f'{name}.k_norm.weight'])
    q, k, v = (t.reshape(len(x), -1, D).swapaxes(0, 1) for t in (q, k, v))
    if f'{name}.q_norm.weight' in w and not wide:
        q, k = norm(q, w[f'{name}.q_norm.weight']), norm(k, w[f'{name}.k_norm.weight'])
    heads = []
    for h, query in enumerate(q):
        pair = h * len(k) // len(q)
        scores = rotate(query) @ rotate(k[pair]).T / D ** 0.5
        heads.append(softmax(np.where(np.tri(len(x)), scores, -np.inf)) @ v[pair])
    return np.concatenate(heads, 1) @ w[f'{name}.o_proj.weight'].T


def chosen(score, c):
    """The experts of a token, of the best groups if there are groups."""
    groups = c.get('model.route_groups', 0)
    if groups:
        parts = score.reshape(groups, -1)
        best = np.argsort(-np.sort(parts)[:, -2:].sum(1))[:c['model.route_top_groups']]
        score = np.where(np.isin(np.arange(len(score)) // parts.shape[1], best), score, -np.inf)
    return np.argsort(-score)[:c['model.n_experts_per_token']]


def experts(w, name, x, c):
    logits, y = x @ w[f'{name}.gate.weight'].T, []
    scores = sigmoid(logits) if c.get('model.router') == 'sigmoid' else softmax(logits)
    bias = w.get(f'{name}.gate.e_score_correction_bias', 0)
    for row, score, logit in zip(x, scores, logits):
        ids = chosen(score + bias, c)
        routed.append((name, ids, score / score.sum(), logit))
        weights = score[ids] / (score[ids].sum() if c.get('model.route_norm') else 1) * c.get('model.route_scale', 1)
        y.append(sum(weight * swiglu(row, *np.split(w[f'{name}.experts.gate_up_proj.weight'][e], 2),
                                     w[f'{name}.experts.down_proj.weight'][e]) for e, weight in zip(ids, weights)))
    if c.get('model.shared_ffn_dim'):
        shared = (w[f'{name}.shared_expert.{p}_proj.weight'] for p in ('gate', 'up', 'down'))
        y += sigmoid(x @ w[f'{name}.shared_expert_gate.weight'].T) * swiglu(x, *shared)
    return np.array(y)


def loss(w, tokens, c):
    x = w['model.embed_tokens.weight'][tokens[:-1]]
    for i in range(c['model.n_layers']):
        block = f'model.layers.{i}'
        x = x + attention(w, f'{block}.self_attn', norm(x, w[f'{block}.input_layernorm.weight']), c)
        h = norm(x, w[f'{block}.post_attention_layernorm.weight'])
        dense = i < c['model.first_dense_layers'] or (i + 1) % c.get('model.moe_every', 1)
        x = x + (swiglu(h, *(w[f'{block}.mlp.{p}_proj.weight'] for p in ('gate', 'up', 'down'))) if dense
                 else experts(w, f'{block}.mlp', h, c))
    p = softmax(norm(x, w['model.norm.weight']) @ w['lm_head.weight'].T)
    return -np.log(p[np.arange(len(p)), tokens[1:]]).sum()


def train(name, changes=()):
    """A short run: its folder, its checkpoint and the weights in it."""
    folder = pathlib.Path(name)
    job.train(folder, {**tiny.EXPERTS, 'job.dump_folder': 'out', 'training.steps': 3, 'training.global_batch_size': 2,
                       'training.dataset_path': data, **dict(changes)})
    saved = folder / 'out/checkpoint/step-00000003.h5'
    return folder, saved, {key: value.astype(float) for key, value in checkpoint.read(saved, 'model').items()}


def compare(folder, saved, w, c):
    """The loss that the definition has with these weights."""
    tokens, T = np.fromfile(data, '<u2'), tiny.SEQ_LEN
    right = sum(loss(w, tokens[i * T:(i + 1) * T + 1].astype(int), c) for i in range(SEQUENCES)) / (SEQUENCES * T)
    said = job.sherd('eval', '--checkpoint', saved.relative_to(folder), '--data', data, '--sequences', SEQUENCES, folder=folder)
    found = float(said.split('loss')[1].split()[0])
    return [] if abs(found - right) < 2e-5 else [f'loss {found}, expected {right}']


def case(name):
    return compare(*train(name, CASES[name]), {**tiny.EXPERTS, **CASES[name]})


def adapters(name):
    """A product with adapters is one with the matrix W + s B A, and each expert has its own."""
    _, base, w = train(f'{name}-base', CASES[name])
    lora = {'moe.load_balance_coeff': 0, 'model.router_bias': True, 'lora.rank': 3, 'lora.alpha': 12, 'lora.target_parameters': 'gate_up_proj,mlp.experts.down_proj',
            'checkpoint.initial_load_path': str(base.resolve()), 'optimizer.lr': 0.1}
    folder, saved, pairs = train(f'{name}-adapters', {**CASES[name], **lora})
    for key in [key for key in pairs if key.endswith('.lora_A.weight')]:
        module = key.removesuffix('.lora_A.weight')
        w[f'{module}.weight'] += 4 * pairs[f'{module}.lora_B.weight'] @ pairs[key]
    stacks = [key for key in pairs if '.experts.' in key]
    if name == 'qwen3_moe':
        try:
            job.sherd('ckpt', 'export', 'out', '--adapter', 'peft', folder=folder)
            return ['dense parts were written']
        except job.Failed as error:
            if 'PEFT takes adapters of gate_proj, up_proj and down_proj' not in str(error):
                return [str(error)]
    return compare(folder, saved, w, {**tiny.EXPERTS, **CASES[name]}) + [f'{len(stacks)} stacks'] * (len(stacks) % 4 or not stacks)


def reports(name):
    """A step's loads and losses of the router, counted token by token from the weights before it. Each sequence is a
    micro-step of its own, over which the shares of the auxiliary loss are taken."""
    c = {**tiny.EXPERTS, **CASES[name], **LOSSES, 'model.init_std': 0.5}
    if c.get('model.router') == 'sigmoid':
        del c['moe.z_loss_coeff']
    steps = run_reported(pathlib.Path(f'{name} reports'), c)
    w = {key: value.astype(float) for key, value in checkpoint.read(f'{name} reports/out/checkpoint/step-00000000.h5', 'model').items()}
    tokens, T, E = np.fromfile(data, '<u2'), tiny.SEQ_LEN, c['model.n_experts']
    load, aux, z = {}, 0, 0
    for i in range(4):
        routed.clear()
        loss(w, tokens[i * T:(i + 1) * T + 1].astype(int), c)
        for block in dict.fromkeys(name for name, _, _, _ in routed):
            ids, share, logits = zip(*(row[1:] for row in routed if row[0] == block))
            count = np.bincount(np.concatenate(ids), minlength=E)
            load[block] = load.get(block, 0) + count
            aux += c['moe.aux_loss_coeff'] * E * (count / count.sum() * np.mean(share, 0)).sum() * T
            z += c.get('moe.z_loss_coeff', 0) * (np.log(np.exp(logits).sum(1)) ** 2).sum()
    shares = [count / count.sum() for count in load.values()]
    right = {'max_by_block': [float(s.max() * E) for s in shares],
             'entropy_by_block': [float(-(s[s > 0] * np.log(s[s > 0])).sum() / np.log(E)) for s in shares]}
    right['max'] = max(right['max_by_block'])
    found = steps[0]['expert_load']
    wrong = [f'{key}: {found.get(key)}, expected {value}' for key, value in right.items()
             if not np.allclose(found.get(key, np.nan), value, rtol=1e-12)]
    for key, sum_of in {'aux_loss': aux, 'z_loss': z}.items():
        if not np.isclose(steps[0].get(key, 0), sum_of / (4 * T), rtol=1e-5):
            wrong.append(f'{key}: {steps[0].get(key)}, expected {sum_of / (4 * T)}')
    if any(key in steps[1]['expert_load'] for key in ('max_by_block', 'entropy_by_block')) or 'max' not in steps[1]['expert_load']:
        wrong.append(f'step 2 is no log step: {steps[1]["expert_load"]}')
    return wrong


def run_reported(folder, c, ranks=0):
    return job.train(folder, {**c, 'training.dataset_path': data, 'data.shuffle': False, 'training.global_batch_size': 4,
                              'checkpoint.create_seed_checkpoint': True, 'metrics.log_freq': 3, 'training.steps': 3}, ranks)


def reports_on_meshes():
    """Neither ranks, micro-steps, recomputation nor validations show, nor an update that is carried into the next step.
    Loads are whole numbers; the losses have the same bits if the gradients have."""
    said = {}
    c = {**tiny.EXPERTS, **LOSSES, 'training.reproducible': 'mesh'}
    runs = {'1 rank': (0, {}), 'recomputation': (0, {'activation_checkpoint.mode': 'full'}),
            'carried': (0, {'offload.optimizer': 'nvme', 'offload.nvme_path': '.'}), 'copied': (0, {'checkpoint.async_mode': 'async'}),
            'validation': (0, {'validation.enable': True, 'validation.dataset_path': data, 'validation.freq': 1})}
    if job.can_launch():
        runs |= {'2 ranks': (2, {}), '4 ranks': (4, {'mesh.replicate': 2, 'mesh.shard': 2,
                                             'parallelism.sharding_strategy': 'hybrid_shard'})}
    for name, (ranks, more) in runs.items():
        steps = run_reported(pathlib.Path(f'mesh {name}'), {**c, **more}, ranks)
        said[name] = [[step[key] for key in ('expert_load', 'aux_loss', 'z_loss')] for step in steps]
        said[name].append({block: bias.tolist() for block, bias in biases(pathlib.Path(f'mesh {name}'), 3).items()})
    job.sherd('plan', 'c.yaml', '--ranks=4', '--check', folder='mesh 1 rank')
    first = said['1 rank']
    return [f'{name}: {numbers}, 1 rank: {first}' for name, numbers in said.items() if numbers != first]


def biases(folder, step):
    saved = checkpoint.read(folder / f'out/checkpoint/step-{step:08}.h5', 'model')
    return {name: value for name, value in saved.items() if name.endswith('e_score_correction_bias')}


def moved_biases():
    """An expert with less than the mean load of the step goes up by moe.load_balance_coeff, one with more down; the
    mean of a block stays 0. With router_bias alone they stay; steps without an update leave them alone."""
    folder, T, E, step = pathlib.Path('biases'), tiny.SEQ_LEN, tiny.EXPERTS['model.n_experts'], 0.25
    run_reported(folder, {**tiny.EXPERTS, 'moe.load_balance_coeff': step, 'checkpoint.interval': 1})
    tokens, moved, wrong = np.fromfile(data, '<u2'), {}, []
    for i in range(3):
        w = {key: value.astype(float) for key, value in checkpoint.read(folder / f'out/checkpoint/step-{i:08}.h5', 'model').items()}
        routed.clear()
        for k in range(4 * i, 4 * i + 4):
            loss(w, tokens[k * T:(k + 1) * T + 1].astype(int), tiny.EXPERTS)
        for block in dict.fromkeys(name for name, _, _, _ in routed):
            load = np.bincount(np.concatenate([ids for name, ids, _, _ in routed if name == block]), minlength=E)
            b = moved.get(block, np.zeros(E)) + step * np.sign(load.mean() - load)
            moved[block] = b - b.mean()
        found = biases(folder, i + 1)
        wrong += [f'step {i + 1}: {found}, expected {moved}'
                  for name, right in moved.items() if not np.allclose(found[f'{name}.gate.e_score_correction_bias'], right, atol=1e-6)]
    job.sherd('train', 'c.yaml', '--moe.load_balance_coeff=0', '--model.router_bias=true', '--training.steps=4', folder=folder)
    then, now = biases(folder, 3), biases(folder, 4)
    if len(then) != 2 or any((now[name] != then[name]).any() for name in then):
        wrong.append(f'coefficient 0 moves {then} to {now}')
    states = checkpoint.read(folder / 'out/checkpoint/step-00000003.h5', 'optimizer/exp_avg')
    wrong += [f'{name} has a moment' for name in then if states[name].any()]
    folder = pathlib.Path('biases in bfloat16')
    run_reported(folder, {**tiny.EXPERTS, 'moe.load_balance_coeff': 0.001, 'training.mixed_precision_param': 'bfloat16'})
    for name, b in biases(folder, 3).items():  # 1/1000 less a mean of six such steps
        if not b.any() or abs(b * 6000 - np.round(b * 6000)).max() > 1e-2:
            wrong.append(f'{name} in bfloat16: {b}')
    folder = pathlib.Path('biases of a skipped step')
    steps = run_reported(folder, {**tiny.EXPERTS, 'training.mixed_precision_param': 'float16', 'training.loss_scale_init': 2**40})
    if not all('skipped' in line and line['expert_load']['max'] > 1 for line in steps) or any(b.any() for b in biases(folder, 3).values()):
        wrong.append(f'skipped steps: {steps}, {biases(folder, 3)}')
    return wrong


def biases_of_other_models():
    """A checkpoint with biases, or without, is refused with the key that helps."""
    folder = pathlib.Path('others')
    wrong = []
    for name, keys, text in (('with', {}, 'give model.router_bias=true'),
                             ('without', {'moe.load_balance_coeff': 0}, 'leave out model.router_bias and moe.load_balance_coeff')):
        run_reported(folder / name, {**tiny.EXPERTS, **keys})
        other = '--moe.load_balance_coeff=0' if name == 'with' else '--moe.load_balance_coeff=0.1'
        try:
            job.sherd('train', 'c.yaml', other, '--training.steps=4', folder=folder / name)
            wrong.append(f'{name}: accepted')
        except job.Failed as e:
            wrong += [] if text in str(e) else [f'{name}: {e}']
    return wrong


def forced():
    """Experts by turn: 12 tokens with 2 of 6 experts are 4 rows for each. The start says so, and so does a benchmark."""
    c = {**tiny.EXPERTS, 'debug.moe_force_load_balance': True, 'model.init_std': 0.5, 'training.dataset_path': data, 'training.steps': 2}
    job.prepare('forced', {'job.dump_folder': 'out', **c})
    _, said = job.launch('train', 'c.yaml', folder='forced')
    wrong = [] if 'experts by turn' in said else [said]
    wrong += [f'{step["expert_load"]}' for step in job.metrics('forced') if step['expert_load']['max'] != 1]
    bench = job.sherd('bench', 'step', 'c.yaml', '--repeat=1', folder='forced')
    return wrong + ([] if 'experts by turn' in bench else [bench])


def losses_of_the_router():
    """Each weight reaches the router's backward as itself, not as the other one; the loss that is compared above shows
    neither."""
    job.prepare('losses', {**tiny.EXPERTS, 'moe.aux_loss_coeff': 0.25, 'moe.z_loss_coeff': 0.5})
    lines = [line for line in job.sherd('plan', 'c.yaml', '--show', folder='losses').splitlines() if ' route_bwd ' in line]
    right = [line for line in lines if line.rstrip().endswith('aux 0.25  z 0.5')]
    return [] if right and right == [line for line in lines if 'experts 1 ' not in line] else ['\n'.join(lines)]


if __name__ == '__main__':
    job.need_modules('h5py', 'numpy')
    import numpy as np

    import checkpoint
    data = tiny.write_tokens(count=SEQUENCES * tiny.SEQ_LEN + 1)
    sys.exit(job.run_cases([(name, case, name) for name in CASES] + [(f'{name}: adapters', adapters, name) for name in CASES]
                           + [(f'{name} reports', reports, name) for name in CASES] + [
                               ('moved biases', moved_biases), ('biases of other models', biases_of_other_models),
                               ('reports on meshes', reports_on_meshes), ('experts by turn', forced),
                               ('losses of the router', losses_of_the_router)]))
