"""Memory of a GPU that knows what has been written: reads of anything else, accesses outside of what was allocated, and
addresses that are not multiples of the access's size are faults."""
import numpy as np

NONE, ALLOCATED, WRITTEN = 0, 1, 3  # of each byte


class Fault(Exception):
    """A kernel did what a GPU would refuse, or what has no defined result."""


class Memory:
    """The bytes of one space. `name` is for messages. Addresses are indices into `data`."""

    def __init__(self, name, data, state=NONE):
        self.name = name
        self.data = data
        self.state = np.full(len(data), state, 'u1') if state else np.zeros(len(data), 'u1')
        self.words = {size: data.view(f'u{size}') for size in (1, 2, 4, 8)}
        self.states = {size: self.state.view(f'u{size}') for size in (1, 2, 4, 8)}

    def mark(self, begin, end, state):
        self.state[begin:end] = state

    def every(self, size, state):
        """A word whose bytes are all `state`."""
        return int.from_bytes(bytes([state]) * size, 'little')

    def check(self, at, size, count):
        """Each access is `count` words of `size` bytes at addresses `at`: the index of the first word."""
        bytes_ = size * count
        wrong = at % bytes_ != 0
        if wrong.any():
            raise Fault(f'misaligned {self.name} address {at[wrong][0]:#x} for {bytes_} bytes')
        wrong = (at < 0) | (at + bytes_ > len(self.data))
        if wrong.any():
            raise Fault(f'{self.name} address {at[wrong][0]:#x} out of bounds')
        return at // size

    def load(self, at, size, count=1):
        """Words of unsigned integers: a list of `count` arrays."""
        first = self.check(at, size, count)
        found = []
        for i in range(count):
            state = self.states[size][first + i]
            if not (state == self.every(size, WRITTEN)).all():
                self.complain(state, size, 'uninitialised')
            found.append(self.words[size][first + i])
        return found

    def store(self, at, size, values):
        first = self.check(at, size, len(values))
        allocated = self.every(size, ALLOCATED)
        for i, value in enumerate(values):
            state = self.states[size][first + i]
            if not (state & allocated == allocated).all():
                self.complain(state, size, 'out of bounds')
            self.words[size][first + i] = value
            self.states[size][first + i] = self.every(size, WRITTEN)

    def load_bytes(self, at, count):
        """The same for bytes at any addresses."""
        return [self.load(at + i, 1)[0] for i in range(count)]

    def complain(self, states, size, what):
        allocated = self.every(size, ALLOCATED)
        outside = not (states & allocated == allocated).all()
        raise Fault(f'{self.name} memory: {"out of bounds" if outside else what}')
