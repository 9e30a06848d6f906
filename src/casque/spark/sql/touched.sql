-- The hours whose figures change. Every fact about a job is given its hour and a checksum; an hour is touched if the
-- sums of before and after differ. So a job that moved from the queue to the finished ones touches only the hours in
-- which something new happened to it, however old it is.
WITH known AS (
  SELECT 1 AS sign, entrypoint, zone, revived, created_at, least(first_due_at, first_claimed_at, finished_at) AS due_at,
    tried, IF(waiting, NULL, claimed_at) AS claimed_at, finished_at, worker, id, state, finished_at AS over_at
  FROM new_jobs
  UNION ALL
  SELECT sign, entrypoint, zone, revived, created_at, least(first_due_at, first_claimed_at),
    tried, IF(state = 'running', least(claimed_at, as_of), NULL), NULL, worker, NULL, NULL, as_of
  FROM (SELECT 1 AS sign, * FROM new_queue UNION ALL SELECT -1, * FROM old_queue) WHERE state <> 'dead'
), attempts AS (
  SELECT sign, entrypoint, zone, one.worker, coalesce(one.claimed_at, one.ended_at) AS claimed_at, one.ended_at,
    one.outcome, one.ended_at AS over_at FROM known LATERAL VIEW explode(tried) AS one
  UNION ALL
  SELECT sign, entrypoint, zone, worker, claimed_at, finished_at, state, over_at
  FROM known WHERE claimed_at IS NOT NULL
), facts AS (
  SELECT sign, created_at AS at, xxhash64('enqueued', entrypoint, zone, created_at, revived, due_at > created_at)
    AS fact FROM known
  UNION ALL
  SELECT sign, due_at, xxhash64('due', entrypoint, zone, due_at) FROM known WHERE due_at <= over_at
  UNION ALL
  SELECT sign, finished_at, xxhash64('finished', id, state) FROM known WHERE finished_at IS NOT NULL
  UNION ALL
  SELECT sign, ended_at, xxhash64('ended', entrypoint, zone, worker, claimed_at, ended_at, outcome)
  FROM attempts WHERE ended_at IS NOT NULL
  UNION ALL
  -- The hours of an attempt, each with the part of it that is over.
  SELECT sign, hour, xxhash64('ran', entrypoint, zone, worker, claimed_at, least(over_at, hour + INTERVAL 1 HOUR))
  FROM attempts LATERAL VIEW explode(sequence(date_trunc('HOUR', claimed_at),
    date_trunc('HOUR', greatest(claimed_at, over_at)), INTERVAL 1 HOUR)) AS hour
)
SELECT date_trunc('HOUR', at) AS hour FROM facts GROUP BY 1 HAVING sum(sign * CAST(fact AS DECIMAL(20, 0))) <> 0
