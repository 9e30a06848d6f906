"""The log layout: a commit is one conditional create of the next numbered object.

Its cost is that of its events, however deep the queue. `journal.py` appends and follows; `reader.py` only reads;
`register.py` is the head, the one object that changes; `snapshots.py` keeps opening quick and `collector.py` the bucket
small, both beside the commits. Nothing here trusts a clock with anything but courtesy.
"""

from casque.journal.log.journal import LogJournal

__all__ = ["LogJournal"]
