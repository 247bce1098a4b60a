"""A processor's support for bfloat16 products: the bars against PyTorch depend on the machine's class."""
import collections
import pathlib

CPUINFO = pathlib.Path('/proc/cpuinfo')

# `needs`: flags of /proc/cpuinfo, all required. `bfloat16`: the bar for Sherd over the strongest PyTorch; None: no bar.
CpuClass = collections.namedtuple('CpuClass', 'name needs bfloat16')
# The widest first: a machine belongs to the first class whose flags it has.
CLASSES = [CpuClass('AMX', {'amx_tile', 'amx_bf16'}, 2.5), CpuClass('AVX-512 with bf16', {'avx512_bf16'}, 1.6),
           CpuClass('AVX-512 without bf16', {'avx512f'}, None), CpuClass('AVX2', {'avx2'}, None),
           CpuClass('other', set(), None)]
WITHOUT_BAR = 'no instruction for bfloat16 products (amx_bf16, avx512_bf16), so its bfloat16 rows have no bar'
AVX512 = {'avx512f', 'avx512bw', 'avx512dq', 'avx512vl'}  # what PyTorch's AVX-512 kernels are compiled for


def read_flags(text):
    """Flags of the first processor; an empty set if there is no such line, as on other architectures."""
    for line in text.splitlines():
        key, _, value = line.partition(':')
        if key.strip() == 'flags':
            return set(value.split())
    return set()


def machine_flags():
    return read_flags(CPUINFO.read_text())


def class_of(flags):
    return next(cpu for cpu in CLASSES if cpu.needs <= flags)


def torch_capability(flags):
    """PyTorch takes ATEN_CPU_CAPABILITY at its word: on a machine without AVX-512 its kernels would end the process."""
    return {'ATEN_CPU_CAPABILITY': 'avx512'} if AVX512 <= flags else {}
