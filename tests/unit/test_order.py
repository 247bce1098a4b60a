#!/usr/bin/env python3
"""The order of memory between threads and processes: all interleavings of small copies of Sherd's protocols, on a model of C11's
release and acquire, with data races by vector clocks. QEMU and x86 keep more order than AArch64 may, so no run on them finds a
missing barrier. Each protocol must be right as it is written, and wrong with one order less. Prints TAP.

The protocols, with the C that they copy: `levels`, src/comm/mpi/levels.c; `ring`, io/move/ring.c; `segment`,
src/comm/mpi/algo_segment.c; `note`, sh_comm_note() of src/comm/comm.c. Change both together.
"""
import sys

RELAXED, ACQUIRE, RELEASE, BOTH = 'relaxed', 'acquire', 'release', 'both'


class Wrong(Exception):
    """A data race, or threads that wait for ever."""


def later(a, b):
    """The later of two views or clocks, place by place."""
    return tuple(max(x, y) for x, y in zip(a, b))


def put(values, at, value):
    return values[:at] + (value,) + values[at + 1:]



class Model:
    """Threads are lists of steps: ('load', place, order, condition) waits for a value; ('store', place, value, order);
    ('add', place, value, order); ('fence',); ('read', cell) and ('write', cell) of plain memory.

    A place has a history of messages (value, view, clock); a load may see any that its thread's view does not exclude. A fence
    is sequentially consistent."""

    def __init__(self, threads):
        self.threads = threads
        self.places = sorted({step[1] for steps in threads for step in steps if step[0] in ('load', 'store', 'add')})

    def start(self):
        n, none = len(self.threads), (0,) * len(self.places)
        clock = (0,) * n
        return (tuple(((0, none, clock),) for _ in self.places),
                tuple((0, none, none, none, put(clock, i, 1), clock, clock) for i in range(n)), (), none, clock)

    def load(self, state, t, step):
        memory, threads, cells, fence_view, fence_clock = state
        at, (now, view, seen, kept, clock, seen_clock, kept_clock) = self.places.index(step[1]), threads[t]
        for i in range(view[at], len(memory[at])):
            value, its_view, its_clock = memory[at][i]
            if not step[3](value):
                continue
            new_view, new_clock = put(view, at, max(view[at], i)), clock
            if step[2] in (ACQUIRE, BOTH):
                new_view, new_clock = later(new_view, its_view), later(clock, its_clock)
            thread = now + 1, new_view, later(seen, its_view), kept, new_clock, later(seen_clock, its_clock), kept_clock
            yield memory, put(threads, t, thread), cells, fence_view, fence_clock

    def change(self, state, t, step):
        """A store or an addition; an addition takes over what the message before it carried."""
        memory, threads, cells, fence_view, fence_clock = state
        at, (now, view, seen, kept, clock, seen_clock, kept_clock) = self.places.index(step[1]), threads[t]
        i, value, order = len(memory[at]), step[2], step[3]
        old_view, old_clock = (0,) * len(self.places), (0,) * len(threads)
        view = put(view, at, i)
        if step[0] == 'add':
            old, old_view, old_clock = memory[at][-1]
            value += old
            if order in (ACQUIRE, BOTH):
                view, clock = later(view, old_view), later(clock, old_clock)
        carried, carried_clock = (view, clock) if order in (RELEASE, BOTH) else (put(kept, at, max(kept[at], i)), kept_clock)
        message = value, later(carried, old_view), later(carried_clock, old_clock)
        thread = now + 1, view, seen, kept, put(clock, t, clock[t] + 1), seen_clock, kept_clock
        yield put(memory, at, memory[at] + (message,)), put(threads, t, thread), cells, fence_view, fence_clock

    def fence(self, state, t, _):
        memory, threads, cells, fence_view, fence_clock = state
        now, view, seen, _, clock, seen_clock, _ = threads[t]
        view, clock = later(later(view, seen), fence_view), later(later(clock, seen_clock), fence_clock)
        thread = now + 1, view, seen, view, put(clock, t, clock[t] + 1), seen_clock, clock
        yield memory, put(threads, t, thread), cells, view, clock

    def plain(self, state, t, step):
        memory, threads, cells, fence_view, fence_clock = state
        thread, known = threads[t], dict(cells)
        clock, (writer, readers) = thread[4], known.get(step[1], ((t, 0), ()))
        others = [writer, *(readers if step[0] == 'write' else ())]
        if any(who != t and clock[who] < when for who, when in others):
            raise Wrong(f'thread {t}: a data race on {step[1]}')
        mine = t, clock[t]
        known[step[1]] = (mine, ()) if step[0] == 'write' else (writer, tuple(r for r in readers if r[0] != t) + (mine,))
        yield memory, put(threads, t, (thread[0] + 1, *thread[1:])), tuple(sorted(known.items())), fence_view, fence_clock

    def next_states(self, state):
        kinds = {'load': self.load, 'store': self.change, 'add': self.change, 'fence': self.fence, 'read': self.plain,
                 'write': self.plain}
        for t, steps in enumerate(self.threads):
            if state[1][t][0] < len(steps):
                step = steps[state[1][t][0]]
                yield from kinds[step[0]](state, t, step)

    def explore(self):
        """The number of states; raises Wrong."""
        seen = {self.start()}
        stack = list(seen)
        while stack:
            state = stack.pop()
            found = list(self.next_states(state))
            if not found and any(thread[0] < len(steps) for thread, steps in zip(state[1], self.threads)):
                raise Wrong('no thread can move')
            fresh = set(found) - seen
            seen |= fresh
            stack.extend(fresh)
        return len(seen)


