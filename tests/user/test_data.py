#!/usr/bin/env python3
"""`sherd data`, and the output of `sherd tokenize` for conversations. Prints TAP."""
import array
import os
import pathlib
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / name) for name in ('gold', 'mesh')]
import job
import test_documents

KIND = job.TOP / 'tests/golden/tokenizer'
CHAT = '{"prompt": "What is 2 + 2?", "completion": " It is 4.\\u001b[2J\\u009b2J"}\n{"prompt": "x", "completion": "y"}\n'


def refuses(words, status, says):
    try:
        return [f'{words}: {job.sherd(*words)}']
    except job.Failed as failed:
        return [] if f': exit {status}\n' in str(failed) and says in str(failed) else [str(failed)]


def lacks(text, *parts):
    return [f'no "{part}" in: {text}' for part in parts if part not in text]


def case_documents():
    path = test_documents.write_documents('masked.bin', 1, 90, True)
    said = job.sherd('data', path, '--seq-len', 12, '--first', 88, '--documents', 5)
    wrong = lacks(said, '1 file, 90 documents, ', 'with a mask of targets', 'tokenizer: 61 words', 'lengths: 0 to 30 tokens',
                  'data.packing=bfd: ', ' sequences of 12, 0.', 'do not fit into one', '\ndocument 89, ', '\u27e8')
    wrong += [f'a document too many: {said}'] if 'document 90' in said else []
    wrong += refuses(['data', path, '--first', 90], 2, '--first 90, but')
    wrong += refuses(['data', path, '--excess', 'raise', '--seq-len', 12], 3, 'data.excess_length_strategy')
    wrong += refuses(['data', path, '--excess', 'all'], 2, '--excess must be')
    return wrong + refuses(['data'], 2, 'give one file')


def case_stream():
    pathlib.Path('text.txt').write_text(CHAT)
    job.sherd('tokenize', 'text.txt', '-o', 'text.bin')
    windows = (len(CHAT) - 1) // 12
    said = job.sherd('data', 'text.bin', '--seq-len', 12, '--tokenizer', 'byte', '--first', 1, '--documents', 2)
    wrong = lacks(said, f'{len(CHAT)} tokens, no documents: {windows} ', f'\nsequence 1, 13 tokens:\n{CHAT[12:25]}\n',
                  f'\nsequence 2, 13 tokens:\n{CHAT[24:37]}\n')
    wrong += [f'a sequence too many: {said}'] if 'sequence 3' in said else []
    told = [subprocess.run([os.environ['SHERD'], 'data', 'text.bin', *more], capture_output=True, text=True).stderr
            for more in (['--seq-len', '12'], ['--seq-len', '12', '--tokenizer', 'byte'])]
    wrong += lacks(told[0], 'ids are shown; --tokenizer shows the text: byte for bytes') + ([told[1]] if told[1] else [])
    wrong += refuses(['data', 'text.bin', '--seq-len', 12, '--excess', 'split'], 2, '--excess is for documents')
    return wrong + refuses(['data', 'text.bin', '--seq-len', 12, '--first', windows], 2, f'has {windows} sequences')


def case_bare():
    """The size of the vocabulary, or the option, determines the bytes per token."""
    pathlib.Path('bare.bin').write_bytes(array.array('H', [300, 2, 259, 4, 5]).tobytes() + b'\0\0')
    said = [job.sherd('data', 'bare.bin', '--seq-len', 2, *more) for more in
            ([], ['--tokenizer', KIND / 'llama3.json'], ['--token-type', 'uint16'])]
    wrong = lacks(said[0], '3 tokens, ') + lacks(said[1], '6 tokens, ')
    wrong += lacks(said[2], '6 tokens, ', '\nsequence 0, 3 tokens:\n300 2 259\n')
    return wrong + refuses(['data', 'bare.bin', '--token-type', 'int8'], 2, '--token-type must be uint16 or uint32')


def case_conversations():
    """The text just written, and the same text again from the file; its contents cannot harm a terminal."""
    pathlib.Path('chat.jsonl').write_text(CHAT)
    said = job.sherd('tokenize', 'chat.jsonl', '-o', 'chat.bin', '--tokenizer', KIND / 'llama3.json', '--format',
                     'prompt-completion', '--eos', '<|end_of_text|>')
    shown = 'What is 2 + 2?\u27e8 It is 4.\\x1b[2J\\x9b2J<|end_of_text|>\u27e9'
    wrong = lacks(said, '2 documents', shown)
    wrong += lacks(job.sherd('data', 'chat.bin', '--tokenizer', KIND / 'llama3.json'), shown, 'tokenizer.json with hash ')
    return wrong + refuses(['data', 'chat.bin', '--tokenizer', KIND / 'qwen.json'], 3, 'another tokenizer.json')


if __name__ == '__main__':
    sys.exit(job.run_cases([('documents', case_documents), ('a stream', case_stream), ('a file without a header', case_bare),
                            ('conversations', case_conversations)]))
