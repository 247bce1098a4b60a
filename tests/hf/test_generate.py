#!/usr/bin/env python3
"""Greedy texts against transformers' generate, log-probabilities against its logits, and lm_eval with our adapter
against lm_eval with transformers. Models are random, so texts are arbitrary and no two words stay equally likely for
long. Prints TAP. Needs the virtual environment that tests/hf/venv makes; SHERD_HF_VENV names it.
"""
import importlib.util
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

job.enter_venv()
os.environ['HF_DATASETS_OFFLINE'] = '1'
os.environ['HF_HOME'] = os.path.abspath('hf-home')
import torch
import transformers

NEW, CLOSE = 128, 2e-5  # tokens; logits this close may change places
TOKENIZER = job.TOP / 'tests/golden/tokenizer/qwen.json'
SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=512)
IDS = dict(pad_token_id=None)  # the default is beyond so small a vocabulary
EXPERTS = dict(num_key_value_heads=2, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=48)
GRANITE = dict(embedding_multiplier=3.0, residual_multiplier=0.6, logits_scaling=1.5, attention_multiplier=0.25)
GPT2 = dict(n_embd=64, n_layer=3, n_head=4, n_positions=512)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=24, linear_conv_kernel_dim=4)
MODELS = {
    'llama': (transformers.LlamaConfig, SIZES),
    'llama tied, grouped, wide heads': (transformers.LlamaConfig, dict(SIZES, tie_word_embeddings=True, num_key_value_heads=2, head_dim=24)),
    'mistral': (transformers.MistralConfig, dict(SIZES, num_key_value_heads=1, sliding_window=512)),
    'mistral, a short window': (transformers.MistralConfig, dict(SIZES, num_key_value_heads=1, sliding_window=24)),
    'qwen2, a short window': (transformers.Qwen2Config, dict(SIZES, num_key_value_heads=2, use_sliding_window=True,
                                                             sliding_window=24, max_window_layers=1)),
    'gpt2': (transformers.GPT2Config, GPT2),
    'qwen3': (transformers.Qwen3Config, dict(SIZES, num_key_value_heads=2, head_dim=24)),
    'gemma': (transformers.GemmaConfig, dict(SIZES, num_key_value_heads=1, head_dim=24, **IDS)),
    'gemma2': (transformers.Gemma2Config, dict(
        SIZES, num_key_value_heads=2, head_dim=24, sliding_window=24, query_pre_attn_scalar=20, attn_logit_softcapping=1.0,
        final_logit_softcapping=2.0, **IDS)),
    'gemma3_text': (transformers.Gemma3TextConfig, dict(
        SIZES, num_key_value_heads=2, head_dim=24, sliding_window=24, query_pre_attn_scalar=20,
        layer_types=['sliding_attention', 'full_attention', 'sliding_attention'], **IDS)),
    'gpt_neox': (transformers.GPTNeoXConfig, SIZES),
    'olmo2': (transformers.Olmo2Config, dict(SIZES, num_key_value_heads=2, **IDS)),
    'olmo3': (transformers.Olmo3Config, dict(
        SIZES, num_key_value_heads=2, sliding_window=24, layer_types=['sliding_attention', 'full_attention', 'sliding_attention'], **IDS)),
    'exaone4': (transformers.Exaone4Config, dict(
        SIZES, num_key_value_heads=2, sliding_window=24, layer_types=['sliding_attention', 'full_attention', 'sliding_attention'], **IDS)),
    'seed_oss': (transformers.SeedOssConfig, dict(SIZES, num_key_value_heads=2, head_dim=24, **IDS)),
    'phi3, half of each head turned': (transformers.Phi3Config, dict(
        SIZES, num_key_value_heads=2, **IDS,
        rope_parameters={'rope_type': 'default', 'rope_theta': 1e4, 'partial_rotary_factor': 0.5})),
    'starcoder2': (transformers.Starcoder2Config, dict(SIZES, num_key_value_heads=2)),
    'mixtral': (transformers.MixtralConfig, dict(SIZES, num_key_value_heads=2, num_local_experts=4)),
    'qwen2_moe': (transformers.Qwen2MoeConfig, dict(SIZES, **EXPERTS, mlp_only_layers=[0], shared_expert_intermediate_size=40)),
    'qwen3_moe': (transformers.Qwen3MoeConfig, dict(SIZES, **EXPERTS, head_dim=24, norm_topk_prob=True)),
    'olmoe': (transformers.OlmoeConfig, dict(SIZES, num_key_value_heads=2, num_experts=5, num_experts_per_tok=2, **IDS)),
    'granite': (transformers.GraniteConfig, dict(SIZES, num_key_value_heads=2, **GRANITE)),
    'granitemoe': (transformers.GraniteMoeConfig, dict(SIZES, num_key_value_heads=2, num_local_experts=5, **GRANITE)),
    'ministral3': (transformers.Ministral3Config, dict(SIZES, num_key_value_heads=2, head_dim=24, **IDS, rope_parameters={
        'rope_type': 'yarn', 'rope_theta': 1e4, 'factor': 4.0, 'original_max_position_embeddings': 512, 'mscale': 1.0,
        'mscale_all_dim': 1.0, 'llama_4_scaling_beta': 0.1})),
    'cohere2': (transformers.Cohere2Config, dict(SIZES, num_key_value_heads=2, sliding_window=9, sliding_window_pattern=2, **IDS)),
    'glm4': (transformers.Glm4Config, dict(SIZES, num_key_value_heads=2, head_dim=24, **IDS)),
    'gpt_oss': (transformers.GptOssConfig, dict(
        SIZES, num_key_value_heads=2, head_dim=24, sliding_window=24, num_local_experts=5, num_experts_per_tok=2, **IDS, rope_parameters={
            'rope_type': 'yarn', 'rope_theta': 1e4, 'factor': 4.0, 'original_max_position_embeddings': 128, 'truncate': False})),
    'gemma4_text': (transformers.Gemma4TextConfig, dict(
        SIZES, num_key_value_heads=2, head_dim=24, global_head_dim=32, attention_k_eq_v=True, num_global_key_value_heads=1,
        sliding_window=24, hidden_size_per_layer_input=0, layer_types=['sliding_attention', 'full_attention'] * (SIZES['num_hidden_layers'] // 2)
        + ['full_attention'] * (SIZES['num_hidden_layers'] % 2), final_logit_softcapping=5.0, **IDS)),
    'gemma4_text, inputs for each block, shared keys and values': (transformers.Gemma4TextConfig, dict(
        dict(SIZES, num_hidden_layers=6), num_key_value_heads=2, head_dim=24, global_head_dim=32, sliding_window=24, num_kv_shared_layers=3,
        use_double_wide_mlp=True, hidden_size_per_layer_input=10,
        layer_types=[f'{kind}_attention' for kind in 'sliding full sliding full sliding full'.split()],
        final_logit_softcapping=5.0, **IDS)),
    'deepseek_v3': (transformers.DeepseekV3Config, dict(
        SIZES, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=16,
        n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, n_shared_experts=2, n_group=4, topk_group=2,
        first_k_dense_replace=1, num_nextn_predict_layers=0, **IDS, rope_parameters={
            'rope_type': 'yarn', 'rope_theta': 1e4, 'factor': 4.0, 'original_max_position_embeddings': 128, 'mscale': 1.0,
            'mscale_all_dim': 1.0})),
    'qwen3_5_text': (transformers.Qwen3_5TextConfig, dict(SIZES, num_hidden_layers=4, num_key_value_heads=2, head_dim=32, **DELTA)),
    'nemotron_h': (transformers.NemotronHConfig, dict(
        {key: value for key, value in SIZES.items() if key != 'num_hidden_layers'}, num_key_value_heads=2, head_dim=32, mamba_num_heads=4,
        mamba_head_dim=24, ssm_state_size=16, n_groups=2, layers_block_type=['linear_attention', 'mlp', 'full_attention', 'linear_attention'], **IDS)),
    'nemotron_h, experts': (transformers.NemotronHConfig, dict(
        {key: value for key, value in SIZES.items() if key != 'num_hidden_layers'}, num_key_value_heads=2, head_dim=32, mamba_num_heads=4,
        mamba_head_dim=24, ssm_state_size=16, n_groups=2, layers_block_type=['linear_attention', 'moe', 'full_attention', 'moe'],
        n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, moe_shared_expert_intermediate_size=56, n_group=4,
        topk_group=2, routed_scaling_factor=2.5, **IDS)),
    'granitemoehybrid': (transformers.GraniteMoeHybridConfig, dict(
        dict(SIZES, num_hidden_layers=4), num_key_value_heads=2, num_local_experts=5, mamba_n_heads=4, mamba_d_state=16, mamba_n_groups=2,
        shared_intermediate_size=40, layer_types=['linear_attention', 'full_attention', 'linear_attention', 'linear_attention'], **GRANITE)),
    'granitemoehybrid, rotary positions, no experts': (transformers.GraniteMoeHybridConfig, dict(
        SIZES, num_key_value_heads=2, num_local_experts=0, mamba_n_heads=4, mamba_d_state=16, shared_intermediate_size=80,
        position_embedding_type='rope', layer_types=['linear_attention', 'full_attention'] * (SIZES['num_hidden_layers'] // 2)
        + ['full_attention'] * (SIZES['num_hidden_layers'] % 2), **GRANITE)),
    'smollm3': (transformers.SmolLM3Config, dict(SIZES, num_key_value_heads=2, no_rope_layer_interval=2, **IDS)),
}
PROMPTS = ['The', 'the large house and the small garden', 'die Straße, ', 'дом 日本', 'int main(void)\n{\n    return 0;\n}\n', '42',
           'a much longer prompt that goes on and on, ' * 9]
F32 = '--training.mixed_precision_param=float32'


def make(name):
    torch.manual_seed(20)
    kind, values = MODELS[name]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))
    words = len(tokenizer)
    model = transformers.AutoModelForCausalLM.from_config(
        kind(**values, vocab_size=words, bos_token_id=None, eos_token_id=[words - 1, 3],
             **({'vocab_size_per_layer_input': words} if 'hidden_size_per_layer_input' in values else {})))
    with torch.no_grad():
        for p_name, p in model.named_parameters():
            if p.ndim > 1:
                p.normal_(0, 0.3 if 'wte' in p_name or 'wpe' in p_name or 'embed' in p_name else 0.15)
            elif p_name.endswith('weight'):
                p.uniform_(0.5, 1.5)
            else:
                p.normal_(0, 0.2)
    shutil.rmtree('hf', ignore_errors=True)
    shutil.rmtree('ckpt', ignore_errors=True)
    model.save_pretrained('hf')
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(words - 1)
    tokenizer.save_pretrained('hf')
    job.sherd('ckpt', 'import', 'hf', '-o', 'ckpt')
    return model.eval(), tokenizer


