#!/usr/bin/env python3
"""Compare averages with sums in float64 that are rounded once; tests/mpi/ckpt-average.case extracts the arrays."""
import struct
import sys


def read(n, what):
    with open(f'{n}.{what}.npy', 'rb') as f:
        data = f.read()[192:]
    return struct.unpack(f'<{len(data) // 4}f', data)


def single(x):
    return struct.unpack('<f', struct.pack('<f', x))[0]


def check_numpy(mean, arrays, weights):
    try:
        import numpy as np
    except ImportError:
        return
    x = np.array(arrays, np.float32).astype(np.float64)
    assert (np.average(x, 0, weights).astype(np.float32) == np.array(mean, np.float32)).all()


moved = 0
for n in range(int(sys.argv[1])):
    one, two, three = (read(n, f'step-0000000{k}') for k in (1, 2, 3))
    mean, equal = read(n, 'mean'), read(n, 'equal')
    assert list(mean) == [single((0.1 * c + 0.6 * a + 0.3 * b) / (0.1 + 0.6 + 0.3)) for a, b, c in zip(one, two, three)], n
    assert list(equal) == [single((a + b + c) / 3) for a, b, c in zip(one, two, three)], n
    check_numpy(mean, [three, one, two], [0.1, 0.6, 0.3])
    moved += sum(a != b for a, b in zip(one, three))
assert moved > 1000, moved
