#!/usr/bin/env python3
"""Ids and speed of `sherd tokenize` against the library `tokenizers`, on texts from this machine and random texts.
Prints TAP.

Ids must be equal. Speed is processor time on one thread of each, alternating in one run; it must be 8 times that of
tokenizers. Two threads must not take more than 1/0.9 of the time of one. Both figures are always printed, and judged if
SHERD_LONG is set and the machine is idle: other programs that share its caches change them.

   SHERD_LONG=1    all texts up to 100 MB and 250,000 random ones per kind; otherwise 2 MB and 2,000
   SHERD_PYTHON    a python3 that has `tokenizers`
"""
import glob
import gzip
import json
import os
import pathlib
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time

os.environ['TOKENIZERS_PARALLELISM'] = 'false'
os.environ['RAYON_NUM_THREADS'] = '1'

other = os.environ.get('SHERD_PYTHON')
if other and not os.environ.get('SHERD_PYTHON_IS'):
    os.execve(other, [other] + sys.argv, {**os.environ, 'SHERD_PYTHON_IS': '1'})
try:
    import tokenizers
except ImportError:
    print('1..0 # SKIP no module tokenizers (pip install tokenizers)')
    sys.exit(0)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tokenizer_kinds

LONG = bool(os.environ.get('SHERD_LONG'))
IDLE = os.getloadavg()[0] < 0.5
SHERD = os.environ.get('SHERD', './sherd')
BYTES, RANDOM, WORDS = (100_000_000, 250_000, 32000) if LONG else (2_000_000, 2_000, 4000)
ADDED_SETS, ADDED_TEXTS = (100 if LONG else 3), 500  # per kind; per set
TIMES, THREADS_LOSS = 8, 1 / 0.9
HEADER = 1024
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / 'golden/tokenizer'
# Text in many languages comes with Debian's debian-handbook and manpages-{de,es,fr,it,ja,pl,ru,zh,...}.
PLACES = ['/usr/share/doc/debian-handbook/html/**/*.html', '/usr/share/man/??/**/*.gz', '/usr/share/man/??_??/**/*.gz',
          '/usr/include/**/*.h', os.path.dirname(os.__file__) + '/**/*.py', '/usr/share/**/*.txt', '/usr/share/perl/**/*.p[lm]']


def read(path):
    try:
        with (gzip.open if path.endswith('.gz') else open)(path, 'rb') as f:
            return f.read().decode()
    except (OSError, UnicodeDecodeError, EOFError, gzip.BadGzipFile):
        return ''


def texts():
    """Documents found on the machine, of at most 64 KiB, in a mixed order."""
    found, total = [], 0
    paths = sorted(path for place in PLACES for path in glob.glob(place, recursive=True) if os.path.isfile(path))
    random.Random(5).shuffle(paths)
    for path in paths:
        text = read(path)
        found += [text[i:i + 65536] for i in range(0, len(text), 65536)]
        total += len(text.encode())
        if total >= BYTES:
            break
    return found, total


def ids_of(path):
    data = path.read_bytes()
    magic, = struct.unpack_from('<i', data)
    return memoryview(data)[HEADER:].cast('H' if magic == 20240520 else 'I')


def sherd(folder, docs, file, threads):
    """(ids, processor seconds)."""
    lines = folder / 'docs.jsonl'
    with open(lines, 'w', encoding='utf-8') as out:
        for doc in docs:
            out.write(json.dumps({'text': doc}, ensure_ascii=False) + '\n')
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([SHERD, 'tokenize', str(lines), '--tokenizer', str(file), '--no-eos', '--threads', str(threads), '-o',
                    str(folder / 'ids.bin')], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ids_of(folder / 'ids.bin'), after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def compare(kind, docs, ids, file):
    """What is wrong, '' if nothing is, and the processor seconds of tokenizers alone."""
    theirs, at, seconds = tokenizers.Tokenizer.from_file(str(file)), 0, 0
    for i in range(0, len(docs), 256):
        began = time.process_time()
        encodings = theirs.encode_batch_fast(docs[i:i + 256])
        seconds += time.process_time() - began
        for doc, encoding in zip(docs[i:i + 256], encodings):
            want = encoding.ids
            if ids[at:at + len(want)].tolist() != want:
                return f'{kind}: other ids: {doc[:80]!r}', seconds
            at += len(want)
    return ('' if at == len(ids) else f'{kind}: {len(ids)} ids for {at}'), seconds


def check(kind, folder, found, total, results):
    file = folder / f'{kind}.json'
    tokenizer_kinds.train(kind, [line for text in found[:4000] for line in text.splitlines(True)], WORDS).save(str(file))
    state = random.Random(kind)
    hard = [text for text in tokenizer_kinds.HARD if text and '<s>' not in text[:3]]
    hard += [text for text in (tokenizer_kinds.random_text(state) for _ in range(RANDOM)) if text and not text.startswith('<s>')]
    wrong, _ = compare(kind, hard, sherd(folder, hard, file, 2)[0], file)
    results.append((f'{kind}: ids of {len(hard)} hard texts', wrong))
    ids, one = sherd(folder, found, file, 1)
    wrong, theirs = compare(kind, found, ids, file)
    results.append((f'{kind}: ids of {total / 1e6:.0f} MB', wrong))
    two = sherd(folder, found, file, 2)[1]
    print(f'# {kind}: {total / 1e6 / one:.1f} MB/s per core, tokenizers {total / 1e6 / theirs:.2f}: {theirs / one:.1f} times; '
          f'two threads take {two / one:.2f} of the time of one', flush=True)
    if LONG and IDLE:
        slow = f'{theirs / one:.1f} times as fast' if theirs < TIMES * one else ''
        results.append((f'{kind}: {TIMES} times as fast a core', slow))
        results.append((f'{kind}: two threads', '' if two < THREADS_LOSS * one else f'{two / one:.2f} of the time'))


def check_added(kind, folder, results):
    wrong, count = [], 0
    for number in range(ADDED_SETS):
        draw = random.Random(f'{kind} {number}')
        content, docs = tokenizer_kinds.add_tokens(json.loads((GOLDEN / f'{kind}.json').read_text()), draw, ADDED_TEXTS)
        (folder / 'added.json').write_text(json.dumps(content))
        count += len(docs)
        wrong += filter(None, [compare(f'{kind}, set {number}', docs, sherd(folder, docs, folder / 'added.json', 2)[0],
                                       folder / 'added.json')[0]])
    results.append((f'{kind}: ids of {count} texts with added tokens of all properties', '; '.join(wrong[:3])))


def main():
    found, total = texts()
    found = [text for text in found if text and '\0' not in text]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in tokenizer_kinds.KINDS:
            check(kind, pathlib.Path(folder), found, total, results)
            check_added(kind, pathlib.Path(folder), results)
    print(f'1..{len(results)}')
    for number, (name, wrong) in enumerate(results, 1):
        print(f"{'not ok' if wrong else 'ok'} {number} - {name}")
        if wrong:
            print('#', wrong)
    return int(any(wrong for _, wrong in results))


if __name__ == '__main__':
    sys.exit(main())
