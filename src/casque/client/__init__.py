"""The public API.

`Queue` does everything; `BrokerQueue` and `DirectQueue` are the small API on a single object; `SyncQueue` is for code
without asyncio. Input is checked here, and typed payloads are encoded to bytes here.
"""
