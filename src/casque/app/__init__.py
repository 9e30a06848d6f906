"""Assembles a broker, its queue and its servers: what `casque serve` runs.

The one place where concrete parts meet. A queue has one broker that leads it and others that stand by (`server.py`); a
ring has brokers that share its shards and each answer for all of them (`ring.py`).
"""

from casque.app.ring import Peers
from casque.app.server import BrokerServer, ServeOptions

__all__ = ["BrokerServer", "Peers", "ServeOptions"]
