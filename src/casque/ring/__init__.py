"""Many queues as one: a ring of shards, each of them a log with its own commits.

A zone lives in one shard, which its hash decides; what has no zone is spread. A ring that grows or shrinks moves
nothing: a zone that is somewhere stays there until it runs empty, and comes back where the new size wants it. The
shards themselves know which zones they hold, and refuse what belongs elsewhere: so a zone is never in two of them,
whatever a caller believes. See docs/explanation/the-ring.md.

Nothing here knows where a shard comes from: whoever opens a ring brings along how to open its shards.
"""
