#!/usr/bin/env python3
"""Conversations against transformers: ids and masks of apply_chat_template, template by template, on random conversations.
Prints TAP. Needs the virtual environment that tests/hf/venv makes; SHERD_HF_VENV names it.

For these conversations the Jinja texts render what the models' own texts render; the parts that a model learns are in
`generation` blocks. SHERD_CHAT_TEXTS=FOLDER adds official texts, each called NAME.jinja after its template.
"""
import json
import os
import pathlib
import random
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

job.enter_venv()
import tokenizers
import transformers

COUNT = 2000 if os.environ.get('SHERD_LONG') else 200
SPECIALS = {
    'chatml': ['<|im_start|>', '<|im_end|>'],
    'qwen2.5': ['<|im_start|>', '<|im_end|>'],
    'qwen3': ['<|im_start|>', '<|im_end|>'],
    'llama3.1': ['<|begin_of_text|>', '<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>'],
    'llama3': ['<|begin_of_text|>', '<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>'],
    'llama2': ['<s>', '</s>'],
    'mistral-v3': ['<s>', '</s>', '[INST]', '[/INST]'],
    'mistral-v7': ['<s>', '</s>', '[INST]', '[/INST]', '[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]'],
    'mistral-v7-tekken': ['<s>', '</s>', '[INST]', '[/INST]', '[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]'],
    'gemma': ['<bos>', '<start_of_turn>', '<end_of_turn>'],
    'phi3': ['<|system|>', '<|user|>', '<|assistant|>', '<|end|>'],
}
# The values of bos_token and eos_token in official texts.
TOKENS = {'llama3': {'bos_token': '<|begin_of_text|>'}, 'llama3.1': {'bos_token': '<|begin_of_text|>'},
          'llama2': {'bos_token': '<s>', 'eos_token': '</s>'},
          'gemma': {'bos_token': '<bos>'}}
LEARN = '{%% generation %%}%s{%% endgeneration %%}'


def turns(learn, assistant, other, begin=''):
    """A conversation, one message after the other."""
    return ('%s{%% for m in messages %%}{%% if m.role == "assistant" %%}' % begin + assistant % (LEARN % learn) + '{% else %}' +
            other + '{% endif %}{% endfor %}')


def inst(space, begin, content='m.content'):
    return turns('{{ m.content }}</s>', space + '%s', '{% if m.role == "system" %}[SYSTEM_PROMPT]' + space +
                 '{{ m.content }}[/SYSTEM_PROMPT]{% else %}[INST]' + space + '{{ m.content }}[/INST]{% endif %}', begin)


JINJA = {
    'chatml': turns('{{ m.content }}<|im_end|>', '<|im_start|>assistant\n%s{{ "\\n" }}',
                    '<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{{ "\\n" }}'),
    'llama3': turns('{{ m.content | trim }}<|eot_id|>', '<|start_header_id|>assistant<|end_header_id|>{{ "\\n\\n" }}%s',
                    '<|start_header_id|>{{ m.role }}<|end_header_id|>{{ "\\n\\n" }}{{ m.content | trim }}<|eot_id|>',
                    '<|begin_of_text|>'),
    'llama3.1': turns('{{ m.content | trim }}<|eot_id|>', '<|start_header_id|>assistant<|end_header_id|>{{ "\\n\\n" }}%s',
                      '<|start_header_id|>{{ m.role }}<|end_header_id|>{{ "\\n\\n" + (dates if m.role == "system" else "") }}'
                      '{{ m.content | trim }}<|eot_id|>',
                      '<|begin_of_text|>{% set dates = "Cutting Knowledge Date: December 2023\\nToday Date: 26 Jul 2024\\n\\n" %}'
                      '{% if messages[0].role != "system" %}<|start_header_id|>system<|end_header_id|>{{ "\\n\\n" + dates }}'
                      '<|eot_id|>{% endif %}'),
    'llama2': '{% if messages[0].role == "system" %}{% set rest = messages[1:] %}{% set system = messages[0].content %}{% else %}'
              '{% set rest = messages %}{% set system = none %}{% endif %}{% for m in rest %}'
              '{% if loop.index0 == 0 and system is not none %}'
              '{% set content = "<<SYS>>\\n" + system + "\\n<</SYS>>\\n\\n" + m.content %}{% else %}{% set content = m.content %}'
              '{% endif %}{% if m.role == "user" %}{{ "<s>[INST] " + content.strip() + " [/INST]" }}{% else %}{{ " " }}' +
              LEARN % '{{ content.strip() + " </s>" }}' + '{% endif %}{% endfor %}',
    'mistral-v3': turns('{{ m.content | trim }}</s>', '{{ " " }}%s', '[INST] {{ m.content }}[/INST]', '<s>'),
    'mistral-v7': inst('{{ " " }}', '<s>'),
    'mistral-v7-tekken': inst('', '<s>'),
    'gemma': '<bos>{% if messages[0].role == "system" %}{% set prefix = messages[0].content + "\\n\\n" %}'
             '{% set rest = messages[1:] %}{% else %}{% set prefix = "" %}{% set rest = messages %}{% endif %}'
             '{% for m in rest %}{% if m.role == "assistant" %}<start_of_turn>model{{ "\\n" }}' +
             LEARN % '{{ m.content | trim }}<end_of_turn>' + '{{ "\\n" }}{% else %}<start_of_turn>user{{ "\\n" }}'
             '{{ prefix if loop.first else "" }}{{ m.content | trim }}<end_of_turn>{{ "\\n" }}{% endif %}{% endfor %}',
    'phi3': turns('{{ m.content }}<|end|>', '<|assistant|>\n%s{{ "\\n" }}',
                  '<|{{ m.role }}|>\n{{ m.content }}<|end|>{{ "\\n" }}'),
}
JINJA['qwen2.5'] = ('{% if messages[0].role != "system" %}<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a '
                    'helpful assistant.<|im_end|>{{ "\\n" }}{% endif %}' + JINJA['chatml'])
