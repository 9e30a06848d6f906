"""Jobs as functions: `App`, its decorator, and the handles of enqueued jobs.

A function's signature defines the arguments of its jobs. `arguments` turns a call into a payload and a payload into a
call, and rejects misfits at both ends; `job` is the decorated function; `handle` is one enqueued job. Nothing here
claims or runs a job: the worker does, with the `Handler`s that an app makes of its functions.
"""
