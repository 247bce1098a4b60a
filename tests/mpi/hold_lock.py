#!/usr/bin/env python3
"""Hold the lock of a checkpoint folder as another job would, while a command runs: hold_lock.py LOCKFILE STATUS COMMAND...

Exits with 0 if the command ends with that status."""
import fcntl
import subprocess
import sys

with open(sys.argv[1], 'a+') as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX)
    lock.truncate(0)
    lock.write('host elsewhere, process 1, batch job 7\n')
    lock.flush()
    sys.exit(subprocess.run(sys.argv[3:]).returncode != int(sys.argv[2]))