JINJA['qwen3'] = JINJA['chatml'].replace('{{ m.content }}<|im_end|>{% endgeneration', '{% if loop.last %}{{ "<think>\\n\\n</think>\\n'
                                         '\\n" + m.content.lstrip("\\n") }}{% else %}{{ m.content }}{% endif %}<|im_end|>'
                                         '{% endgeneration')
# The text that templates append to a conversation to be answered (add_generation_prompt), if any.
ANSWER = {'chatml': '<|im_start|>assistant\n', 'qwen2.5': '<|im_start|>assistant\n', 'qwen3': '<|im_start|>assistant\n',
          'llama3.1': '<|start_header_id|>assistant<|end_header_id|>\n\n', 'llama3': '<|start_header_id|>assistant<|end_header_id|>\n\n',
          'gemma': '<start_of_turn>model\n', 'phi3': '<|assistant|>\n'}
MODEL = {'model.n_layers': 1, 'model.dim': 16, 'model.n_heads': 1, 'model.ffn_dim': 16, 'model.max_seq_len': 1024,
         'model.vocab_size': 800, 'training.dataset_path': 'out.bin', 'training.steps': 1, 'training.seq_len': 256,
         'training.global_batch_size': 1, 'training.local_batch_size': 1, 'data.excess_length_strategy': 'truncate'}


def words(draw, least):
    parts = [draw.choice(['hi', ' you', '\n', '\n\n', ' ', '  ', 'é', '北京', '1', '23', "'s", 'the', 'x', '[', '<', '😀', 'user'])
             for _ in range(draw.randrange(least, 12))]
    text = ''.join(parts)
    return text if text.strip() or not least else 'ok'


def conversation(draw, name):
    messages = []
    if name != 'mistral-v3' and draw.random() < 0.4:
        messages.append({'role': 'system', 'content': words(draw, name == 'phi3')})
    for _ in range(draw.randrange(1, 4)):
        messages += [{'role': 'user', 'content': words(draw, 0)}, {'role': 'assistant', 'content': words(draw, 1)}]
    return messages


def make_tokenizer(name, kind, texts):
    """Byte level like Llama 3 and Qwen, or with marks for spaces like Llama 2."""
    trainer = dict(vocab_size=700, special_tokens=[tokenizers.AddedToken(s, special=True, normalized=False) for s in SPECIALS[name]])
    if kind == 'bytes':
        t = tokenizers.Tokenizer(tokenizers.models.BPE())
        t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
        t.decoder = tokenizers.decoders.ByteLevel()
        t.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), **trainer))
    else:
        t = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token='?', byte_fallback=False, fuse_unk=True))
        t.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Prepend('▁'),
                                                        tokenizers.normalizers.Replace(' ', '▁')])
        trainer['special_tokens'] = ['?', *trainer['special_tokens']]
        t.decoder = tokenizers.decoders.Replace('▁', ' ')
        t.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(**trainer))
    return t


