"""Real processes that are killed, stopped and woken up by the second, and the account they are held to afterwards.

`python -m simulation.chaos --minutes 5` runs producers, workers, operators and stewards on one queue: behind
brokers (`casque serve`), without any, and both on a ring of shards. They record every call, its start, its end and its
answer. When the faults are over and the queue is empty, the record alone is checked (`simulation.history`), and the
log is compared with the archive.

- `fleet.py`: the processes. `caller.py`: their recorded calls. `producer.py`, `worker.py`, `operator.py`,
  `steward.py`, `broker.py`: what they run. `shifted_clock.py`: wall clocks that are wrong and step.
- `tormentor.py`: the faults, by a seed. `chronicle.py`: follows the log and checks it as it grows.
- `ledger.py`: figures while it runs. `verdict.py`: log against archive. `run.py`: all of it in order. `display.py`: for
  people.
- `failover.py`: how long it takes until the next leader answers.
"""
