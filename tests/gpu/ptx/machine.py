"""Runs kernels of PTX: all threads of some blocks at once, each register being an array with an element per thread.

Threads that are at the same instruction form a group. The group at the lowest address runs until it branches, ends, or
meets the next group: so threads that took different ways meet again where the ways do. At a barrier threads wait until
all others of their block have come. Warps with odd numbers run as far as they can before the others, in the next launch
after them, so that a barrier that is missing between two warps may show."""
import numpy as np

from instructions import SHARED_WINDOW, compile_instruction
from memory import ALLOCATED, WRITTEN, Fault, Memory

ALL = slice(None)
WARP = 32
THREADS = 8192    # at once, or one block
ADVANCES = 10**6  # more of one kernel's groups count as a loop without an end


class Frame:
    """The state of the threads that run together. Instructions work on it, for `act`, the threads that take part: an
    array of increasing numbers, or ALL."""

    def __init__(self, machine, kernel, grid, block, blocks, dynamic, parameters):
        self.kernel, self.grid, self.block = kernel, grid, block
        self.threads = block[0] * block[1] * block[2]  # of a block
        self.n = self.threads * len(blocks)
        self.number = np.arange(self.n)
        self.block_of = self.number // self.threads
        self.registers = [None] * len(kernel.registers)
        self.global_, self.base = machine.global_, machine.base
        self.parameters = Memory('parameter', parameters, WRITTEN)
        self.place_variables(machine, dynamic, len(blocks))
        self.special = self.special_registers(np.asarray(blocks))
        self.copies = []                              # cp.async on its way: (threads, group of each, arrival)
        self.committed = np.zeros(self.n, 'i8')       # groups of cp.async of each thread

    def place_variables(self, machine, dynamic, blocks):
        """Addresses of variables; shared memory for each block, local memory for each thread."""
        self.symbols = dict(machine.addresses)
        ends = {'shared': 0, 'local': 0}
        unsized = []
        for name, variable in [*machine.module.variables.items(), *self.kernel.variables.items()]:
            if variable.space not in ends:
                continue
            if not variable.bytes:
                unsized.append(name)  # dynamic shared memory comes last
                continue
            begin = -(-ends[variable.space] // variable.align) * variable.align
            self.symbols[name] = begin
            ends[variable.space] = begin + variable.bytes
        shared = -(-ends['shared'] // 128) * 128
        self.symbols.update(dict.fromkeys(unsized, shared))
        self.shared_bytes = shared + dynamic
        self.shared_stride = -(-self.shared_bytes // 128) * 128 + 128
        self.local_stride = -(-ends['local'] // 16) * 16 + 16
        self.local_bytes = ends['local']
        self.shared = self.areas('shared', blocks, self.shared_stride, self.shared_bytes)
        self.local = self.areas('local', self.n, self.local_stride, self.local_bytes)

    @staticmethod
    def areas(name, count, stride, size):
        """Memory of which each block or thread has `size` bytes."""
        memory = Memory(name, np.full(stride * count, 0xff, 'u1'))
        memory.state.reshape(count, stride)[:, :size] = ALLOCATED
        return memory

    def special_registers(self, blocks):
        x, y, _ = self.block
        thread, block = self.number % self.threads, blocks[self.block_of]
        values = {'%tid': (thread % x, thread // x % y, thread // x // y),
                  '%ctaid': (block % self.grid[0], block // self.grid[0] % self.grid[1],
                             block // self.grid[0] // self.grid[1]),
                  '%ntid': tuple(np.full(self.n, size) for size in self.block),
                  '%nctaid': tuple(np.full(self.n, size) for size in self.grid)}
        found = {f'{name}.{axis}': value.astype('u4') for name, three in values.items() for axis, value in zip('xyz', three)}
        found['%laneid'] = (thread % WARP).astype('u4')
        return found

    def place(self, space, at, act):
        """The memory of a space, and where the threads' addresses are in it."""
        if space == 'param':
            return self.parameters, at
        if space == 'shared' or (space is None and (at >= SHARED_WINDOW).all()):
            at = at - SHARED_WINDOW if space is None else at
            self.inside('shared', at, self.shared_bytes)
            return self.shared, at + self.block_of[act] * self.shared_stride
        if space == 'local':
            self.inside('local', at, self.local_bytes)
            return self.local, at + self.number[act] * self.local_stride
        return self.global_, at - self.base

    def inside(self, name, at, end):
        wrong = (at < 0) | (at >= end)
        if wrong.any():
            raise Fault(f'{name} address {at[wrong][0]:#x} out of bounds')

    def warps(self, act, what):
        """The threads' numbers, a row for each warp; a fault if not all lanes of a warp take part."""
        threads = self.number[act]
        if len(threads) % WARP == 0:
            rows = threads.reshape(-1, WARP)
            if (rows[:, 0] % WARP == 0).all() and (rows[:, -1] - rows[:, 0] == WARP - 1).all():
                return rows
        raise Fault(f'{what} by some threads of a warp')


class Groups:
    """Threads that wait to run, by the address of their next instruction."""

    def __init__(self):
        self.at = {}

    def add(self, address, threads):
        if len(threads):
            other = self.at.get(address)
            self.at[address] = threads if other is None else np.union1d(other, threads)

    def take_first(self):
        """(address, threads, address of the next group)"""
        address = min(self.at)
        threads = self.at.pop(address)
        return address, threads, min(self.at, default=1 << 60)


class Run:
    """The threads of a frame, from the first instruction to the last."""

    def __init__(self, frame, code, crews):
        self.frame, self.code, self.crews = frame, code, crews
        self.parked = Groups()
        self.left = ADVANCES

    def all(self):
        waiting = {0: self.frame.number}
        while waiting:
            for crew in self.crews:
                groups = Groups()
                for address, threads in waiting.items():
                    groups.add(address, threads[crew[threads]])
                while groups.at:
                    self.advance(groups)
            waiting = self.release()

    def release(self):
        """Let all threads pass that are at a barrier. All have come that will."""
        parked, self.parked = self.parked.at, Groups()
        came = np.zeros(self.frame.n // self.frame.threads, 'i8')
        for address, threads in parked.items():
            blocks, count = np.unique(self.frame.block_of[threads], return_counts=True)
            if (count != self.frame.threads).any():
                raise Fault(f'{self.frame.kernel.name}: a barrier that not all threads of a block reach')
            came[blocks] += 1
        return {address + 1: threads for address, threads in parked.items()}

    def advance(self, groups):
        self.left -= 1
        if not self.left:
            raise Fault(f'{self.frame.kernel.name} does not end')
        address, threads, stop = groups.take_first()
        act = ALL if len(threads) == self.frame.n else threads
        while address < stop:
            if address >= len(self.code):
                return
            one = self.code[address]
            try:
                if one.jump:
                    one.jump(self, groups, address, threads)
                    return
                one.run(self.frame, act)
            except Fault as fault:
                raise Fault(f'{fault}, in {self.frame.kernel.name}: {one.text}') from None
            address += 1
        groups.add(address, threads)


class Machine:
    """Runs the kernels of one module on a GPU's memory, whose first byte is address `base` for whoever launches. The
    module's variables are placed from index `at` on."""

    def __init__(self, module, memory, base, at):
        self.module, self.global_, self.base = module, memory, base
        self.code = {}
        self.launches = 0
        self.place_variables(at)

    def place_variables(self, at):
        """Zero unless the module says otherwise."""
        self.addresses = {}
        for name, variable in self.module.variables.items():
            if variable.space in ('global', 'const'):
                at = -(-at // 256) * 256
                self.global_.data[at:at + variable.bytes] = np.frombuffer(variable.data.ljust(variable.bytes, b'\0'), 'u1')
                self.global_.mark(at, at + variable.bytes, WRITTEN)
                self.addresses[name] = at + self.base
                at += variable.bytes
        self.end = at

    def launch(self, name, grid, block, dynamic, parameters):
        kernel = self.module.kernel(name)
        if name not in self.code:
            self.code[name] = [compile_instruction(kernel, one) for one in kernel.code]
        self.launches += 1
        threads, blocks = block[0] * block[1] * block[2], grid[0] * grid[1] * grid[2]
        step = max(1, THREADS // threads)
        for first in range(0, blocks, step):
            some = range(first, min(first + step, blocks))
            frame = Frame(self, kernel, grid, block, some, dynamic, parameters)
            Run(frame, self.code[name], self.crews(frame)).all()

    def crews(self, frame):
        """Masks of the threads that run first, and of those that run after them."""
        if frame.threads <= WARP:
            return [np.ones(frame.n, bool)]
        odd = frame.number % frame.threads // WARP % 2 == self.launches % 2
        return [odd, ~odd]
