"""A program that takes a run and keeps it: `holding.py RUN [fork]` says so and waits until its input ends.

With `fork` a child of it says so, and waits as well.
"""

import os
import sys

from windrow.store.run import RunFolder

run = RunFolder.open(sys.argv[1])
owner = os.getpid()
if len(sys.argv) == 2 or os.fork() == 0:
    os.write(1, f"{owner}\n".encode())
sys.stdin.read()
if os.getpid() == owner:
    run.close()
