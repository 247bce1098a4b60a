#!/usr/bin/env python3
"""Make tests/golden/tokenizer: small tokenizers of each kind, and the ids that the library `tokenizers` gives hard
texts.

   python3 tests/gold/make_tokenizers.py tests/golden/tokenizer        (needs: pip install tokenizers)

They are trained on sentences that this script makes up. Each KIND.json has a KIND.ids.json: a list of [text, ids, text
decoded with special tokens, text decoded without them], where null stands for the text itself; and a KIND.added.json:
its "added_tokens" follow the tokenizer's own, no tokens are put before or after a text, and "rows" are [text, ids].
tests/unit/test_tokenizer.c reads them.
"""
import json
import pathlib
import random
import sys

import tokenizer_kinds
from tokenizers import Tokenizer

WORDS = ('the a of and to in is was for on with that train model token word number small large line file river house garden '
         'wind morning der die das und nicht eine Haus Garten le la les des une maison jardin el los una casa rio que '
         'он она дом река сад и не это 日本 東京 時間 言語 家 庭 川 が は を हिन्दी भाषा नदी घर और है بيت نهر لغة من في').split()
CODE = ['int main(void)\n{\n\treturn 0;\n}\n', 'for (int i = 0; i < n; i++)\n    x[i] = y[i] * 2;\n', 'def f(a, b):\n    return a + b\n']


def sentences(count):
    state = random.Random(7)
    for _ in range(count):
        words = [state.choice(WORDS) for _ in range(state.randrange(3, 12))]
        if state.randrange(4) == 0:
            words.append(str(state.randrange(100000)))
        yield state.choice(['', '', '', '\n']) + ' '.join(words).capitalize() + state.choice(['.', '!', ', ', '?\n', '...\n\n'])
    yield from CODE * 20


ADDED_TEXTS = 60


def write_rows(path, begin, rows, end):
    with open(path, 'w', encoding='ascii') as out:
        out.write(begin + ',\n'.join(json.dumps(row, separators=(',', ':')) for row in rows) + end)


def write_added(folder, kind):
    before = json.loads((folder / f'{kind}.json').read_text())
    file, texts = tokenizer_kinds.add_tokens(before, random.Random(f'{kind} golden'), ADDED_TEXTS)
    t = Tokenizer.from_str(json.dumps(file))
    added = json.dumps(file['added_tokens'][len(before['added_tokens']):], separators=(',', ':'))
    write_rows(folder / f'{kind}.added.json', f'{{"added_tokens":{added},\n"rows":[\n', ([text, t.encode(text).ids] for text in texts), '\n]}\n')


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    state = random.Random(11)
    texts = tokenizer_kinds.HARD + [tokenizer_kinds.random_text(state) for _ in range(40)] + list(sentences(12))
    for kind in tokenizer_kinds.KINDS:
        tokenizer_kinds.train(kind, sentences(3000), 700 if kind == 'llama2' else 520).save(str(folder / f'{kind}.json'), pretty=False)
        t = Tokenizer.from_file(str(folder / f'{kind}.json'))
        rows = []
        for text in texts:
            ids = t.encode(text).ids
            decoded = [t.decode(ids, skip_special_tokens=False), t.decode(ids)]
            rows.append([text, ids] + [None if back == text else back for back in decoded])
        write_rows(folder / f'{kind}.ids.json', '[\n', rows, '\n]\n')
        write_added(folder, kind)


if __name__ == '__main__':
    main()
