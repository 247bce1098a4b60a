"""Names that folders and files may have, for the tests of the job scripts: each would do something if a shell read it."""
import os

# Whatever runs a piece of such a name makes this file.
OWNED = 'OWNED'
RUN = f'touch {OWNED}'

FOLDERS = [
    ' first and last ', 'a"b', 'a\\b', 'a\\\\"b\\', '$HOME', f'$({RUN})', f'a[$({RUN})]', f"`{RUN}`'; {RUN}; {{a,b}}", f'a&{RUN}|b>c',
    '-n', '--help', '~', '*?[a-z]', '#a: b', '%j%%', 'éü中!!', "10#x$'a'",
]
# Those that a study hands to Slurm in a way of its own, and one that has everything.
STUDIES = ['a\\b', f'$({RUN})', '-n', '%j%%', f' %j\\"$({RUN})*; é']
REFUSED = ['a\nb', 'a\tb']  # by the configuration, which has none but printable characters
# In a checkpoint folder: none of them is a checkpoint.
FILES = [f'step-0+a[$({RUN})].h5', f'step-$({RUN}).h5', f'step-0`{RUN}`.h5', 'step-0\n1.h5', 'step-99999999999999999999999.h5',
         'step-00000099.h5 ', ' step-00000099.h5', '-rf', '*', 'step-0x63.h5', 'step-99.h5', 'step-00000099.h5.tmp']
LATE_CHECKPOINT = 'step-00000098.h5'


def plant(folder):
    """The files, and a FIFO with the name of a checkpoint."""
    for name in FILES:
        (folder / name).touch()
    os.mkfifo(folder / LATE_CHECKPOINT)
