"""XXH3 as in a file, without numpy."""
import ctypes
import ctypes.util
import pathlib


class Hash128(ctypes.Structure):
    _fields_ = [('low', ctypes.c_uint64), ('high', ctypes.c_uint64)]


def load_xxhash():
    """Python's standard library does not have XXH3; Sherd needs the C library anyway."""
    packed = pathlib.Path(__file__).resolve().parent.parent.parent / 'lib/libxxhash.so.0'  # put there by tests/gpu/pack
    library = ctypes.CDLL(str(packed) if packed.exists() else ctypes.util.find_library('xxhash') or 'libxxhash.so.0')
    library.XXH3_64bits.restype = ctypes.c_uint64
    library.XXH3_64bits.argtypes = library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.XXH3_128bits.restype = Hash128
    return library


xxhash = load_xxhash()


def hash128(data):
    """16 bytes, as in a file: the low half first."""
    return bytes(xxhash.XXH3_128bits(data, len(data)))
