"""Jobs as functions: `App`, its decorator, and what comes back when one is enqueued.

A function's signature says what its jobs carry. `arguments` turns a call into a payload and a payload into a call, and
refuses what does not fit at both ends; `job` is the decorated function; `handle` is one enqueued job. Nothing here
claims or runs a job: the worker does, with the `Handler`s that an app makes of its functions.
"""
