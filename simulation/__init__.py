"""What developers hold casque against, and users never install: the wheel has none of it.

- `world/`: the real code in a world of virtual time, faults included, that one seed decides (`make sim`).
- `chaos/`: real processes that are killed, frozen and woken up by the second (`make chaos`).
- `history/`: a checker for the calls that such processes record. It imports nothing of casque.
- `known_history.py`: some hours of a queue whose every number is known, for what computes tables and reports.

Run from the root of the repository: nothing installs this package. casque never imports it (import-linter checks).
"""
