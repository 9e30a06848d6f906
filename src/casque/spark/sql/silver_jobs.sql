-- silver/jobs: one finish of a job; a dead job that is retried can finish again
-- unique: shard, position, id
-- time: finished_at
-- date date: the day on which it finished, in UTC; a later one if any of its times is later, because clocks differ
-- shard int: which shard of a ring; 0 of a queue without shards
-- position bigint: the commit that finished it
-- id string: the job
-- entrypoint string: which handler it was for
-- zone string: whose job it was; null for none
-- state string: `done`, `dead` or `cancelled`
-- priority bigint: lower goes first
-- key string: its unique key, if it had one
-- payload_bytes bigint: the size of its payload; payloads themselves stay in the archive
-- sequence bigint: its number in the order of enqueueing
-- token bigint: of its last lease; 0 if it was never claimed
-- attempts int: how often it was tried
-- crashes int: claims that ended in a crash and do not count as attempts
-- max_attempts bigint: how often it could be tried; null for no limit
-- worker string: who had it when it finished; null if no worker had it
-- created_at timestamp: when it was enqueued
-- run_at timestamp: when it was meant to run, if that was said
-- first_due_at timestamp: when it first could run. If it was snoozed or moved before its only attempt, when that ended. If an attempt failed, `created_at` or `run_at`, because a snooze before that is not kept; its first claim if `run_at` is later or it was revived
-- first_claimed_at timestamp: when its first attempt began; null if there was none, or if it is not known any more
-- claimed_at timestamp: when it was claimed last
-- due_at timestamp: when it last became due, after a failure for example
-- finished_at timestamp: when it finished
-- error string: of the last attempt that failed; or why its worker cancelled it
-- error_class string: the class of the error: the text before its first colon, without numbers and ids if it is no name of a class
-- revived boolean: a dead job that was given new attempts: it was counted as enqueued before; false of one that failed 50 times since
-- waiting boolean: no worker had it when it finished
-- scheduled_ms bigint: from `created_at` to `first_due_at`; null if that is not known, and of a revived one
-- wait_ms bigint: from `first_due_at` to `first_claimed_at`; null if that is not known
-- run_ms bigint: all attempts together, as far as they are known
-- pause_ms bigint: after the first claim, but not running: waiting for another attempt; 0 if the first claim is not known
-- total_ms bigint: from `created_at` to `finished_at`
-- result_bytes bigint: the size of its result; null for none
-- max_crashes bigint: how often its worker could crash before it was dead; null: a crash is a failed attempt
-- fifo boolean: whether its zone hands out its jobs strictly in order
-- tags array<string>: its tags; null for none
-- expires_ms bigint: how long after its enqueue it may be claimed; null if it does not expire
-- tried array<struct<claimed_at:timestamp,ended_at:timestamp,outcome:string,worker:string,token:bigint,error:string>>: its failed attempts since it was enqueued or revived, the last 50 at most
-- expect known_state: state IN ('done', 'dead', 'cancelled')
-- expect named: id IS NOT NULL AND entrypoint IS NOT NULL
-- expect dated: date IS NOT NULL AND created_at IS NOT NULL AND finished_at IS NOT NULL
-- expect spans_are_not_negative: run_ms >= 0 AND pause_ms >= 0 AND total_ms >= 0 AND coalesce(wait_ms, 0) >= 0
-- expect tries_were_counted: size(tried) <= attempts + crashes
WITH counted AS (
  -- `lost`: claims of this life that failed. The archive keeps the attempts of earlier lives too.
  SELECT *, attempts + crashes - IF(waiting, 0, 1) AS lost, coalesce(tries, array()) AS every FROM archive
), lives AS (
  SELECT *, IF(lost > 0, slice(every, greatest(size(every) - lost, 0) + 1, lost), array()) AS tried,
    size(every) > greatest(lost, 0) AS revived, greatest(created_at, run_at) AS asked_at
  FROM counted
), claimed AS (
  SELECT *,
    CASE WHEN size(tried) > 0 AND size(tried) >= lost THEN tried[0].claimed_at
         WHEN lost <= 0 AND NOT waiting THEN claimed_at END AS first_claimed_at
  FROM lives
), due AS (
  -- `late`: when a revival with several attempts came due is not kept, nor when a job did that was moved after it had
  -- failed. They count from their first claim on.
  SELECT *, size(tried) > 0 AND (revived OR coalesce(asked_at > first_claimed_at, false)) AS late,
    CASE WHEN late THEN first_claimed_at
         WHEN revived THEN due_at
         WHEN lost <= 0 THEN greatest(asked_at, due_at)
         ELSE asked_at END AS first_due_at
  FROM claimed
), spans AS (
  SELECT *,
    aggregate(tried, 0L, (sum, one) ->
        sum + coalesce(greatest(unix_millis(one.ended_at) - unix_millis(one.claimed_at), 0L), 0L))
      + IF(waiting, 0L, coalesce(span_ms(claimed_at, finished_at), 0L)) AS run_ms
  FROM due
)
SELECT *,
  to_date(greatest(finished_at, created_at, claimed_at)) AS date,
  error_class(error) AS error_class,
  IF(revived OR late, NULL, span_ms(created_at, first_due_at)) AS scheduled_ms,
  IF(late, NULL, span_ms(first_due_at, first_claimed_at)) AS wait_ms,
  greatest(coalesce(span_ms(first_claimed_at, finished_at), 0L) - run_ms, 0L) AS pause_ms,
  span_ms(created_at, finished_at) AS total_ms
FROM spans
