"""Objects by key, changed only by conditional writes.

Holds the port and its adapters (memory, local files, S3, GCS, Azure), and the single-object classes with `read` and
`write`. Nothing here knows what a job is, and nothing here retries a conditional write: after a hidden retry, the
caller's own success looks like a lost race.
"""
