"""How fast casque is, measured, side by side with jqueue 1.0.

`python -m benchmarks` prints tables and writes nothing. One module per section; every run with an event loop takes
place in a process of its own (`casque_driver`, `jqueue_driver`) and both sides are driven by the very same code in
`load`, which therefore imports nothing but the standard library.
"""
