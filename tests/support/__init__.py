"""What several kinds of tests need, and benchmarks and chaos runs too: no tests of its own, and no part of the wheel.

- `servers.py`: real storage servers on loopback, which `keeper.py` takes away again. `gcs_shim.py` stands before one of
  them.
- `proxy.py`: an HTTP proxy that makes a server slow and unreliable. `http1.py`: the messages that pass through it.
- `cloud_suite.py`: what every cloud store has to do beyond `StoreSuite`.
- `over_grpc.py`: a gRPC server before a host, and its client.
"""
