"""The checkpoint that is kept in the tree, of the first version of the format: tests/mpi/tiny.yaml with the options below,
saved by the program of that version."""
import lzma
import pathlib
import shutil

HERE = pathlib.Path(__file__).resolve().parent
OPTIONS = ('--model.dim=4', '--model.ffn_dim=8', '--model.vocab_size=16')
STEP = 3
VERSION = '1.1'


def read(kind=''):
    """'muon-': by Muon, when files had zeros for the means of squares that matrices lack."""
    return lzma.decompress((HERE / f'step-{STEP:08}-{kind}{VERSION}.h5.xz').read_bytes())


def checkpoint(folder, step):
    return pathlib.Path(folder) / f'out/checkpoint/step-{step:08}.h5'


def prepare(folder):
    """A folder with the configuration and its data; returns it."""
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    checkpoint(folder, 0).parent.mkdir(parents=True)
    shutil.copy(HERE.parent / 'mpi/tiny.yaml', folder)
    (folder / 'tokens.bin').write_bytes(bytes(40000))
    return folder
