"""Django and FastAPI, for the examples and pages about them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "web-packages"


def web_packages() -> dict[str, str]:
    """The environment that finds them: this one, if it has them; otherwise they are fetched when first needed."""
    if all(find_spec(name) is not None for name in ("django", "django_tasks", "fastapi")):
        return {}
    place = subprocess.run([SCRIPT], env={**os.environ, "PYTHON": sys.executable}, stdout=subprocess.PIPE, check=True)
    paths = [place.stdout.decode().strip(), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
