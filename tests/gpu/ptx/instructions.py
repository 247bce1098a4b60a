"""What each instruction of PTX does: a table from its name to a function that makes, from operands, the function to run.

A function to run gets the frame and the threads that take part (machine.py). Operands are read as numpy arrays of the
instruction's type, or as one number if the operand is a constant; numpy's arithmetic then does the rest. Results are
IEEE's; approximate instructions are exact here, and denormal numbers are kept where .ftz would make them zero."""
import re
import types

import numpy as np

from memory import ALLOCATED, WRITTEN, Fault
from module import BYTES, NUMPY

ADDRESS = re.compile(r'^\[\s*([%\w$.]+)\s*(?:\+\s*(-?\d+))?\s*\]$')
SHARED_WINDOW = 1 << 48  # generic addresses of shared memory, above all of a process
SPACES = 'global', 'shared', 'local', 'param', 'const'
np.seterr(all='ignore')


# Operands

def constant(text, kind):
    """A number in the text of an instruction, or None."""
    if re.match(r'0[fF][0-9a-fA-F]{8}$', text):
        value = np.uint32(int(text[2:], 16))
        return value.view(NUMPY[kind]) if BYTES[kind] == 4 else value
    if re.match(r'0[dD][0-9a-fA-F]{16}$', text):
        return np.uint64(int(text[2:], 16)).view(NUMPY[kind])
    if kind == 'pred' and text in ('0', '1', '-1'):
        return np.bool_(text != '0')
    if re.match(r'-?(0x[0-9a-fA-F]+|\d+)U?$', text):
        size = BYTES[kind]
        value = int(text.rstrip('U'), 0) % (1 << 8 * size)
        return np.array(value, f'u{size}').view(NUMPY[kind])[()]
    return None


def resize(value, dtype):
    """A register's value as another type: the same bits, or widened, or cut."""
    if value.dtype == dtype:
        return value
    if value.dtype.itemsize == dtype.itemsize:
        return value.view(dtype)
    if value.dtype.kind == 'f':
        value = value.view(f'u{value.dtype.itemsize}')
    wide = value.astype(f'u{dtype.itemsize}')
    return wide if wide.dtype == dtype else wide.view(dtype)


def getter(kernel, text, kind):
    """f(frame, act): the operand's value."""
    dtype = np.dtype(NUMPY[kind])
    inverted = text.startswith('!')
    text = text.lstrip('!')
    if text in kernel.numbers:
        number, own = kernel.numbers[text], NUMPY[kernel.registers[text]]

        def register(frame, act):
            values = resize(register_of(frame, number, own)[act], dtype)
            return ~values if inverted else values
        return register
    if text.startswith('%'):
        return lambda frame, act: resize(frame.special[text][act], dtype)
    value = constant(text, kind)
    if value is not None:
        return lambda frame, act: value
    return lambda frame, act: np.array(symbol(frame, text), 'u8').astype(f'u{dtype.itemsize}').view(dtype)[()]


def symbol(frame, name):
    if name in frame.kernel.parameters:
        return frame.kernel.parameters[name][0]
    if name not in frame.symbols:
        raise Fault(f'unknown symbol {name}')
    return frame.symbols[name]


def register_of(frame, number, dtype):
    """Before the first write all bits are ones, so NaN: nvcc copies registers without a value where it does not matter."""
    if frame.registers[number] is None:
        frame.registers[number] = np.full(frame.n * np.dtype(dtype).itemsize, 0xff, 'u1').view(dtype)
    return frame.registers[number]


def setter(kernel, text):
    """f(frame, act, value)"""
    if text == '_':
        return lambda frame, act, value: None
    number = kernel.numbers[text]
    dtype = np.dtype(NUMPY[kernel.registers[text]])

    def put(frame, act, value):
        register_of(frame, number, dtype)[act] = resize(value, dtype)
    return put


def elements(text):
    """The registers of a vector, or the one register."""
    return [word.strip() for word in text.strip('<>').split(',')]


