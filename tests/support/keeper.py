"""Runs one server and takes it away again, whatever becomes of the test run that asked for it.

    python -I -S keeper.py DIRECTORY COMMAND...

The parent holds the other end of stdin. When that closes (an orderly end, or the kernel closing the files
of a killed process) the server's process group is killed and DIRECTORY removed. A handler in the parent
could not do this: nothing runs in a process that was killed with -9. Stdlib only: it is run as a plain
file.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    # For the case that the keeper itself is killed. Linux only; elsewhere stdin has to do.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    directory, *command = sys.argv[1:]
    with Path(directory, "output.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 -- this process has one thread
        )
    try:
        while os.read(0, 4096):
            pass
    finally:
        try:
            os.killpg(server.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        server.wait()
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
