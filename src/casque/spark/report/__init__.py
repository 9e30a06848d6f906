"""The HTML report about a warehouse, written by `casque report`.

`queries` asks Spark and returns the frozen values of `figures`; the rest is plain Python: `charts` draws them as SVG,
`page` puts them on one self-contained HTML page, `making` does it all. Only `queries` and `making` know Spark. Times
are UTC throughout, as milliseconds, so the time zone of a session, a driver or a browser does not matter.
"""

from __future__ import annotations

from casque.errors import NotInstalledError

try:
    from casque.spark.report.making import Report, build
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("pyspark", "pyarrow"):
        raise
    raise NotInstalledError(f"{error.name} is not installed", 'pip install "casque[spark]"') from error

__all__ = ["Report", "build"]
