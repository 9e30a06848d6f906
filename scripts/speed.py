"""How fast an interpreter is: prints the milliseconds of a small piece of work, and the interpreter's own path.

`scripts/setup` runs it with each Python that it finds. It has to run on any of them, also on old ones. How a Python was
compiled cannot be read off reliably (Debian's says nothing of its optimisations), so it is measured.
"""

import os
import sys
import time

ROUNDS = 7


class Item:
    def __init__(self, number):
        self.number = number

    def hashed(self):
        return self.number * 7 % 1009


def work():
    table = {}
    for number in range(10000):
        key = Item(number).hashed()
        table[key] = table.get(key, 0) + len(str(number))
    return sorted(table.items(), key=lambda entry: (entry[1], entry[0]))


def measure():
    """The best of several rounds, in CPU time: a busy machine must not decide."""
    best = None
    for _ in range(ROUNDS):
        begun = time.process_time()
        work()
        took = time.process_time() - begun
        best = took if best is None else min(best, took)
    return int(best * 1000000)


if __name__ == "__main__":
    if sys.version_info < (3, 11) or sys.implementation.name != "cpython":
        sys.exit(1)
    print(measure(), os.path.realpath(sys.executable))
