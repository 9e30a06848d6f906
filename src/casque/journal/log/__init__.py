"""The log layout: a commit is one conditional create of the next numbered object.

A commit costs as much as its events, however deep the queue. `journal.py` appends and follows; `reader.py` only reads;
`register.py` is the head, the one object that changes; `snapshots.py` keeps opening quick and `collector.py` the bucket
small, both alongside the commits. Clocks are used only for fairness, never for correctness.
"""

from casque.journal.log.journal import LogJournal

__all__ = ["LogJournal"]
