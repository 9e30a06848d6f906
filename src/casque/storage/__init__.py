"""Objects by key, changed only by conditional writes.

What lives here: the port and its adapters (memory, local files, S3, GCS, Azure), and the single-object classes
with `read` and `write`. Nothing here knows what a job is, and nothing here retries a conditional write: a hidden
retry turns one's own success into a lost race.
"""
