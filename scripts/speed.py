"""Print how many microseconds this interpreter needs for a small benchmark, and its path. Exit with 1 if it is too old.

`scripts/setup` runs this with each Python that it finds, old ones too. The build flags do not say how fast a Python is:
Debian's optimised build does not list its optimisations. So it is measured.
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
    """Return the best of several rounds, in CPU time: other load on the machine must not decide."""
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
