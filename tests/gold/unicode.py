#!/usr/bin/env python3
"""Make src/text/base/unicode.c: the characters that `tokenizers` takes for letters, numbers, words and composed characters.

   python3 tests/gold/unicode.py > src/text/base/unicode.c        (needs: pip install tokenizers)

Ids of a text depend on the version of Unicode that the tokenizer was trained with, and no library on the machine has
exactly that version. So each table is measured from tokenizers itself, one code point after the other. Parts of
tokenizers differ in age: the regular expressions of splits, is_numeric of Digits, \\w next to an added token, and the
normal forms. Names of categories, combining classes and decompositions, which never change once assigned, come from
Python's unicodedata; the script keeps those that tokenizers knows.
"""
import itertools
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CATEGORIES = 'Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co'.split()
SCRIPTS = ['Han', 'Hiragana', 'Katakana', 'Hangul']
CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
STEP = 4096


def members_of(pattern):
    """The characters that are left after removing all that do not match."""
    splitter = pre_tokenizers.Split(Regex(pattern), 'removed', invert=True)
    return {ord(c) for i in range(0, len(CODES), STEP)
            for piece, _ in splitter.pre_tokenize_str(''.join(map(chr, CODES[i:i + STEP]))) for c in piece}


def numeric():
    """Digits isolates each member; a non-member stays together with its neighbours, so a letter is put in between."""
    splitter, members = pre_tokenizers.Digits(individual_digits=True), set()
    for i in range(0, len(CODES), STEP):
        text = ''.join('a' + chr(c) for c in CODES[i:i + STEP])
        for piece, (begin, end) in splitter.pre_tokenize_str(text):
            if end - begin == 1 and begin % 2 == 1:
                members.add(ord(piece))
    return members


def words():
    """An added token that is a single word is not found after a character of a word."""
    tokenizer = Tokenizer(models.BPE(vocab={}, merges=[]))
    tokenizer.add_tokens([AddedToken('Q', single_word=True, normalized=False)])
    members = set()
    for i in range(0, len(CODES), 128):
        chunk = CODES[i:i + 128]
        text = ''.join(chr(c) + 'Q ' for c in chunk)
        found = {begin // 3 for begin, _ in tokenizer.encode(text).offsets}
        members.update(c for k, c in enumerate(chunk) if k not in found)
    return members


def ranges(members):
    for _, group in itertools.groupby(enumerate(sorted(members)), lambda pair: pair[1] - pair[0]):
        group = list(group)
        yield group[0][1], group[-1][1]


def category_table():
    of = [0] * 0x110000
    for number, name in enumerate(CATEGORIES):
        if number:
            for c in members_of(r'\p{%s}' % name):
                of[c] = number
    return [c << 5 | of[c] for c in range(0x110000) if c == 0 or of[c] != of[c - 1]]


nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str


def classes():
    """(first, last, class): a mark that tokenizers moves after or before a mark of another class."""
    of = {}
    for c in CODES:
        known = unicodedata.combining(chr(c))
        if known:
            low = 'a\u0334' + chr(c) if known > 1 else 'a' + chr(c) + '\u0301'      # in order already
            other = 'a' + chr(c) + '\u0334' if known > 1 else 'a\u0301' + chr(c)
            if nfd(other) == low:
                of[c] = known
    rows = []
    for c in sorted(of):
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == of[c]:
            rows[-1][1] = c
        else:
            rows.append([c, c, of[c]])
    return rows


def mapping(c):
    """One step of the canonical decomposition, into one or two code points; Hangul is arithmetic."""
    text = unicodedata.decomposition(chr(c))
    if not text or text.startswith('<') or 0xAC00 <= c <= 0xD7A3 or nfd(chr(c)) == chr(c):
        return None
    parts = [int(word, 16) for word in text.split()]
    return parts if len(parts) == 2 else parts + [0]


def print_array(out, kind, name, values, each):
    out.write(f'\nconst {kind} {name}[] = {{\n')
    line = '   '
    for value in values:
        text = ' ' + each(value) + ','
        if len(line) + len(text) > 118:
            out.write(line + '\n')
            line = '   '
        line += text
    out.write(line + '\n};\n')
    out.write(f'const int {name}_n = sizeof {name} / sizeof {name}[0];\n')


def main():
    out = sys.stdout
    out.write(f'/* Made by tests/gold/unicode.py from tokenizers {tokenizers.__version__}; do not edit. */\n/* clang-format off */\n')
    out.write('#include "src/text/base/unicode.h"\n')
    print_array(out, 'uint32_t', 'sh_unicode_category', category_table(), lambda v: f'{v:#x}')

    def pair(row):
        return f'{{{row[0]:#x}, {row[1]:#x}}}'
    for script in SCRIPTS:
        print_array(out, 'struct sh_range', f'sh_unicode_{script.lower()}', list(ranges(members_of(r'\p{%s}' % script))), pair)
    print_array(out, 'struct sh_range', 'sh_unicode_numeric', list(ranges(numeric())), pair)
    print_array(out, 'struct sh_range', 'sh_unicode_word', list(ranges(words())), pair)
    print_array(out, 'struct sh_combining', 'sh_unicode_combining', classes(), lambda v: f'{{{v[0]:#x}, {v[1]:#x}, {v[2]}}}')
    parts = [(c, *m) for c in CODES for m in [mapping(c)] if m]
    print_array(out, 'struct sh_decomposed', 'sh_unicode_decomposed', parts, lambda v: f'{{{v[0]:#x}, {v[1]:#x}, {v[2]:#x}}}')
    composed = sorted((a, b, c) for c, a, b in parts if b and nfc(chr(a) + chr(b)) == chr(c))
    print_array(out, 'struct sh_composed', 'sh_unicode_composed', composed, lambda v: f'{{{v[0]:#x}, {v[1]:#x}, {v[2]:#x}}}')


if __name__ == '__main__':
    main()