def write_lines(name, lines):
    pathlib.Path(name).write_text(''.join(json.dumps(line) + '\n' for line in lines))


def read_lines(name):
    return [json.loads(line) for line in pathlib.Path(name).read_text().splitlines()]


def reference(model, ids):
    out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
                         max_new_tokens=NEW, pad_token_id=0)[0].tolist()
    return out[:-1] if out[-1] in model.generation_config.eos_token_id and len(out) > len(ids) else out


def compare(model, prompt, ours, theirs):
    """The text up to the place where the two best words are too close to call."""
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            logits = model(torch.tensor([theirs[:i]])).logits[0, -1]
            off = (logits[b] - logits[a]).item()
            return [] if off < CLOSE else [f'{prompt[:20]!r}: token {i} is {a}, and {b} is {off:.2g} likelier']
    shorter, longer = sorted((ours, theirs), key=len)
    if len(shorter) == len(longer):
        return []
    logits = model(torch.tensor([shorter])).logits[0, -1]
    off = (logits.max() - logits[longer[len(shorter)]]).item()
    return [] if off < CLOSE else [f'{prompt[:20]!r}: {len(ours)} tokens, for transformers {len(theirs)}']


def generate(ranks, *options):
    job.sherd('generate', '--checkpoint', 'ckpt', '--tokenizer', 'hf', '--prompts', 'prompts.jsonl', '-o', 'out.jsonl', '--tokens', NEW,
              '--temperature', 0, F32, *options, ranks=ranks)
    return read_lines('out.jsonl')


