#!/usr/bin/env python3
"""Train a tokenizer on your own text, in GPT-2's form:   python3 examples/train_tokenizer.py TEXT FOLDER [WORDS]

Writes FOLDER/tokenizer.json with WORDS words (4096), and generation_config.json, which names the one that ends a
document. Needs `pip install tokenizers`. Models that somebody else trained bring their own tokenizer.
"""
import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = '<|endoftext|>'

text, folder = sys.argv[1], pathlib.Path(sys.argv[2])
words = int(sys.argv[3]) if len(sys.argv) > 3 else 4096
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train([text], trainers.BpeTrainer(vocab_size=words, special_tokens=[END],
                                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
folder.mkdir(exist_ok=True)
tokenizer.save(str(folder / 'tokenizer.json'))
(folder / 'generation_config.json').write_text(json.dumps({'eos_token_id': tokenizer.token_to_id(END)}))
print(f'{tokenizer.get_vocab_size()} words in {folder}/tokenizer.json')
