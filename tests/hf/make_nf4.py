#!/usr/bin/env python3
"""Make tests/op/nf4.bin, what bitsandbytes makes of some numbers:

    tests/hf/venv build/venv && build/venv/bin/python tests/hf/make_nf4.py

Little-endian: int64 blocks; float32 numbers [blocks,64]; bytes of codes [blocks,32]; float32 scales [blocks]; float32 what
comes back [blocks,64].
"""
import pathlib
import struct

import bitsandbytes.functional
import torch

BLOCKS = 24


def numbers():
    """Normal ones of all sizes; all zero; subnormal; one outlier; equal; on and beside the middle of two of the 16."""
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


x = numbers()
packed, state = bitsandbytes.functional.quantize_4bit(x.clone(), quant_type='nf4')
back = bitsandbytes.functional.dequantize_4bit(packed, state)
path = pathlib.Path(__file__).resolve().parent.parent / 'op/nf4.bin'
path.write_bytes(struct.pack('<q', BLOCKS) + x.numpy().tobytes() + packed.numpy().tobytes() +
                 state.absmax.numpy().tobytes() + back.numpy().tobytes())