def address(kernel, text):
    """f(frame, act): addresses as i8 arrays."""
    base, offset = ADDRESS.match(text).groups()
    kind = 's64' if kernel.registers.get(base) in ('b64', 'u64', 's64') or base not in kernel.registers else 'u32'
    get, offset = getter(kernel, base, kind), int(offset or 0)

    def find(frame, act):
        at = np.asarray(get(frame, act)).astype('i8') + offset
        return np.broadcast_to(at, len(frame.number[act]))
    return find


def space_of(op):
    return next((word for word in op if word in SPACES), None)


# Arithmetic: functions of arrays

def f64(x):
    return x.astype('f8')


def round_down(x):
    """float64 to float32."""
    y = x.astype('f4')
    return np.where(f64(y) > x, np.nextafter(y, np.float32(-np.inf)), y)


def split(x):
    """High half of a float64, so that products of halves are exact. Dekker, Numer. Math. 18 (1971)."""
    big = x * np.float64(134217729)
    return big - (big - x)


def fma_f64(a, b, c):
    """Rounded once if the product is a float64; otherwise with 64 bits in between."""
    product = a * b
    high_a, high_b = split(a), split(b)
    low_a, low_b = a - high_a, b - high_b
    error = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    wide = (np.longdouble(1) * a * b + c).astype('f8')
    return np.where(error == 0, product + c, wide)


def fma(op, kind):
    if kind == 'f64':
        return fma_f64
    narrow = round_down if 'rm' in op else lambda x: x.astype('f4')
    return lambda a, b, c: narrow(f64(a) * f64(b) + f64(c))


def divide(a, b):
    """Of integers, towards zero; of numbers otherwise."""
    if np.asarray(a).dtype.kind == 'f':
        return a / b
    b = np.where(b == 0, 1, b).astype(np.asarray(a).dtype)
    quotient = np.abs(a) // np.abs(b)
    return np.where((a < 0) != (b < 0), -quotient, quotient).astype(b.dtype)


def remainder(a, b):
    b = np.where(b == 0, 1, b).astype(np.asarray(a).dtype)
    return np.fmod(a, b).astype(b.dtype)


def shift_left(a, by):
    a = resize(a, np.dtype(f'u{a.dtype.itemsize}'))
    bits = 8 * a.dtype.itemsize
    return np.where(by >= bits, 0, a << np.minimum(by, bits - 1).astype(a.dtype)).astype(a.dtype)


def shift_right(a, by):
    bits = 8 * a.dtype.itemsize
    moved = a >> np.minimum(by, bits - 1).astype(a.dtype)
    return moved if a.dtype.kind == 'i' else np.where(by >= bits, 0, moved).astype(a.dtype)


def high_product(a, b):
    """The upper half of a product, in Python's integers."""
    a, b = np.broadcast_arrays(a, b)
    bits = 8 * a.dtype.itemsize
    return np.array([int(x) * int(y) >> bits for x, y in zip(a.flat, b.flat)], a.dtype)


def leading_zeros(a):
    size = a.dtype.itemsize
    return np.array([8 * size - int(x).bit_length() for x in np.ravel(resize(a, np.dtype(f'u{size}')))], 'u4')


def ones(a):
    return np.array([int(x).bit_count() for x in np.ravel(resize(a, np.dtype(f'u{a.dtype.itemsize}')))], 'u4')