def documents(path):
    """Ids and mask of each document, read as doc/data.md says."""
    data = path.read_bytes()
    _, _, size, flags, _, count, offsets, tokens, mask = struct.unpack('<4i5q', data[:56])
    assert size == 2 and flags == 1
    bounds = struct.unpack(f'<{count + 1}q', data[offsets:offsets + 8 * (count + 1)])
    for a, b in zip(bounds, bounds[1:]):
        yield (list(struct.unpack(f'<{b - a}H', data[tokens + 2 * a:tokens + 2 * b])),
               [data[mask + i // 8] >> i % 8 & 1 for i in range(a, b)])


def case(name, kind):
    draw = random.Random(f'{name} {kind}')
    chats = [conversation(draw, name) for _ in range(COUNT)]
    texts = [m['content'] for c in chats for m in c]
    folder = job.prepare(f'{name}-{kind}', {})
    tokenizer = make_tokenizer(name, kind, texts)
    tokenizer.save(str(folder / 'tokenizer.json'))
    (folder / 'chats.jsonl').write_text(''.join(json.dumps({'messages': c}) + '\n' for c in chats))
    job.sherd('tokenize', 'chats.jsonl', '-o', 'out.bin', '--tokenizer', '.', '--format', 'messages', '--chat-template', name,
              '--threads', 2, folder=folder)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    wrong = []
    for chat, (ids, mask) in zip(chats, documents(folder / 'out.bin'), strict=True):
        right = theirs.apply_chat_template(chat, chat_template=JINJA[name], tokenize=True, return_dict=True,
                                           return_assistant_tokens_mask=True)
        if ids != right['input_ids'] or mask != right['assistant_masks']:
            wrong.append(f'{chat}: {ids} {mask}, expected {right["input_ids"]} {right["assistant_masks"]}')
    return wrong[:3] + answered(name, folder, theirs, chats[:50])


def answered(name, folder, theirs, chats):
    """The prompt of a model that must answer: the last answer is left out."""
    chats = [chat[:-1] for chat in chats]
    (folder / 'asked.jsonl').write_text(''.join(json.dumps({'messages': c}) + '\n' for c in chats))
    (folder / 'c.yaml').write_text(job.yaml(MODEL))
    job.sherd('train', 'c.yaml', folder=folder)
    job.sherd('generate', '--checkpoint', 'outputs', '--tokenizer', '.', '--messages', 'asked.jsonl', '--chat-template', name,
              '-o', 'answers.jsonl', '--tokens', 1, folder=folder)
    wrong = []
    for chat, line in zip(chats, map(json.loads, (folder / 'answers.jsonl').read_text().splitlines()), strict=True):
        text = theirs.apply_chat_template(chat, chat_template=JINJA[name], tokenize=False) + ANSWER.get(name, '')
        right = theirs(text, add_special_tokens=False)['input_ids']
        ids = line['ids'][:len(line['ids']) - line['tokens']]
        wrong += [] if ids == right else [f'{chat}: asked with {ids}, expected {right}']
    return wrong[:3]


def official(name, path):
    """The text in a model's folder: --chat-template auto knows it, and transformers renders with it what Sherd writes;
    a folder that names another bos_token is not taken for that model's."""
    draw, text = random.Random(name), path.read_text()
    chats = [conversation(draw, name) for _ in range(COUNT)]
    folder = job.prepare(f'official-{name}', {})
    tokenizer = make_tokenizer(name, 'bytes', [m['content'] for c in chats for m in c])
    tokenizer.save(str(folder / 'tokenizer.json'))
    (folder / 'chats.jsonl').write_text(''.join(json.dumps({'messages': c}) + '\n' for c in chats))
    (folder / 'tokenizer_config.json').write_text(json.dumps({'chat_template': text, **TOKENS.get(name, {})}))
    words = ['tokenize', 'chats.jsonl', '-o', 'out.bin', '--tokenizer', '.', '--format', 'messages', '--chat-template', 'auto']
    job.sherd(*words, folder=folder)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **TOKENS.get(name, {}))
    wrong = [f'{chat}: {ids}' for chat, (ids, _) in zip(chats, documents(folder / 'out.bin'), strict=True)
             if ids != theirs.apply_chat_template(chat, chat_template=text, tokenize=True, return_dict=True)['input_ids']]
    if name in TOKENS:
        (folder / 'tokenizer_config.json').write_text(json.dumps({'chat_template': text, 'bos_token': '<other>'}))
        try:
            job.sherd(*words, folder=folder)
            wrong.append('a folder with another bos_token was taken')
        except job.Failed as failed:
            wrong += [] if 'not its bos_token' in str(failed) else [str(failed)]
    return wrong[:3]


if __name__ == '__main__':
    texts = sorted(pathlib.Path(os.environ['SHERD_CHAT_TEXTS']).absolute().glob('*.jinja')) if 'SHERD_CHAT_TEXTS' in os.environ else []
    sys.exit(job.run_cases([(f'{name}, {kind}', case, name, kind) for name in JINJA for kind in ('bytes', 'marks')]
                           + [(f'the official text of {path.stem}', official, path.stem, path) for path in texts]))