@torch.no_grad()
def case_greedy(name):
    model, tokenizer = make(name)
    write_lines('prompts.jsonl', [{'prompt': prompt} for prompt in PROMPTS])
    wrong = []
    theirs = [reference(model, tokenizer(prompt)['input_ids']) for prompt in PROMPTS]
    for ranks, options in (0, []), (0, ['--batch', 3]), (3, ['--batch', 2, '--parallel', 'shard', '--comm.shared_memory=off']):
        if ranks and not job.can_launch():
            continue
        for prompt, line, wanted in zip(PROMPTS, generate(ranks, *options), theirs):
            wrong += [f'{ranks} ranks: {text}' for text in compare(model, prompt, line['ids'], wanted)]
            end = len(line['ids']) - line['tokens']
            if line['ids'] == wanted and line['text'] != tokenizer.decode(wanted[end:], skip_special_tokens=True):
                wrong.append(f'{prompt[:20]!r}: the text is {line["text"]!r}')
    return wrong


@torch.no_grad()
def case_requests(name):
    model, tokenizer = make(name)
    pairs = [(a, b) for a in PROMPTS for b in (' house', 'Haus', ' дом and more')]
    write_lines('requests.jsonl', [{'context': a, 'continuation': b} for a, b in pairs])
    job.sherd('eval', '--checkpoint', 'ckpt', '--tokenizer', 'hf', '--requests', 'requests.jsonl', '-o', 'out.jsonl', F32)
    wrong = []
    for (a, b), line in zip(pairs, read_lines('out.jsonl')):
        spaces = len(a) - len(a.rstrip())
        ids, n = tokenizer(a + b)['input_ids'], len(tokenizer(a[:len(a) - spaces])['input_ids'])
        scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        wanted = sum(scores[i - 1, ids[i]].item() for i in range(n, len(ids)))
        greedy = all(scores[i - 1].argmax().item() == ids[i] for i in range(n, len(ids)))
        if abs(line['logprob'] - wanted) > 1e-4 or line['is_greedy'] != greedy or line['tokens'] != len(ids) - n:
            wrong.append(f'{a[:20]!r} {b!r}: {line}, wanted {wanted}, {greedy}')
    return wrong


