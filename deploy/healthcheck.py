#!/opt/casque/bin/python
"""Exit with 0 if CASQUE_HEALTH_URL answers, by default the /healthz of a broker in this container.

An address of this machine needs no certificate that anyone vouches for: nothing secret is sent, and nothing is believed
but that the process answers.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request

URL = os.environ.get("CASQUE_HEALTH_URL", "http://127.0.0.1:7701/healthz")
LIMIT_S = 2.5


def main() -> int:
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(URL, timeout=LIMIT_S, context=unverified) as answer:
            return 0 if answer.status == 200 else 1
    except (OSError, urllib.error.URLError, ValueError) as error:
        print(f"{URL}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
