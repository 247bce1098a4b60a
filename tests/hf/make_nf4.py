#!/usr/bin/env python3
"""Pack some numbers with bitsandbytes into tests/op/nf4.bin, and a tiny model into folders: nf4/source as transformers
saved it, nf4/plain and nf4/nested in four bits, with float32 scales and with scales that are packed themselves.

    tests/hf/venv build/venv && build/venv/bin/python tests/hf/make_nf4.py

nf4.bin is little-endian: int64 blocks; float32 numbers [blocks,64]; bytes of codes [blocks,32]; float32 scales
[blocks]; float32 unpacked numbers [blocks,64].
"""
import pathlib
import shutil
import struct

import bitsandbytes.functional
import torch
import transformers

BLOCKS = 24


def numbers():
    """Blocks: normal numbers of all sizes; all zero; subnormal; one outlier; equal; on and near the midpoints of the 16
    codes."""
    torch.manual_seed(11)
    x = torch.randn(BLOCKS, 64) * 10.0 ** torch.randint(-6, 4, (BLOCKS, 1))
    code = bitsandbytes.functional.get_4bit_type('nf4', device='cpu')
    middle = (code[:-1] + code[1:]) / 2
    x[1] = 0
    x[2] *= 1e-40 / x[2].abs().max()
    x[3] *= 1e-3
    x[3, 17] = -9
    x[4] = 0.25
    x[5] = -0.0
    for row, scale in ((6, 1.0), (7, 3.0), (8, 0.7)):
        around = torch.cat([middle, middle.nextafter(torch.tensor(2.0)), middle.nextafter(torch.tensor(-2.0)), code])
        x[row, :len(around)] = around * scale
        x[row, -1] = scale
    return x


def write_numbers(path):
    x = numbers()
    packed, state = bitsandbytes.functional.quantize_4bit(x.clone(), quant_type='nf4')
    back = bitsandbytes.functional.dequantize_4bit(packed, state)
    path.write_bytes(struct.pack('<q', BLOCKS) + x.numpy().tobytes() + packed.numpy().tobytes() +
                     state.absmax.numpy().tobytes() + back.numpy().tobytes())


def write_folders(top):
    """Weights of 8 to 48 blocks, so that ranks have parts of them."""
    shutil.rmtree(top, ignore_errors=True)
    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=96, num_hidden_layers=1,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                      rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(top / 'source')
    for name, options in (('plain', {}), ('nested', {'bnb_4bit_use_double_quant': True,
                                                     'bnb_4bit_quant_storage': torch.bfloat16})):
        packing = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4',
                                                  bnb_4bit_compute_dtype=torch.bfloat16, **options)
        transformers.AutoModelForCausalLM.from_pretrained(
            top / 'source', quantization_config=packing, device_map='cpu', dtype=torch.bfloat16).save_pretrained(top / name)


HERE = pathlib.Path(__file__).resolve().parent
write_numbers(HERE.parent / 'op/nf4.bin')
write_folders(HERE / 'nf4')
