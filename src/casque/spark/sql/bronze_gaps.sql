-- bronze/gaps: one range of commits that bronze/events lacks, because the log had dropped them before they were read
-- unique: shard, first
-- time: noticed_at
-- date date: the day of `noticed_at`, in UTC
-- shard int: which shard of a ring; 0 of a queue without shards
-- first bigint: the first of these commits
-- last bigint: the last of them
-- noticed_at timestamp: when a run noticed it
SELECT to_date(noticed_at) AS date, *
FROM gaps
