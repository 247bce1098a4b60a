"""Tokenizers of the four kinds that most models use, trained on the spot with the library `tokenizers`, and hard
texts."""
import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace('{1,3}', '')


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t, ['<|endoftext|>'], pre_tokenizers.ByteLevel.alphabet()


def llama3():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), 'isolated', False),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    return t, ['<|begin_of_text|>', '<|end_of_text|>', '<|eot_id|>'], pre_tokenizers.ByteLevel.alphabet()


def qwen():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN), 'isolated', False),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t, ['<|endoftext|>', '<|im_start|>', '<|im_end|>'], pre_tokenizers.ByteLevel.alphabet()


def llama2():
    t = Tokenizer(models.BPE(unk_token='<unk>', fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend('\u2581'), normalizers.Replace(' ', '\u2581')])
    t.decoder = decoders.Sequence([decoders.Replace('\u2581', ' '), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(' ', 1, 0)])
    return t, ['<unk>', '<s>', '</s>'] + [f'<0x{b:02X}>' for b in range(256)], []


def template(t, before):
    """The post-processor that puts one special token before a text."""
    return processors.TemplateProcessing(single=[before, '$A'], pair=[before, '$A', '$B'],
                                         special_tokens=[(before, t.token_to_id(before))])


def train(kind, lines, words):
    """A tokenizer of a kind with about `words` words."""
    t, special, alphabet = {'gpt2': gpt2, 'llama3': llama3, 'qwen': qwen, 'llama2': llama2}[kind]()
    if kind == 'llama2':            # trained on words, like SentencePiece, and used without a pre-tokenizer
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='never')
    t.train_from_iterator((line.replace('\0', '') for line in lines), trainers.BpeTrainer(vocab_size=words, special_tokens=special, initial_alphabet=alphabet,
                                                     show_progress=False))
    if kind == 'llama2':
        t.pre_tokenizer = None
        t.post_processor = template(t, '<s>')
    if kind == 'llama3':
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(t, '<|begin_of_text|>')])
    if kind == 'qwen':              # a token of every property
        t.add_tokens([AddedToken('<tool_call>', normalized=False), AddedToken('caf\u00e9', single_word=True),
                      AddedToken('<l>', lstrip=True, normalized=False), AddedToken('<r>', rstrip=True, normalized=False),
                      AddedToken('<|im', normalized=False)])
    return t


KINDS = ['gpt2', 'llama3', 'qwen', 'llama2']

# One line each: places where a piece may be cut, characters that compose, texts that are not a word of anything.
HARD = [
    '', ' ', '  ', '\n', '\r\n\r\n \t x', "I'll don't WE'VE it'S 'ſ 'K x'd'm", "  two  spaces   ", 'a\u00a0b\u2003c\u3000d\u180ee\u200bf',
    '1234567 ½ ٣٤٥ Ⅷ 一二三 1,000.00', 'naïve café cafe\u0301 caf\u00e9s un café', 'A\u030a\u0323 e\u0301\u0327 \u1e9b\u0323 \u0344 \u2126 \u212b',
    '\u1100\u1161\u11a8 \uac00\u11a8 \u1112\u1161\u11ab\u1100\u1173\u11af', 'हिन्दी में लिखा', 'ภาษาไทยไม่มีช่องว่าง', 'עִבְרִית עברית',
    'العَرَبِيَّة', '日本語のテキスト、漢字かな交じり文。', '한국어 텍스트', 'Привет, мир!', 'emoji 👩‍👩‍👧‍👦 🇺🇳 👍🏽', '\u11935\U00011930 \U00011935\U00011930',
    'x' * 70, 'ab' * 200, '-' * 300, '=' * 65 + '\n' + '#' * 64, '\t\tif (a[i] != 0) {\n\t\t\treturn -1;\n\t\t}\n\n\n',
    'http://example.org/?q=%20&x=1#a', '<|endoftext|>', 'a<|im_start|>b<|im_end|>c <|im_x', 'a  <l>  b  <r>  c<tool_call>d  <l><r>  <r>',
    '<s> </s><unk><0x41>', '\u2581\u2581a \u2581', 'a\u0000b\u0001\u007f', '\ufffe\uffff\U0010ffff\ue000\U000e0001', '\u0378\U0001fae8 unassigned',
    'ǅ ǆ ß ﬁ ﬀ ŉ', '\u0301start', 'end \u0301', 'z' * 3 + '\u0323\u0307' * 40, '\u0041\u0327\u0301\u0302',
]


def random_text(random_state: random.Random):
    """Text made of runs: of one script, of marks, of white space, of anything."""
    runs = []
    for _ in range(random_state.randrange(1, 12)):
        low, high = random_state.choice([
            (0x20, 0x7f), (0x20, 0x7f), (0x61, 0x7b), (0x61, 0x7b), (0x30, 0x3a), (0xa0, 0x250), (0x300, 0x370), (0x370, 0x600), (0x600, 0xe80),
            (0x1100, 0x1200), (0x1e00, 0x2000), (0x2000, 0x2070), (0x2100, 0x2200), (0x3040, 0x3100), (0x4e00, 0x9fff), (0xac00, 0xd7a4), (0xf900, 0xfb50),
            (0x10000, 0x14000), (0x1d100, 0x1d200), (0x1f300, 0x1fa00), (0, 0x110000)])
        run = ''.join(chr(c) for c in (random_state.randrange(low, high) for _ in range(random_state.randrange(1, 9)))
                      if not 0xd800 <= c < 0xe000)
        runs.append(run)
        runs.append(random_state.choice(['', '', '', ' ', '  ', '\n', '\r\n', ' \n ', '\t', "'s", "'LL", '\u0301', '\u0323\u0301', '\u2581', '<|endoftext|>',
                                         '<|im_start|>', '<r> ', ' <l>', '<s>', 'café', 'cafe\u0301', '\u3000', '\u00a0', '7', '½']))
    return ''.join(runs)


ADDED = ['<x>', 'foo', 'fo', ' bar', 'é', '▁z', 'x y', '\n\n', 'ab', '1', 'İ', '<s', 'e\u0301', '的', 'hello', '.']
BESIDE = [' ', '  ', '\n', '\t', 'a', 'b', '\u00a0', '\u0301', '😀', 'foo', 'x', '_', '-', '<', '▁', 'ß', '\r\n', '\u3000', '12', "'s"]


def judged(tokenizer, text):
    """tokenizers panics if a token ends before the white space that the previous token has taken."""
    try:
        return tokenizer.encode(text) is not None
    except BaseException:  # a panic is one
        return False


def add_tokens(file, draw, count):
    """The tokenizer of a file with some added tokens of any properties, and texts in which they stand beside all kinds
    of characters."""
    words = {**file['model']['vocab'], **{token['content']: token['id'] for token in file['added_tokens']}}
    flags = 'single_word', 'lstrip', 'rstrip', 'normalized', 'special'
    added = list(file['added_tokens'])
    for content in draw.sample(ADDED, 8):
        if content not in words:
            words[content] = max(words.values()) + 1
            added.append({'id': words[content], 'content': content, **{f: draw.random() < 0.4 for f in flags}})
    pieces = [token['content'] for token in added] + BESIDE
    texts = [''.join(draw.choice(pieces) for _ in range(draw.randrange(1, 14))) for _ in range(count)]
    file = {**file, 'added_tokens': added, 'post_processor': None}
    theirs = Tokenizer.from_str(json.dumps(file))
    return file, [text for text in texts if judged(theirs, text)]
