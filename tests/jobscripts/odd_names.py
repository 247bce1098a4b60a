"""Names of folders and files for the tests of the job scripts: each would do something if a shell interpreted it."""
import os

# Anything that executes a part of such a name creates this file.
OWNED = 'OWNED'
RUN = f'touch {OWNED}'

FOLDERS = [
    ' first and last ', 'a"b', 'a\\b', 'a\\\\"b\\', '$HOME', f'$({RUN})', f'a[$({RUN})]', f"`{RUN}`'; {RUN}; {{a,b}}", f'a&{RUN}|b>c',
    '-n', '--help', '~', '*?[a-z]', '#a: b', '%j%%', 'éü中!!', "10#x$'a'",
]
# Names that a study hands to Slurm in a special way, and one that has everything.
STUDIES = ['a\\b', f'$({RUN})', '-n', '%j%%', f' %j\\"$({RUN})*; é']
REFUSED = ['a\nb', 'a\tb']  # by the configuration, which allows only printable characters
# Files in a checkpoint folder that are not checkpoints.
FILES = [f'step-0+a[$({RUN})].h5', f'step-$({RUN}).h5', f'step-0`{RUN}`.h5', 'step-0\n1.h5', 'step-99999999999999999999999.h5',
         'step-00000099.h5 ', ' step-00000099.h5', '-rf', '*', 'step-0x63.h5', 'step-99.h5', 'step-00000099.h5.tmp']
LATE_CHECKPOINT = 'step-00000098.h5'


def plant(folder):
    """Create the files, and a FIFO with the name of a checkpoint."""
    for name in FILES:
        (folder / name).touch()
    os.mkfifo(folder / LATE_CHECKPOINT)