def bf16_of(x):
    """Rounded to nearest even; as u2."""
    bits = x.view('u4')
    rounded = ((bits + np.uint32(0x7fff) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype('u2')
    return np.where(np.isnan(x), np.uint16(0x7fff), rounded)


def of_bf16(x):
    return (x.astype('u4') << np.uint32(16)).view('f4')


ROUND = {'rzi': np.trunc, 'rni': np.rint, 'rmi': np.floor, 'rpi': np.ceil}


def convert(op):
    """The function of a cvt between numbers and integers."""
    to, of = op[-2:]
    dtype = np.dtype(NUMPY[to])
    mode = next((ROUND[word] for word in op if word in ROUND), None)

    def to_integer(x):
        limits = np.iinfo(dtype)
        return np.clip(np.nan_to_num(mode(f64(x)), nan=0), float(limits.min), float(limits.max)).astype(dtype)

    def to_number(x):
        x = mode(x) if mode else x
        return np.clip(np.nan_to_num(x, nan=0), 0, 1).astype(dtype) if 'sat' in op else x.astype(dtype)
    return to_integer if of[0] == 'f' and to[0] != 'f' else to_number


# Makers of functions to run: f(kernel, op, args) for the table

def computes(function, *kinds):
    """The first operand becomes function(others), whose types are the instruction's unless `kinds` gives them."""
    def make(kernel, op, args):
        own = [*kinds, *[op[-1]] * len(args)]
        gets = [getter(kernel, text, kind or op[-1]) for text, kind in zip(args[1:], own)]
        put = setter(kernel, args[0])
        return lambda frame, act: put(frame, act, function(*[get(frame, act) for get in gets]))
    return make


def by_op(function):
    """The same where the function depends on the instruction's words: function(op, type)."""
    return lambda kernel, op, args: computes(function(op, op[-1]))(kernel, op, args)


def move(kernel, op, args):
    kind = op[-1]
    if args[1].startswith('<'):
        return pack(kernel, kind, args)
    if args[0].startswith('<'):
        return unpack(kernel, kind, args)
    return computes(lambda x: x)(kernel, op, args)


def pack(kernel, kind, args):
    parts = elements(args[1])
    size = BYTES[kind] // len(parts)
    gets, put, wide = [getter(kernel, part, f'u{8 * size}') for part in parts], setter(kernel, args[0]), f'u{BYTES[kind]}'

    def run(frame, act):
        put(frame, act, sum(get(frame, act).astype(wide) << np.array(8 * size * i).astype(wide) for i, get in enumerate(gets)))
    return run


def unpack(kernel, kind, args):
    parts = elements(args[0])
    size = BYTES[kind] // len(parts)
    get, puts, wide = getter(kernel, args[1], f'u{BYTES[kind] * 8}'), [setter(kernel, part) for part in parts], f'u{BYTES[kind]}'

    def run(frame, act):
        value = get(frame, act)
        for i, put in enumerate(puts):
            put(frame, act, (value >> np.array(8 * size * i).astype(wide)).astype(f'u{size}'))
    return run


def to_generic(kernel, op, args):
    """cvta: only shared memory has other addresses than the generic ones, apart from local memory, whose address is
    never taken so."""
    if 'local' in op:
        raise Fault('cvta of a local address')
    offset = np.uint64(SHARED_WINDOW if 'shared' in op else 0)
    return computes((lambda x: x - offset) if 'to' in op else (lambda x: x + offset))(kernel, op, args)


def load(kernel, op, args):
    kind, space, find = op[-1], space_of(op), address(kernel, args[1])
    puts, size = [setter(kernel, part) for part in elements(args[0])], BYTES[kind]
    dtype = np.dtype(NUMPY[kind])

    def run(frame, act):
        memory, at = frame.place(space, find(frame, act), act)
        for put, value in zip(puts, memory.load(at, size, len(puts))):
            put(frame, act, value.view(dtype))
    return run


def store(kernel, op, args):
    kind, space, find = op[-1], space_of(op), address(kernel, args[0])
    gets, size = [getter(kernel, part, f'u{8 * BYTES[kind]}') for part in elements(args[1])], BYTES[kind]

    def run(frame, act):
        memory, at = frame.place(space, find(frame, act), act)
        memory.store(at, size, [get(frame, act) for get in gets])
    return run


def multiply(kernel, op, args):
    if 'hi' in op:
        return computes(high_product)(kernel, op, args)
    if 'wide' not in op:
        return computes(lambda a, b: a * b)(kernel, op, args)
    wide = f'{NUMPY[op[-1]][0]}{2 * BYTES[op[-1]]}'
    return computes(lambda a, b: a.astype(wide) * b.astype(wide))(kernel, op, args)


def multiply_add(kernel, op, args):
    kind = op[-1]
    if kind[0] == 'f':
        return computes(fma(op, kind))(kernel, op, args)
    if 'wide' not in op:
        return computes(lambda a, b, c: a * b + c)(kernel, op, args)
    wide = f'{kind[0]}{2 * int(kind[1:])}'
    return computes(lambda a, b, c: a.astype(NUMPY[wide]) * b.astype(NUMPY[wide]) + c, kind, kind, wide)(kernel, op, args)


COMPARE = {'eq': np.equal, 'ne': np.not_equal, 'lt': np.less, 'le': np.less_equal, 'gt': np.greater, 'ge': np.greater_equal,
           'lo': np.less, 'ls': np.less_equal, 'hi': np.greater, 'hs': np.greater_equal}
COMBINE = {'and': np.logical_and, 'or': np.logical_or, 'xor': np.logical_xor}


def compare(kernel, op, args):
    kind, word = op[-1], op[1]
    combine = next((COMBINE[w] for w in op[2:] if w in COMBINE), None)

    def function(a, b, c=None):
        unordered = np.isnan(a) | np.isnan(b) if kind[0] == 'f' else False
        if word in ('nan', 'num'):
            found = unordered if word == 'nan' else ~unordered
        else:
            found = COMPARE[word[:2]](a, b)
            found = found | unordered if word[2:] == 'u' else found & ~np.asarray(unordered)
        return np.asarray(combine(found, c) if combine else found)
    return computes(function, kind, kind, 'pred')(kernel, op, args)


def select(kernel, op, args):
    return computes(lambda a, b, p: np.where(p, a, b), op[-1], op[-1], 'pred')(kernel, op, args)


def cvt(kernel, op, args):
    to, of = op[-2:]
    if to == 'bf16x2':
        def pair(high, low):
            return bf16_of(high).astype('u4') << np.uint32(16) | bf16_of(low)
        return computes(pair, 'f32', 'f32')(kernel, op, args)
    if to == 'bf16':
        return computes(bf16_of, 'f32')(kernel, op, args)
    if of == 'bf16':
        return computes(of_bf16, 'b16')(kernel, op, args)
    return computes(convert(op))(kernel, op, args)


def extract(kernel, op, args):
    def function(a, position, length):
        mask = ((np.uint64(1) << length.astype('u8')) - np.uint64(1)).astype('u8')
        return (a.astype('u8') >> position.astype('u8') & mask).astype(a.dtype)

    def signed(a, position, length):
        left = (np.uint64(64) - length.astype('u8')).astype('i8')
        found = a.astype('i8') << np.maximum(left - position.astype('i8'), 0) >> np.minimum(left, 63)
        return np.where(length == 0, 0, found).astype(a.dtype)
    return computes(function if op[-1][0] == 'u' else signed, None, 'u32', 'u32')(kernel, op, args)


def insert_bits(field, into, position, length):
    mask = ((np.uint64(1) << length.astype('u8')) - np.uint64(1)) << position.astype('u8')
    return (into & ~mask | field.astype('u8') << position.astype('u8') & mask).astype(field.dtype)


def permute(a, b, selector):
    source, found = b.astype('u8') << np.uint64(32) | a, np.uint32(0)
    for i in range(4):
        nibble = selector >> np.uint32(4 * i) & np.uint32(15)
        byte = (source >> (8 * (nibble & np.uint32(7))).astype('u8') & np.uint64(255)).astype('u4')
        byte = np.where(nibble & np.uint32(8), np.where(byte & np.uint32(128), 255, 0), byte).astype('u4')
        found = found | byte << np.uint32(8 * i)
    return found


def lop3(kernel, op, args):
    table = int(args[4], 0)

    def function(a, b, c):
        found = np.uint32(0)
        for i in range(8):
            if table >> i & 1:
                found = found | (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return found
    return computes(function)(kernel, op, args[:4])


def funnel(kernel, op, args):
    def function(low, high, by):
        by = np.minimum(by, 32) if 'clamp' in op else by & np.uint32(31)
        both = high.astype('u8') << np.uint64(32) | low
        moved = (both << by.astype('u8')) >> np.uint64(32) if op[1] == 'l' else both >> by.astype('u8')
        return moved.astype('u4')
    return computes(function, 'u32', 'u32', 'u32')(kernel, op, args)


def atomic(kernel, op, args):
    """One thread after the other where addresses are the same."""
    kind, space, find = op[-1], space_of(op), address(kernel, args[1])
    get, put = getter(kernel, args[2], kind), setter(kernel, args[0])
    act_on = next(f for word, f in ATOMIC.items() if word in op)

    def run(frame, act):
        memory, at = frame.place(space, find(frame, act), act)
        dtype = NUMPY[kind]
        values = np.broadcast_to(get(frame, act), at.shape)
        if len(np.unique(at)) == len(at):
            old = memory.load(at, BYTES[kind])[0].view(dtype)
            memory.store(at, BYTES[kind], [act_on(old, values).astype(dtype).view(f'u{BYTES[kind]}')])
        else:
            old = np.zeros(len(at), dtype)
            for i in range(len(at)):
                old[i:i + 1] = memory.load(at[i:i + 1], BYTES[kind])[0].view(dtype)
                new = act_on(old[i:i + 1], values[i:i + 1]).astype(dtype).view(f'u{BYTES[kind]}')
                memory.store(at[i:i + 1], BYTES[kind], [new])
        put(frame, act, old)
    return run


ATOMIC = {'add': np.add, 'exch': lambda old, new: new, 'max': np.maximum, 'min': np.minimum, 'or': np.bitwise_or}


# A warp together

def lanes_named(frame, act, get):
    if not (np.asarray(get(frame, act)) == 0xffffffff).all():
        raise Fault('a mask without all lanes, which all take part')


def shuffle(kernel, op, args):
    to, _, inside = args[0].partition('|')
    put, put_inside = setter(kernel, to), setter(kernel, inside) if inside else None
    get = [getter(kernel, text, 'u32') for text in args[1:5]]
    lane = np.arange(32)[None, :]
    source = {'bfly': lambda by: lane ^ by, 'idx': lambda by: by & 31, 'up': lambda by: lane - by, 'down': lambda by: lane + by}

    def run(frame, act):
        rows = frame.warps(act, 'shfl')
        lanes_named(frame, act, get[3])
        value = np.broadcast_to(get[0](frame, act), rows.size).reshape(rows.shape)
        by = np.broadcast_to(get[1](frame, act), rows.size).reshape(rows.shape).astype('i8')
        clamp = int(np.ravel(get[2](frame, act))[0]) & 31
        other = np.broadcast_to(source[op[2]](by), rows.shape)
        ok = other >= clamp if op[2] == 'up' else other <= clamp
        put(frame, act, np.take_along_axis(value, np.where(ok, other, lane), 1).reshape(-1))
        if put_inside:
            put_inside(frame, act, ok.reshape(-1))
    return run


def vote(kernel, op, args):
    get, put, mask = getter(kernel, args[1], 'pred'), setter(kernel, args[0]), getter(kernel, args[2], 'u32')

    def run(frame, act):
        rows = frame.warps(act, 'vote')
        lanes_named(frame, act, mask)
        said = get(frame, act).reshape(rows.shape)
        if 'ballot' in op:
            found = (said.astype('u8') << np.arange(32).astype('u8')).sum(1).astype('u4')
        else:
            found = said.any(1) if 'any' in op else said.all(1)
        put(frame, act, np.repeat(found, 32))
    return run


def whole_warps(kernel, op, args):
    def run(frame, act):
        frame.warps(act, op[0])
    return run


def load_matrices(kernel, op, args):
    """ldmatrix: lane 8i + r has the address of row r of matrix i; lane l gets two neighbours of row l / 4."""
    find, puts = address(kernel, args[1]), [setter(kernel, part) for part in elements(args[0])]
    lane = np.arange(32)

    def run(frame, act):
        rows = frame.warps(act, 'ldmatrix')
        at = find(frame, act).reshape(rows.shape)
        for i, put in enumerate(puts):
            owners = rows[:, 8 * i:8 * i + 8].reshape(-1)
            memory, places = frame.place('shared', at[:, 8 * i:8 * i + 8].reshape(-1), owners)
            words = np.stack(memory.load(places, 2, 8), 1).reshape(len(rows), 8, 8)
            words = words.transpose(0, 2, 1) if 'trans' in op else words
            low, high = words[:, lane // 4, lane % 4 * 2], words[:, lane // 4, lane % 4 * 2 + 1]
            put(frame, act, (low.astype('u4') | high.astype('u4') << np.uint32(16)).reshape(-1))
    return run


def multiply_matrices(kernel, op, args):
    """mma.m16n8k16 of bf16: D = A B + C. The layout of operands is that of the PTX manual."""
    if 'm16n8k16' not in op or op[-3:-1] != ('bf16', 'bf16'):
        raise Fault('mma of an unknown shape')
    puts = [setter(kernel, part) for part in elements(args[0])]
    a_words, b_words = ([getter(kernel, part, 'u32') for part in elements(text)] for text in args[1:3])
    c_words = [getter(kernel, part, 'f32') for part in elements(args[3])]
    row, column = np.arange(32) // 4, np.arange(32) % 4 * 2

    def pair(frame, act, get, count):
        word = np.broadcast_to(get(frame, act), count * 32).reshape(count, 32)
        return of_bf16(word & np.uint32(0xffff)), of_bf16(word >> np.uint32(16))

    def run(frame, act):
        count = len(frame.warps(act, 'mma'))
        a, b = np.zeros((count, 16, 16)), np.zeros((count, 16, 8))
        for i, get in enumerate(a_words):
            at = row + 8 * (i % 2), column + 8 * (i // 2)
            a[:, at[0], at[1]], a[:, at[0], at[1] + 1] = pair(frame, act, get, count)
        for i, get in enumerate(b_words):
            b[:, column + 8 * i, row], b[:, column + 8 * i + 1, row] = pair(frame, act, get, count)
        product = a @ b
        for i, (put, get) in enumerate(zip(puts, c_words)):
            own = product[:, row + 8 * (i // 2), column + i % 2].reshape(-1)
            put(frame, act, (own + get(frame, act)).astype('f4'))
    return run


# Copies on their way

def copy(kernel, op, args):
    """cp.async: what arrives is seen after the wait only; until then the place holds nothing."""
    if 'wait_all' in op:
        return lambda frame, act: arrive(frame, act, None)
    if 'wait_group' in op:
        return lambda frame, act: arrive(frame, act, int(args[0]))
    if 'commit_group' in op:
        def commit(frame, act):
            frame.committed[act] += 1
        return commit
    size, to, of = int(args[2]), address(kernel, args[0]), address(kernel, args[1])
    get = getter(kernel, args[3], 'u32') if len(args) > 3 else lambda frame, act: np.uint32(size)

    def run(frame, act):
        memory, at = frame.place('shared', to(frame, act), act)
        memory.check(at, size, 1)
        valid = np.broadcast_to(get(frame, act), len(at))
        frame.copies.append((frame.number[act], frame.committed[act].copy(), at, read(frame, of(frame, act), valid, size)))
        for i in range(size):
            memory.state[at + i] = ALLOCATED
    return run


def read(frame, at, valid, size):
    """`valid` bytes of each place, then zeros."""
    place = at - frame.base
    frame.global_.check(place[valid > 0], size, 1)
    data = np.zeros((len(at), size), 'u1')
    for n in np.unique(valid[valid > 0]):
        some = valid == n
        data[some, :n] = np.stack(frame.global_.load_bytes(place[some], int(n)), 1)
    return data


def arrive(frame, act, but):
    """All copies of the threads but those of their last `but` groups."""
    waits = np.zeros(frame.n, bool)
    waits[act] = True
    kept = []
    for threads, group, at, data in frame.copies:
        here = waits[threads]
        if but is not None:
            here &= group < frame.committed[threads] - but
        for i in range(data.shape[1]):
            frame.shared.data[at[here] + i] = data[here, i]
            frame.shared.state[at[here] + i] = WRITTEN
        if not here.all():
            kept.append((threads[~here], group[~here], at[~here], data[~here]))
    frame.copies = kept


# Instructions that end a group's run: f(run, groups, address, threads)

def branch(kernel, one, taken_by):
    target = kernel.labels[one.args[-1]]

    def jump(run, groups, at, threads):
        taken = taken_by(run.frame, threads)
        groups.add(target, threads[taken])
        groups.add(at + 1, threads[~taken])
    return jump


def leave(kernel, one, taken_by):
    return lambda run, groups, at, threads: groups.add(at + 1, threads[~taken_by(run.frame, threads)])


def barrier(kernel, one, taken_by):
    if one.predicate:
        raise Fault('a barrier with a predicate')
    return lambda run, groups, at, threads: run.parked.add(at, threads)


JUMPS = {'bra': branch, 'ret': leave, 'exit': leave, 'bar': barrier, 'barrier': barrier}
INSTRUCTIONS = {
    'abs': computes(np.abs), 'activemask': whole_warps, 'add': computes(np.add), 'and': computes(np.bitwise_and),
    'atom': atomic, 'bfe': extract, 'bfi': computes(insert_bits, None, None, 'u32', 'u32'), 'clz': computes(leading_zeros),
    'copysign': computes(lambda sign, x: np.copysign(x, sign)), 'cp': copy, 'cvt': cvt, 'cvta': to_generic,
    'div': computes(divide), 'ex2': computes(lambda x: np.exp2(f64(x)).astype(x.dtype)), 'fence': None, 'fma': by_op(fma),
    'ld': load, 'ldmatrix': load_matrices, 'lg2': computes(lambda x: np.log2(f64(x)).astype(x.dtype)), 'lop3': lop3,
    'mad': multiply_add, 'max': computes(np.fmax), 'membar': None, 'min': computes(np.fmin),
    'mma': multiply_matrices, 'mov': move, 'mul': multiply, 'neg': computes(np.negative), 'not': computes(np.invert),
    'or': computes(np.bitwise_or), 'popc': computes(ones), 'prmt': computes(permute), 'rcp': computes(lambda x: (1 / x).astype(x.dtype)),
    'rem': computes(remainder), 'rsqrt': computes(lambda x: (1 / np.sqrt(x)).astype(x.dtype)), 'selp': select, 'setp': compare,
    'shf': funnel, 'shfl': shuffle, 'shl': computes(shift_left, None, 'u32'), 'shr': computes(shift_right, None, 'u32'),
    'sqrt': computes(np.sqrt), 'st': store, 'sub': computes(np.subtract), 'tanh': computes(np.tanh), 'vote': vote,
    'xor': computes(np.bitwise_xor),
}


def predicated(kernel, one, run):
    """Run for those threads only whose predicate is true."""
    if not one.predicate:
        return run
    holds = getter(kernel, ('!' if one.inverted else '') + one.predicate, 'pred')

    def some(frame, act):
        true = holds(frame, act)
        if true.all():
            run(frame, act)
        elif true.any():
            run(frame, frame.number[act][true])
    return some


def taken(kernel, one):
    """f(frame, threads): which of them a branch takes."""
    if not one.predicate:
        return lambda frame, threads: np.ones(len(threads), bool)
    return getter(kernel, ('!' if one.inverted else '') + one.predicate, 'pred')


def compile_instruction(kernel, one):
    name = one.op[0]
    made = types.SimpleNamespace(text=one.text, jump=None, run=None)
    try:
        if one.op[:2] == ('bar', 'warp'):
            made.run = predicated(kernel, one, whole_warps(kernel, one.op, one.args))
        elif name in JUMPS:
            made.jump = JUMPS[name](kernel, one, taken(kernel, one))
        elif INSTRUCTIONS[name] is None:
            made.run = lambda frame, act: None
        else:
            made.run = predicated(kernel, one, INSTRUCTIONS[name](kernel, one.op, one.args))
    except KeyError as what:
        made.run = unknown(what)
    return made


def unknown(what):
    """Rare paths, such as the cosine of huge angles, are allowed to have such an instruction as long as none runs it."""
    text = f'unknown to the simulator: {what}'

    def run(frame, act):
        raise Fault(text)
    return run
