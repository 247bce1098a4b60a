"""What other trainers leave, made by torch on CPUs, for test_import.py: each function trains a small model for STEPS
steps, saves as its program does, goes on for MORE steps, and returns what it was at the save and the losses after it.

    trainers.py RANK FOLDER KIND...    one of the two processes of FSDP2, with a folder for each kind
"""
import array
import contextlib
import dataclasses
import enum
import os
import pathlib
import struct
import subprocess
import sys
import types

os.environ['HF_HUB_OFFLINE'] = '1'
import torch
import transformers
from torch.nn import functional

STEPS, MORE, BATCH, SEQ, WORDS = 3, 5, 2, 16, 97
LR, BETAS, EPS, DECAY = 2e-3, (0.9, 0.95), 1e-8, 0.1
SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=WORDS, max_position_embeddings=128, attn_implementation='eager', bos_token_id=1, eos_token_id=2)
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=WORDS, n_positions=SEQ, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
            bos_token_id=None, eos_token_id=None, attn_implementation='eager')


def stream(steps, batch=BATCH):
    """Tokens of a language that can be learnt: a sum of the two before, with some noise."""
    random = torch.Generator().manual_seed(5)
    noise = torch.randint(0, 10, (steps * batch * SEQ + 1,), generator=random).tolist()
    words = [3, 5]
    for n in noise:
        words.append((words[-1] + words[-2] + (n == 0)) % WORDS)
    return words[:steps * batch * SEQ + 1]


def rows_of(tokens, step, batch=BATCH):
    return torch.tensor([tokens[(step * batch + i) * SEQ:(step * batch + i + 1) * SEQ + 1] for i in range(batch)])


def write_tokens(path, tokens):
    with open(path, 'wb') as file:
        array.array('H', tokens).tofile(file)


def loss_of(model, rows):
    out = model(rows[:, :-1])
    return functional.cross_entropy(getattr(out, 'logits', out).flatten(0, 1), rows[:, 1:].flatten())


def llama(**more):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**{**SIZES, 'tie_word_embeddings': False, **more})
    config.architectures = ['LlamaForCausalLM']
    return transformers.LlamaForCausalLM(config)


