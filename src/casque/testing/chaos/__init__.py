"""Real processes that are killed, stopped and woken up by the second, and the account they are held to afterwards.

`python -m casque.testing.chaos --minutes 5` runs brokers (`casque serve`), workers and producers on one queue. All of
them write down in a diary of their own what they were told. When the faults are over and the queue is empty, the
diaries, the log and the archive are compared: nothing that was acknowledged may be lost, nothing may be there twice,
and nobody may have finished a job whose lease was somebody else's.

- `fleet.py`: the processes. `diary.py`: what they write down. `producer.py`, `worker.py`, `broker.py`: what they run.
- `tormentor.py`: the faults, by a seed. `chronicle.py`: follows the log and checks it as it grows.
- `verdict.py`: the comparison. `run.py`: all of it in order. `display.py`: for people.
- `failover.py`: how long it takes until the next leader answers.
"""
