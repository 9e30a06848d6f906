"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path


def describe() -> dict[str, str]:
    return {
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {version(name)}" for name in ("msgspec", "uvloop", "obstore")),
        "files": f"{tempfile.gettempdir()} on {_file_system()}, 4 KiB written and fsynced in {_fsync_ms():.2f} ms",
    }


def load() -> str:
    """The load average over one minute. Above the number of cores, somebody else was working too."""
    return f"{os.getloadavg()[0]:.1f}"


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def _file_system() -> str:
    """The type of the mount that holds the temporary directory: fsync means little on a tmpfs."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "an unknown file system"
    where = Path(tempfile.gettempdir()).resolve()
    holding = [(point, kind) for point, kind in mounts if where.is_relative_to(point)]
    return max(holding, key=lambda mount: len(mount[0]), default=("", "an unknown file system"))[1]


def _fsync_ms() -> float:
    took: list[float] = []
    with tempfile.TemporaryFile() as file:
        for _ in range(25):
            begun = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), 0)
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begun)
    return statistics.median(took) * 1000
