"""Many queues as one: a ring of shards, each of them a log with its own commits.

A zone lives in one shard, chosen by its hash; jobs without a zone are spread. A ring that grows or shrinks moves
nothing: an existing zone stays in its shard until it runs empty, and comes back where the new size puts it. Each shard
knows which zones it holds, and refuses jobs that belong elsewhere: so a zone is never in two shards, whatever a caller
believes. See docs/explanation/the-ring.md.

Nothing here knows where a shard is stored: the code that opens a ring passes in how to open its shards.
"""
