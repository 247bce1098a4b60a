#!/usr/bin/env python3
"""A base in four bits against bitsandbytes: the same codes and scales from random models in bfloat16, float16 and
float32; its folders with both kinds of scales and codes in each type; and the loss with the weights that it unpacks.
Prints TAP. Needs the virtual environment that tests/hf/venv makes; SHERD_HF_VENV names it.

The length of a row is a multiple of 64: on CPUs bitsandbytes 0.50 unpacks other lengths wrongly.
"""
import array
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'gold'))
import job

job.enter_venv()
import torch
import transformers
try:
    import bitsandbytes
except ImportError:
    job.skip_all('the virtual environment has no bitsandbytes: tests/hf/venv makes one that has it')
from safetensors.torch import load_file, save_file

SEQ, ROWS = 33, 4
LOSS_BOUND = 1e-6
RUN = {'training.seq_len': SEQ, 'training.local_batch_size': ROWS, 'training.global_batch_size': ROWS, 'training.steps': 1,
       'training.mixed_precision_param': 'float32', 'training.threads': 1, 'data.shuffle': False,
       'training.dataset_path': '../tokens.bin', 'lora.rank': 2, 'lora.quantize_base': 'nf4'}
MODELS = {
    'llama': transformers.LlamaConfig(vocab_size=101, hidden_size=128, intermediate_size=320, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64),
    'mistral': transformers.MistralConfig(vocab_size=101, hidden_size=192, intermediate_size=256, num_hidden_layers=1,
                                      num_attention_heads=6, num_key_value_heads=3, max_position_embeddings=64),
}
TYPES = {'bfloat16': torch.bfloat16, 'float16': torch.float16, 'float32': torch.float32}


def make(name, dtype):
    """Weights of all magnitudes, which normally distributed ones never have."""
    torch.manual_seed(20)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name])
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            if p.ndim > 1:
                p.normal_(0, 0.1).mul_(10 ** torch.empty(p.shape[0], 1).uniform_(-2, 0.3))
    shutil.rmtree('source', ignore_errors=True)
    model.to(dtype).save_pretrained('source')


def pack(dtype, **options):
    packing = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_compute_dtype=torch.float32,
                                              **options)
    model = transformers.AutoModelForCausalLM.from_pretrained('source', quantization_config=packing, device_map='cpu', dtype=dtype)
    shutil.rmtree('packed', ignore_errors=True)
    model.save_pretrained('packed')
    return model


def base_of(folder):
    steps = job.train('run', {**RUN, 'model.hf_assets_path': str(pathlib.Path(folder).resolve())})
    text = job.sherd('ckpt', 'info', next(pathlib.Path('run/out/checkpoint').glob('*.h5')))
    return re.search(r'sum: ([0-9a-f]{16})', text)[1], job.losses(steps)[0]


def case_packed_alike(name, dtype):
    make(name, TYPES[dtype])
    pack(TYPES[dtype])
    theirs, ours = base_of('packed'), base_of('source')
    return [] if theirs == ours else [f'{theirs} and {ours}']


def unpack_scales(model):
    """The folder, with the scales as bitsandbytes unpacks them."""
    tensors, states = load_file('packed/model.safetensors'), {}
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            states[name + '.weight'] = module.weight.quant_state
    for name, state in states.items():
        scales = bitsandbytes.functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
        tensors[name + '.absmax'] = scales.float()
        del tensors[name + '.nested_absmax'], tensors[name + '.nested_quant_map']
    save_file(tensors, 'packed/model.safetensors', {'format': 'pt'})


def case_nested(name, storage):
    make(name, torch.bfloat16)
    model = pack(torch.bfloat16, bnb_4bit_use_double_quant=True, bnb_4bit_quant_storage=getattr(torch, storage))
    nested = base_of('packed')
    unpack_scales(model)
    flat = base_of('packed')
    return [] if nested == flat else [f'{nested} and {flat}']


def unpacked(model):
    """A model with the weights as bitsandbytes unpacks them."""
    plain = transformers.AutoModelForCausalLM.from_pretrained('source', dtype=torch.float32)
    modules = dict(plain.named_modules())
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, bitsandbytes.nn.Linear4bit):
                w = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
                modules[name].weight.copy_(w.float().reshape(modules[name].weight.shape))
    return plain.double().eval()


def case_loss(name):
    make(name, torch.float32)
    plain = unpacked(pack(torch.float32, bnb_4bit_use_double_quant=True))
    rows = torch.tensor([stream[i * SEQ:(i + 1) * SEQ + 1] for i in range(ROWS)])
    logits = plain(rows[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()
    found = base_of('packed')[1]
    return [] if abs(found - loss) <= LOSS_BOUND * loss else [f'a loss of {found}, and of {loss} there']


if __name__ == '__main__':
    stream = torch.randint(0, 101, (ROWS * SEQ * 2 + 1,), generator=torch.Generator().manual_seed(10)).tolist()
    with open('tokens.bin', 'wb') as f:
        array.array('H', stream).tofile(f)
    cases = [(f'{name} of {dtype}: packed alike', case_packed_alike, name, dtype) for name in MODELS for dtype in TYPES]
    cases += [(f'{name}: packed scales, codes as {storage}', case_nested, name, storage)
              for name, storage in (('llama', 'uint8'), ('mistral', 'bfloat16'), ('llama', 'float32'), ('mistral', 'float16'))]
    cases += [(f'{name}: the loss of what is unpacked', case_loss, name) for name in MODELS]
    sys.exit(job.run_cases(cases))