def train(model, optimizer, steps, begin, tokens, part=None, batch=BATCH):
    """Losses of steps, over all ranks; `part`: the rows of this rank."""
    losses = []
    for step in range(begin, begin + steps):
        rows = rows_of(tokens, step, batch)
        loss = loss_of(model, rows if part is None else rows[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.detach().double()
        if part is not None:
            torch.distributed.all_reduce(value, torch.distributed.ReduceOp.SUM)
            value /= torch.distributed.get_world_size()
        losses.append(value.item())
    return losses


def snapshot(model, optimizer, rename=lambda name, tensor: (name, tensor)):
    """{state: {name: tensor}} of the moment."""
    out = {'model': {}, 'exp_avg': {}, 'exp_avg_sq': {}}
    for name, p in model.named_parameters():
        for state in out:
            tensor = p.detach() if state == 'model' else optimizer.state[p][state]
            name_there, tensor = rename(name, getattr(tensor, 'full_tensor', lambda tensor=tensor: tensor)().clone())
            out[state][name_there] = tensor
    return out


def all_decay(model):
    return torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)


# ---- FSDP2, two processes ----


def fsdp(folder, kind):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    steps, more, batch = (50, 10, 6) if kind == 'story' else (STEPS, MORE, BATCH)
    tokens = stream(steps + more, batch)
    model = Titan() if kind == 'titan' else llama(tie_word_embeddings=kind == 'tied')
    if rank == 0:
        (llama() if kind == 'titan' else model).config.save_pretrained(folder / 'hf')
    mesh = init_device_mesh('cpu', (world,))
    for block in model.layers if kind == 'titan' else model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = all_decay(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    part = slice(rank * batch // world, (rank + 1) * batch // world)
    train(model, optimizer, steps, 0, tokens, part, batch)
    was = snapshot(model, optimizer, to_hf if kind == 'titan' else lambda *of: of)
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    weights, states = get_state_dict(model, optimizer, options=flat if kind == 'titan' else None)
    content = {'model': weights, 'optimizer': states, 'step': torch.tensor(steps), 'epoch': 3}
    if kind == 'app':
        content = {'app': {'model': weights, 'optim': states}}
    if kind == 'titan':
        content = {**weights, 'optimizer': states, 'lr_scheduler': schedule.state_dict(), 'dataloader': {'dp_rank_0': b'x'},
                   'train_state': {'step': torch.tensor(steps), 'ntokens_seen': torch.tensor(steps * batch * SEQ)}}
    if kind == 'accelerate':  # as save_fsdp_model() and save_fsdp_optimizer() call it
        dcp.save({'model': weights}, checkpoint_id=folder / 'save/pytorch_model_fsdp_0')
        dcp.save({'optimizer': states}, checkpoint_id=folder / 'save/optimizer_0')
    elif kind == 'full':
        weights, states = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if rank == 0:
            torch.save({'model': weights, 'optimizer': states, 'step': steps}, folder / 'save')
    else:
        dcp.save(content, checkpoint_id=folder / 'save')
    losses = train(model, optimizer, more, steps, tokens, part, batch)
    after = snapshot(model, optimizer, to_hf if kind == 'titan' else lambda *of: of)
    if rank == 0:
        torch.save({'was': was, 'losses': losses, 'after': after['model']}, folder / 'reference')
        write_tokens(folder / 'tokens.bin', tokens[steps * batch * SEQ:])


class Rms(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class TitanAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wo = (torch.nn.Linear(32, 32, bias=False) for _ in range(2))
        self.wk, self.wv = (torch.nn.Linear(32, 16, bias=False) for _ in range(2))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (of(x).view(batch, length, -1, 8) for of in (self.wq, self.wk, self.wv))
        angle = torch.outer(torch.arange(length).float(), 1e4 ** (-torch.arange(0, 8, 2).float() / 8))
        turn = torch.polar(torch.ones_like(angle), angle)[None, :, None]
        q, k = (torch.view_as_real(torch.view_as_complex(of.reshape(*of.shape[:-1], 4, 2)) * turn).flatten(3) for of in (q, k))
        q, k, v = (of.transpose(1, 2) for of in (q, k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)))
        scores = q @ k.transpose(2, 3) / 8 ** 0.5 + torch.full((length, length), float('-inf')).triu(1)
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class TitanFeedForward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (torch.nn.Linear(32, 64, bias=False) for _ in range(2))
        self.w2 = torch.nn.Linear(64, 32, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class TitanBlock(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward, self.attention_norm, self.ffn_norm = TitanAttention(), TitanFeedForward(), Rms(32), Rms(32)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Titan(torch.nn.Module):
    """The names of torchtitan's llama3, and its rotary positions: neighbours turn."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.tok_embeddings = torch.nn.Embedding(WORDS, 32)
        self.layers = torch.nn.ModuleList(TitanBlock() for _ in range(2))
        self.norm, self.output = Rms(32), torch.nn.Linear(32, WORDS, bias=False)

    def forward(self, ids):
        x = self.tok_embeddings(ids)
        for block in self.layers:
            x = block(x)
        return self.output(self.norm(x))


TITAN = {'tok_embeddings': 'model.embed_tokens', 'norm': 'model.norm', 'output': 'lm_head', 'wq': 'self_attn.q_proj',
         'wk': 'self_attn.k_proj', 'wv': 'self_attn.v_proj', 'wo': 'self_attn.o_proj', 'w1': 'mlp.gate_proj', 'w2': 'mlp.down_proj',
         'w3': 'mlp.up_proj', 'attention_norm': 'input_layernorm', 'ffn_norm': 'post_attention_layernorm'}


def to_hf(name, tensor):
    """Row 2i + j of a head becomes row 4j + i: written out, unlike in sherd-import."""
    words = name.split('.')
    if words[-2] in ('wq', 'wk'):
        tensor = torch.stack([tensor[8 * (row // 8) + 2 * (row % 4) + (row % 8) // 4] for row in range(len(tensor))])
    return (f'model.layers.{words[1]}.' if words[0] == 'layers' else '') + TITAN[words[-2]] + '.weight', tensor


def two_processes(folder, *kinds):
    """FOLDER/KIND for each, by two processes together: starting them takes longest."""
    for kind in kinds:
        (folder / kind).mkdir(parents=True, exist_ok=True)
    running = [subprocess.Popen([sys.executable, __file__, str(rank), str(folder), *kinds], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True) for rank in range(2)]
    texts = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError('\n'.join(texts))


# ---- one process ----


def finish(folder, model, optimizer, tokens, rename=lambda *of: of):
    was = snapshot(model, optimizer, rename)
    yield was
    losses = train(model, optimizer, MORE, STEPS, tokens)
    write_tokens(folder / 'tokens.bin', tokens[STEPS * BATCH * SEQ:])
    yield {'was': was, 'losses': losses, 'after': snapshot(model, optimizer, rename)['model']}


def plain(folder):
    """A script that saves state_dict() of both: the optimizer numbers the parameters."""
    folder.mkdir(parents=True)
    tokens, model = stream(STEPS + MORE), llama()
    optimizer = all_decay(model)
    train(model, optimizer, STEPS, 0, tokens)
    steps = finish(folder, model, optimizer, tokens)
    next(steps)
    torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'epoch': 1}, folder / 'save')
    model.config.save_pretrained(folder / 'hf')
    return next(steps)


def trainer(folder):
    """Trainer itself."""
    folder.mkdir(parents=True)
    tokens, model = stream(STEPS + MORE), llama()
    rows = [{'input_ids': row, 'labels': row} for step in range(STEPS) for row in rows_of(tokens, step)[:, :-1]]
    arguments = transformers.TrainingArguments(
        output_dir=folder / 'out', max_steps=STEPS, per_device_train_batch_size=BATCH, save_steps=STEPS, learning_rate=LR,
        adam_beta1=BETAS[0], adam_beta2=BETAS[1], adam_epsilon=EPS, weight_decay=DECAY, max_grad_norm=0.0, use_cpu=True,
        lr_scheduler_type='constant', report_to=[], disable_tqdm=True)
    with contextlib.redirect_stdout(sys.stderr):
        run = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        run.train()
    (folder / f'out/checkpoint-{STEPS}').rename(folder / 'save')
    model.train(False)
    steps = finish(folder, model, run.optimizer.optimizer, tokens)
    next(steps)
    return next(steps)


class NanoBlock(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(32), torch.nn.LayerNorm(32)
        self.attn, self.mlp = torch.nn.Module(), torch.nn.Module()
        self.attn.c_attn, self.attn.c_proj = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)
        self.mlp.c_fc, self.mlp.c_proj = torch.nn.Linear(32, 128), torch.nn.Linear(128, 32)

    def forward(self, x):
        q, k, v = (of.unflatten(2, (4, 8)).transpose(1, 2) for of in self.attn.c_attn(self.ln_1(x)).split(32, 2))
        x = x + self.attn.c_proj(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp.c_proj(functional.gelu(self.mlp.c_fc(self.ln_2(x)), approximate='tanh'))


class Nano(torch.nn.Module):
    """The names of nanoGPT, and the GELU that it had at first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.transformer = torch.nn.ModuleDict({
            'wte': torch.nn.Embedding(WORDS, 32), 'wpe': torch.nn.Embedding(SEQ, 32),
            'h': torch.nn.ModuleList(NanoBlock() for _ in range(2)), 'ln_f': torch.nn.LayerNorm(32)})
        self.lm_head = torch.nn.Linear(32, WORDS, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, ids):
        x = self.transformer.wte(ids) + self.transformer.wpe(torch.arange(ids.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def matrices_decay(model):
    named = list(model.parameters())
    return torch.optim.AdamW([{'params': [p for p in named if p.dim() >= 2], 'weight_decay': DECAY},
                              {'params': [p for p in named if p.dim() < 2], 'weight_decay': 0.0}], lr=LR, betas=BETAS, eps=EPS)


def turned(name, tensor):
    last = name.split('.')[-2:]
    return name, tensor.t().contiguous() if last[0] in ('c_attn', 'c_proj', 'c_fc') and last[1] == 'weight' else tensor


def nano(folder):
    (folder / 'save').mkdir(parents=True)
    tokens, model = stream(STEPS + MORE), Nano()
    optimizer = matrices_decay(model)
    train(model, optimizer, STEPS, 0, tokens)
    steps = finish(folder, model, optimizer, tokens, turned)
    next(steps)
    sizes = dict(n_layer=2, n_head=4, n_embd=32, block_size=SEQ, bias=True, vocab_size=WORDS, dropout=0.0)
    torch.save({'model': {f'_orig_mod.{name}': tensor for name, tensor in model.state_dict().items()},
                'optimizer': optimizer.state_dict(), 'model_args': sizes, 'iter_num': STEPS, 'best_val_loss': torch.tensor(4.0),
                'config': {'out_dir': 'out'}}, folder / 'save/ckpt.pt')
    return next(steps)


# ---- llm.c, as train_gpt2.cu writes its files ----

KINDS = [('wte.weight', 0), ('wpe.weight', 0), ('ln_1.weight', 1), ('ln_1.bias', 1), ('attn.c_attn.weight', 1),
         ('attn.c_attn.bias', 1), ('attn.c_proj.weight', 1), ('attn.c_proj.bias', 1), ('ln_2.weight', 1), ('ln_2.bias', 1),
         ('mlp.c_fc.weight', 1), ('mlp.c_fc.bias', 1), ('mlp.c_proj.weight', 1), ('mlp.c_proj.bias', 1), ('ln_f.weight', 0),
         ('ln_f.bias', 0)]
PADDED = 128


def arrays(table):
    """The 16 tensors of llm.c, [L, elements] each."""
    out = []
    for name, block in KINDS:
        parts = []
        for layer in range(2 if block else 1):
            full = f'transformer.h.{layer}.{name}' if block else f'transformer.{name}'
            tensor = turned(full, table[full])[1]
            if name == 'wte.weight':
                tensor = torch.cat([tensor, torch.zeros(PADDED - WORDS, tensor.shape[1])])
            parts.append(tensor.flatten())
        out.append(torch.stack(parts))
    return out


def llmc(folder, ranks, masters):
    """`ranks` > 1: ZeRO-1, a part of each tensor of each layer for each rank."""
    (folder / 'save').mkdir(parents=True)
    torch.manual_seed(4)
    tokens, model = stream(STEPS + MORE), transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))
    optimizer = matrices_decay(model)
    train(model, optimizer, STEPS, 0, tokens)
    steps = finish(folder, model, optimizer, tokens)
    was = next(steps)
    header = struct.pack('<8i', 20240326, 5 if masters else 3, SEQ, WORDS, 2, 4, 32, PADDED) + bytes(4 * 248)
    weights = torch.cat([tensor.flatten() for tensor in arrays(was['model'])])
    if masters:
        weights = weights.bfloat16().view(torch.int16)
    (folder / f'save/model_{STEPS:08d}.bin').write_bytes(header + weights.numpy().tobytes())
    for rank in range(ranks):
        body = b''
        for state in ('exp_avg', 'exp_avg_sq', 'model')[:3 if masters else 2]:
            for tensor in arrays(was[state]):
                share = tensor.shape[1] // ranks
                body += tensor[:, rank * share:(rank + 1) * share].contiguous().numpy().tobytes()
        words = [0] * 256
        words[:5], words[10] = [20240527, 1, ranks, rank, int(masters)], STEPS
        (folder / f'save/state_{STEPS:08d}_{rank:05d}.bin').write_bytes(struct.pack('<256i', *words) + body)
    return next(steps)


# ---- DeepSpeed, as its engine writes its files; stands in for a program that would be compiled first ----


DEEPSPEED = {name: types.ModuleType(name) for name in (
    'deepspeed', 'deepspeed.utils.tensor_fragment', 'deepspeed.runtime.fp16.loss_scaler', 'deepspeed.runtime.zero.config')}


def _class(module, make):
    """A class of DeepSpeed that its files name."""
    made = make(module)
    setattr(DEEPSPEED[module], made.__name__, made)
    return made


ADDRESS = _class('deepspeed.utils.tensor_fragment', lambda module: dataclasses.make_dataclass(
    'fragment_address', ['numel', 'start'], namespace={'__module__': module}))
SCALER = _class('deepspeed.runtime.fp16.loss_scaler', lambda module: dataclasses.make_dataclass(
    'LossScaler', ['cur_scale', 'dynamic'], namespace={'__module__': module}))
STAGES = _class('deepspeed.runtime.zero.config', lambda module: enum.IntEnum(
    'ZeroStageEnum', ['optimizer_states', 'gradients', 'weights'], module=module))


def save_named(content, path):
    """torch.save() finds the classes only now: transformers looks whether there is a DeepSpeed."""
    sys.modules.update(DEEPSPEED)
    try:
        torch.save(content, path)
    finally:
        for name in DEEPSPEED:
            del sys.modules[name]


def _partition(tensors, stage, ranks):
    """[rank] of the flat part of a group: even parts of all together (1, 2), or of each (3); padded with zeros."""
    cut = [torch.cat([tensor.flatten() for tensor in tensors])] if stage < 3 else [tensor.flatten() for tensor in tensors]
    parts = [[] for _ in range(ranks)]
    for flat in cut:
        share = -(-flat.numel() // ranks)
        for rank, part in enumerate(functional.pad(flat, (0, share * ranks - flat.numel())).split(share)):
            parts[rank].append(part)
    return [torch.cat(part) for part in parts]


def _slices(named, ranks):
    """[rank] of {name: which part of the rank's flat part}."""
    total, out, begin = sum(tensor.numel() for tensor in named.values()), [{} for _ in range(ranks)], 0
    share = -(-total // ranks)
    for name, tensor in named.items():
        for rank in range(ranks):
            first, last = max(begin, rank * share), min(begin + tensor.numel(), (rank + 1) * share)
            if first < last:
                out[rank][name] = ADDRESS(last - first, first - rank * share)
        begin += tensor.numel()
    return out


def zero(folder, stage, ranks=2):
    (folder / f'save/global_step{STEPS}').mkdir(parents=True)
    tokens, model = stream(STEPS + MORE), llama()
    optimizer = matrices_decay(model)
    train(model, optimizer, STEPS, 0, tokens)
    steps = finish(folder, model, optimizer, tokens)
    was = next(steps)
    names = {p: name for name, p in model.named_parameters()}
    groups = [[names[p] for p in group['params']] for group in optimizer.param_groups]
    flat = {part: [_partition([was[part][name] for name in group], stage, ranks) for group in groups] for part in was}
    numbers = [{**{key: value for key, value in group.items() if key != 'params'}, 'params': [i]}
               for i, group in enumerate(optimizer.param_groups)]
    maps = [_slices({name: was['model'][name] for name in group}, ranks) for group in groups]
    for rank in range(ranks):
        base = {'state': {i: {'step': torch.tensor(float(STEPS)), 'exp_avg': flat['exp_avg'][i][rank],
                              'exp_avg_sq': flat['exp_avg_sq'][i][rank]} for i in range(len(groups))}, 'param_groups': numbers}
        content = {'zero_stage': STAGES(stage), 'loss_scaler': SCALER(1.0, False), 'partition_count': ranks, 'ds_version': '0.19.8'}
        master = [part[rank].clone() for part in flat['model']]
        if stage == 3:
            content.update(optimizer_state_dict=base, fp32_flat_groups=master)
        else:
            content.update(base_optimizer_state=base, single_partition_of_fp32_groups=master, partition_count=[ranks] * len(groups),
                           param_slice_mappings=[of[rank] for of in maps])
        save_named({'optimizer_state_dict': content, 'ds_config': {}},
                   folder / f'save/global_step{STEPS}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt')
    shapes = [{name: was['model'][name].shape for name in group} for group in groups]
    torch.save({'param_shapes': shapes, 'shared_params': {}, 'frozen_param_shapes': None, 'global_steps': STEPS, 'ds_version': '0.19.8',
                'lr_scheduler': {'last_epoch': STEPS}, 'data_sampler': None, 'my_epoch': 1},
               folder / f'save/global_step{STEPS}/{"zero_pp_rank_0_" if stage == 3 else ""}mp_rank_00_model_states.pt')
    (folder / 'save/latest').write_text(f'global_step{STEPS}')
    (folder / 'save/zero_to_fp32.py').write_text('raise SystemExit("it is not run")\n')
    model.config.save_pretrained(folder / 'hf')
    return next(steps)


def universal(folder, stage=1):
    """As ds_to_universal.py leaves it. From ZeRO-3 tensors are bare, and the number of updates is in the states of all."""
    (folder / 'save/zero').mkdir(parents=True)
    tokens, model = stream(STEPS + MORE), llama()
    optimizer = all_decay(model)
    train(model, optimizer, STEPS, 0, tokens)
    steps = finish(folder, model, optimizer, tokens)
    was, updates = next(steps), torch.tensor(float(STEPS))
    for name in was['model']:
        (folder / 'save/zero' / name).mkdir()
        for part, table in zip(('fp32', 'exp_avg', 'exp_avg_sq'), was.values()):
            flat = table[name].flatten().clone()
            torch.save({'param': flat, 'cat_dim': 0} if stage < 3 else flat, folder / f'save/zero/{name}/{part}.pt')
        if stage < 3:
            torch.save(updates, folder / f'save/zero/{name}/step.pt')
    groups = [{**{key: value for key, value in optimizer.param_groups[0].items() if key != 'params'}, 'params': [0]}]
    content = {'param_groups': groups, 'zero_stage': STAGES(stage)}
    if stage == 3:
        content['optimizer_state_dict'] = {'state': {0: {'step': updates}}, 'param_groups': groups}
    save_named(content, folder / 'save/zero/optimizer_state.pt')
    torch.save({'param_shapes': [{name: tensor.shape for name, tensor in was['model'].items()}], 'global_steps': STEPS},
               folder / f'save/{"zero_pp_rank_0_" if stage == 3 else ""}mp_rank_00_model_states.pt')
    model.config.save_pretrained(folder / 'hf')
    return next(steps)


if __name__ == '__main__':
    top = pathlib.Path(sys.argv[2]).resolve()
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo', init_method=f'file://{top}/meet', rank=int(sys.argv[1]), world_size=2)
    for each in sys.argv[3:]:
        fsdp(top / each, each)
    torch.distributed.destroy_process_group()
