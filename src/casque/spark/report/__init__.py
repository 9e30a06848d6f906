"""One page about a warehouse: what `casque report` writes.

`queries` asks Spark and answers with the frozen values of `figures`; everything after that is plain Python: `charts`
draws them as SVG, `page` puts them on one HTML page that needs nothing else, `making` does it all. Only `queries` and
`making` know Spark. Times are UTC throughout, as milliseconds, so that no time zone of a session, of a driver or of a
browser has a say.
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