def at_least(n):
    return lambda value: value >= n


def equal(n):
    return lambda value: value == n


def levels(give=RELEASE, see_given=ACQUIRE, take=RELEASE, see_taken=ACQUIRE, ranks=2, steps=4, rounds=2):
    """A slot of `rounds` is given again when all have taken it; two steps are under way, else `taken` is never waited for."""
    def of(rank):
        others = [o for o in range(ranks) if o != rank]

        def given(step):
            return ([('load', f'taken{o}', see_taken, at_least(step - rounds + 1)) for o in others]
                    + [('write', f'slot{rank}.{step % rounds}')] + [('store', f'given{rank}', step + 1, give)])

        def taken(step):
            return ([('load', f'given{o}', see_given, at_least(step + 1)) for o in others]
                    + [('read', f'slot{o}.{step % rounds}') for o in others] + [('store', f'taken{rank}', step + 1, take)])

        steps_of = [given(0), given(1)]
        for step in range(steps):
            steps_of += [taken(step)] + ([given(step + 2)] if step + 2 < steps else [])
        return sum(steps_of, [])

    return [of(rank) for rank in range(ranks)]


def ring(enter=ACQUIRE, add=BOTH, wait=ACQUIRE, leave=RELEASE, zero_first=True, producers=2, chunks=3, slots=2):
    """What the order must be at least; the C has sequential consistency in all four places."""
    def producer(q):
        return sum(([('load', f'round{c % slots}', enter, equal(c // slots)), ('write', f'slot{c % slots}.{q}'),
                     ('add', f'filled{c % slots}', 1, add)] for c in range(chunks)), [])

    def writer(c):
        reset = [('store', f'filled{c % slots}', 0, RELAXED), ('add', f'round{c % slots}', 1, leave)]
        return ([('load', f'filled{c % slots}', wait, equal(producers))] + [('read', f'slot{c % slots}.{q}') for q in range(producers)]
                + (reset if zero_first else reset[::-1]))

    return [producer(q) for q in range(producers)] + [sum(map(writer, range(chunks)), [])]


def segment(fence=True, ranks=2):
    """Fences around MPI's barrier, of which nothing is asked: it is relaxed here."""
    def barrier(n):
        around = [('fence',)] if fence else []
        return around + [('add', f'barrier{n}', 1, RELAXED), ('load', f'barrier{n}', RELAXED, equal(ranks))] + around

    return [[('write', f'part{rank}'), *barrier(0), *[('read', f'part{o}') for o in range(ranks)], *barrier(1), ('write', f'part{rank}')]
            for rank in range(ranks)]


def note(store=RELEASE, load=ACQUIRE):
    """A pointer to a text that is written before it is noted, and read by the thread that reports a stall."""
    return [[('write', 'text'), ('store', 'doing', 1, store)], [('load', 'doing', load, equal(1)), ('read', 'text')]]


PROTOCOLS = [
    ('levels', levels, [{name: RELAXED} for name in ('give', 'see_given', 'take', 'see_taken')]),
    ('ring', ring, [{name: RELAXED} for name in ('enter', 'add', 'wait', 'leave')] + [{'zero_first': False}]),
    ('segment', segment, [{'fence': False}]),
    ('note', note, [{'store': RELAXED}, {'load': RELAXED}]),
]


def judge(name, make, change):
    """A complaint if the protocol is wrong as it is written, or right with the change."""
    try:
        states = Model(make(**change)).explore()
    except Wrong as wrong:
        return [] if change else [f'{name}: {wrong}']
    print(f'# {name}: {states} states')
    return [f'{name} with {change} is not found'] if change else []


def main():
    cases = [(name, make, change) for name, make, changes in PROTOCOLS for change in [{}, *changes]]
    print(f'1..{len(cases)}')
    failed = 0
    for number, (name, make, change) in enumerate(cases, 1):
        wrong = judge(name, make, change)
        failed += bool(wrong)
        what = ', '.join(f'{key} {value}' for key, value in change.items())
        print(*(f'# {line}' for line in wrong), f"{'not ok' if wrong else 'ok'} {number} - {name}{': found with ' + what if what else ''}",
              sep='\n', flush=True)
    return int(failed != 0)


if __name__ == '__main__':
    sys.exit(main())