TASK = """task: sherd_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{query}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{gold}}}}"
metric_list:
  - {{metric: acc}}
  - {{metric: acc_norm}}
"""


def lm_eval(model, args):
    shutil.rmtree('results', ignore_errors=True)
    program = [str(job.TOP / 'examples/lm_eval_sherd.py')] if model == 'sherd' else ['-m', 'lm_eval']
    done = subprocess.run([sys.executable, *program, '--model', model, '--model_args', args, '--tasks', 'sherd_choices',
                           '--include_path', 'tasks', '--output_path', 'results', '--log_samples', '--device', 'cpu',
                           '--batch_size', '4'], capture_output=True, text=True)
    if done.returncode:
        raise job.Failed(done.stdout + done.stderr)
    results = json.loads(next(pathlib.Path('results').rglob('results_*.json')).read_text())['results']['sherd_choices']
    samples = sorted(read_lines(next(pathlib.Path('results').rglob('samples_*.jsonl'))), key=lambda sample: sample['doc_id'])
    return results, samples


def write_task():
    words = 'house garden tree the a small large und Haus die Straße дом 日本 return main'.split()
    r = random.Random(3)
    text = lambda n: ' '.join(r.choice(words) for _ in range(n))
    write_lines('choices.jsonl', [{'query': text(r.randint(1, 20)), 'choices': [text(r.randint(1, 6)) for _ in range(4)],
                                   'gold': r.randrange(4)} for _ in range(40)])
    pathlib.Path('tasks').mkdir(exist_ok=True)
    pathlib.Path('tasks/task.yaml').write_text(TASK.format(file=os.path.abspath('choices.jsonl')))


def values(sample):
    """An answer as (log-probability, greedy), however this version of lm_eval writes it to a file."""
    return [(float(answer[0]), str(answer[1]) == 'True') for answer in sample['filtered_resps']]


