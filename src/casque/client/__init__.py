"""What users call.

`Queue` is the one class for everything; `BrokerQueue` and `DirectQueue` are the small API on a single object;
`SyncQueue` is for people without asyncio. Input is checked here, at the border, and typed payloads become bytes here.
"""
