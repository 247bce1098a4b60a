"""Starts a test program that was linked with cudart.c, and answers its questions: the GPU that it believes to have."""
import mmap
import os
import re
import socket
import subprocess

import numpy as np

from machine import Machine
from memory import ALLOCATED, NONE, WRITTEN, Fault, Memory

BYTES = 1 << 28
VARIABLES = BYTES - (1 << 20)  # where cudart.c leaves room for them


class Gpu:
    """A GPU that holds several modules. `ran` collects the names of kernels."""

    def __init__(self, modules, mapped):
        self.modules = modules
        self.global_ = Memory('global', np.frombuffer(mapped, 'u1'))
        self.sizes_of = {}
        self.ran, self.faults = set(), []

    def memory(self, base, _):
        self.base = int(base)
        self.machines, at = [], VARIABLES
        for module in self.modules:
            self.machines.append(Machine(module, self.global_, self.base, at))
            at = self.machines[-1].end

    def mark(self, at, size, state):
        begin = int(at) - self.base
        self.global_.mark(begin, begin + int(size), state)
        return 'ok'

    def allocated(self, at, size):
        self.sizes_of[at] = size
        return self.mark(at, size, ALLOCATED)

    def free(self, at, _):
        return self.mark(at, self.sizes_of.pop(at), NONE)

    def poisoned(self, at, size):
        return self.mark(at, size, ALLOCATED)

    def written(self, at, size):
        return self.mark(at, size, WRITTEN)

    def find(self, kernel):
        for machine in self.machines:
            if kernel in machine.module.kernels:
                return machine
        raise Fault(f'no kernel {kernel} in the PTX')

    def sizes(self, kernel):
        return ' '.join(str(size) for _, size in self.find(kernel).module.kernel(kernel).parameters.values())

    def launch(self, kernel, *words):
        numbers, data = [int(word) for word in words[:7]], bytes.fromhex(words[7] if len(words) > 7 else '')
        machine = self.find(kernel)
        self.ran.add(kernel)
        machine.launch(kernel, numbers[:3], numbers[3:6], numbers[6], self.place(machine.module.kernel(kernel), data))
        return 'ok'

    def place(self, kernel, data):
        """Parameters as the kernel reads them, from those sent one after the other."""
        found = np.zeros(-(-kernel.parameter_bytes // 16) * 16 + 16, 'u1')
        for at, size in kernel.parameters.values():
            found[at:at + size] = np.frombuffer(data[:size], 'u1')
            data = data[size:]
        return found

    def answer(self, line):
        what, *words = line.split()
        asked = {'memory': self.memory, 'allocated': self.allocated, 'free': self.free, 'written': self.written,
                 'poisoned': self.poisoned, 'sizes': self.sizes, 'launch': self.launch}[what]
        try:
            return asked(*words)
        except Fault as fault:
            self.faults.append(re.sub(r'\s+', ' ', str(fault)))
            return self.faults[-1]


def run(program, modules, environment):
    """(exit status, output, names of the kernels that ran, faults)"""
    memory = os.memfd_create('device')
    os.ftruncate(memory, BYTES)
    ours, theirs = socket.socketpair()
    with mmap.mmap(memory, BYTES) as mapped, ours:
        gpu = Gpu(modules, mapped)
        with theirs:
            child = subprocess.Popen([program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     text=True, errors='replace', pass_fds=[theirs.fileno(), memory],
                                     env={**os.environ, **environment, 'SHERD_PTX_SOCKET': str(theirs.fileno()),
                                          'SHERD_PTX_MEMORY': str(memory)})
        try:
            talk(gpu, ours)
            output = child.communicate()[0]
        finally:
            child.kill()
            child.wait()
            os.close(memory)
        ran, faults = gpu.ran, gpu.faults
        del gpu
    return child.returncode, output, ran, faults


def talk(gpu, connection):
    with connection.makefile('rw') as lines:
        for line in lines:
            answer = gpu.answer(line)
            if answer is not None:
                lines.write(answer + '\n')
                lines.flush()