def case_lm_eval(name):
    make(name)
    write_task()
    theirs, their_samples = lm_eval('hf', 'pretrained=hf,dtype=float32')
    ours, our_samples = lm_eval('sherd', f'checkpoint=ckpt,tokenizer=hf,precision=float32,sherd={os.environ["SHERD"]}')
    job.sherd('eval', '--checkpoint', 'ckpt', '--tokenizer', 'hf', '--choices', 'choices.jsonl', '-o', 'samples.jsonl', F32)
    alone = read_lines('samples.jsonl')
    wrong = [f'{key}: {ours[key]}, for transformers {theirs[key]}' for key in ('acc,none', 'acc_norm,none') if ours[key] != theirs[key]]
    for key in 'acc', 'acc_norm':
        mean = sum(sample[key] for sample in alone) / len(alone)
        wrong += [f'sherd eval --choices: {key} {mean}'] if abs(mean - theirs[f'{key},none']) > 1e-9 else []
    for a, b, c in zip(our_samples, their_samples, alone):
        if any(abs(x[0] - y[0]) > 1e-4 or abs(z[0] - y[0]) > 1e-4 for x, y, z in zip(values(a), values(b), values(c))):
            wrong.append(f'document {a["doc_id"]}: {values(a)}, {values(c)}, for transformers {values(b)}')
    return wrong


ROLLING = ('a text of which the model reads some hundred words at a time, die Straße und дом 日本, ' * 30, 'short', ' ', 'дом')


def case_rolling(name):
    """Windows and likelihoods of a text longer than the model's context; with a tokenizer that puts nothing before a
    text."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    model, tokenizer = make(name)
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, max_length=128).loglikelihood_rolling(
        [Instance('loglikelihood_rolling', {}, (text,), i) for i, text in enumerate(ROLLING)], disable_tqdm=True)
    wrong = []
    for text, wanted in zip(ROLLING, theirs):
        pathlib.Path('rolling.txt').write_text(text)
        for ranks in (0, 2) if job.can_launch() else (0,):
            said = job.sherd('eval', '--checkpoint', 'ckpt', '--tokenizer', 'hf', '--text', 'rolling.txt', '--context', 128, F32, ranks=ranks)
            found = float(said.split()[1])
            wrong += [] if abs(found - wanted) <= 1e-5 * abs(wanted) + 1e-4 else [f'{ranks} ranks, {text[:20]!r}: {found}, for lm_eval {wanted}']
    return wrong


def case_adapter_words():
    """Arguments of lm_eval become options of sherd."""
    loader = importlib.util.spec_from_file_location('lm_eval_sherd', job.TOP / 'examples/lm_eval_sherd.py')
    adapter = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(adapter)
    wrong = []
    for given, wanted in (({'batch_size': 1}, []), ({'batch_size': 'auto'}, []), ({'batch_size': 4}, ['--batch', '4']),
                          ({'batch': 3, 'batch_size': 1}, ['--batch', '3']), ({'batch': 1}, ['--batch', '1'])):
        found = adapter.Sherd('c', **given).options[2:]
        wrong += [] if found == wanted else [f'{given}: {found}']
    asked = []
    model = adapter.Sherd('c')
    model.ask = lambda *words: asked.append(words) or [{'text': 'one two three'}]
    for given, temperature, text in (({}, '0', 'one two three'), ({'do_sample': True}, '1.0', 'one two three'),
                                     ({'do_sample': True, 'temperature': 0.5, 'until': ['three', 'two']}, '0.5', 'one '),
                                     ({'temperature': 0.5, 'until': ' two'}, '0', 'one')):
        found = model.generate(['a'], **given)
        options = asked[-1][3:]
        if found != [text] or options[options.index('--temperature') + 1] != temperature:
            wrong.append(f'{given}: {found}, {options}')
    try:
        model.generate(['a'], num_beams=3)
        wrong.append('beams are taken')
    except ValueError:
        pass
    return wrong


if __name__ == '__main__':
    torch.set_num_threads(1)
    tests = [(f'{name}: greedy', case_greedy, name) for name in MODELS]
    tests += [(f'{name}: log-probabilities', case_requests, name)
              for name in ('llama', 'mistral, a short window', 'gpt2')]
    if importlib.util.find_spec('lm_eval'):
        tests += [(f'{name}: lm_eval', case_lm_eval, name) for name in ('llama', 'gpt2')]
        tests += [(f'{name}: a rolling text', case_rolling, name) for name in ('llama', 'gpt2')]
        tests.append(('words of lm_eval', case_adapter_words))
    sys.exit(job.run_cases(tests))
