"""`casque ...` that ends with its parent: when standard input is closed, it stops as if by SIGTERM.

A demo or a `casque worker --reload` that is killed must not leave brokers and workers behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from casque.cli.main import app

LAST_WORDS_S = 10.0


def hold() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(LAST_WORDS_S)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=hold, name="casque leash", daemon=True).start()
    app(sys.argv[1:], prog_name="casque")
