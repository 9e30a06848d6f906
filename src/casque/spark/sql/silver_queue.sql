-- silver/queue: one job that is in the queue as of the warehouse's position, dead ones too; replaced by each run
-- unique: shard, id
-- time: as_of
-- date date: the day of `as_of`, in UTC
-- as_of timestamp: the moment that the table describes
-- shard int: which shard of a ring; 0 of a queue without shards
-- id string: the job
-- entrypoint string: which handler it is for
-- zone string: whose job it is; null for none
-- state string: `ready`, `delayed`, `running` or `dead`
-- priority bigint: lower goes first
-- key string: its unique key, if it has one
-- payload_bytes bigint: the size of its payload
-- sequence bigint: its number in the order of enqueueing
-- token bigint: of its last lease; 0 if it was never claimed
-- attempts int: how often it was tried
-- crashes int: claims that ended in a crash and do not count as attempts
-- max_attempts bigint: how often it may be tried; null for no limit
-- worker string: who has it; null unless it is running
-- created_at timestamp: when it was enqueued
-- run_at timestamp: when it is meant to run, if that was said
-- first_due_at timestamp: when it first could run, or can; of a job that failed as in silver/jobs
-- first_claimed_at timestamp: when its first attempt began; null if there was none, or if it is not known any more
-- claimed_at timestamp: when it was claimed last
-- due_at timestamp: when it last became due
-- error string: of the last attempt that failed
-- error_class string: the class of the error: the text before its first colon, without numbers and ids if it is no name of a class
-- revived boolean: a dead job that was given new attempts: it was counted as enqueued before; false of one that failed 50 times since
-- max_crashes bigint: how often its worker may crash before it is dead; null: a crash is a failed attempt
-- fifo boolean: whether its zone hands out its jobs strictly in order
-- tags array<string>: its tags; null for none
-- expires_ms bigint: how long after its enqueue it may be claimed; null if it does not expire
-- tried array<struct<claimed_at:timestamp,ended_at:timestamp,outcome:string,worker:string,token:bigint,error:string>>: its failed attempts since it was enqueued or revived; null of a dead one, whose attempts are in silver/attempts
-- expect known_state: state IN ('ready', 'delayed', 'running', 'dead')
-- expect named: id IS NOT NULL AND entrypoint IS NOT NULL AND created_at IS NOT NULL
WITH counted AS (
  -- As in silver/jobs. The attempt of which a dead job died is the last of its tries.
  SELECT * EXCEPT (state), attempts + crashes - int(state IN ('running', 'dead')) AS lost,
    -- Each shard of a ring was read as of its own last commit.
    IF(state = 'delayed' AND due_at <= as_of, 'ready', state) AS state,
    slice(coalesce(tries, array()), 1, greatest(size(tries) - int(state = 'dead'), 0)) AS every
  FROM jobs CROSS JOIN run
), lives AS (
  SELECT *, IF(lost > 0, slice(every, greatest(size(every) - lost, 0) + 1, lost), array()) AS own,
    size(every) > greatest(lost, 0) AS revived, greatest(created_at, run_at) AS asked_at
  FROM counted
), claimed AS (
  SELECT *,
    CASE WHEN size(own) > 0 AND size(own) >= lost THEN own[0].claimed_at
         WHEN lost <= 0 AND state IN ('running', 'dead') THEN claimed_at END AS first_claimed_at
  FROM lives
)
SELECT *, to_date(as_of) AS date, error_class(error) AS error_class, IF(state = 'dead', NULL, own) AS tried,
  CASE WHEN size(own) > 0 AND (revived OR coalesce(asked_at > first_claimed_at, false))
         THEN coalesce(first_claimed_at, due_at)
       WHEN revived THEN due_at
       WHEN lost <= 0 THEN greatest(asked_at, due_at)
       ELSE asked_at END AS first_due_at
FROM claimed
