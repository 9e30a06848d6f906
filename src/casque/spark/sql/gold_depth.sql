-- gold/depth: one minute in which the number of an entrypoint's and a zone's jobs changed; and each day's first minute if there were any. Between rows nothing changes
-- unique: minute, entrypoint, zone
-- time: minute
-- date date: the day, in UTC
-- minute timestamp: its beginning
-- entrypoint string: which handler the jobs are for
-- zone string: whose jobs they are; null for none
-- scheduled bigint: jobs at the end of the minute that were not due yet for the first time
-- waiting bigint: jobs at the end of the minute that were due and not running, pauses after a failure included
-- running bigint: jobs at the end of the minute that were running
-- scheduled_ms bigint: the time that jobs spent like this in the minute, all together
-- waiting_ms bigint: the same for waiting: divided by 60,000 it is how many there were on average
-- running_ms bigint: the same for running
-- expect levels_are_not_negative: scheduled >= 0 AND waiting >= 0 AND running >= 0
WITH known AS (
  SELECT entrypoint, zone, revived, created_at, greatest(finished_at, created_at) AS ended_at,
    least(first_due_at, first_claimed_at, greatest(finished_at, created_at)) AS due_at
  FROM silver_jobs
  UNION ALL
  SELECT entrypoint, zone, revived, created_at, NULL, least(first_due_at, first_claimed_at)
  FROM silver_queue WHERE state <> 'dead'
), ran AS (
  SELECT entrypoint, zone, claimed_at, ended_at FROM silver_attempts
  UNION ALL
  SELECT entrypoint, zone, one.claimed_at, one.ended_at FROM silver_queue LATERAL VIEW explode(tried) AS one
  UNION ALL
  SELECT entrypoint, zone, claimed_at, NULL FROM silver_queue WHERE state = 'running'
), points AS (
  -- How many more are scheduled (s), due (d) and running (r) from a moment on.
  SELECT created_at AS at, entrypoint, zone, int(due_at > created_at AND NOT revived) AS s, 0 AS d, 0 AS r FROM known
  UNION ALL
  SELECT due_at, entrypoint, zone, -int(due_at > created_at AND NOT revived), 1, 0 FROM known
  UNION ALL
  SELECT ended_at, entrypoint, zone, 0, -1, 0 FROM known WHERE ended_at IS NOT NULL
  UNION ALL
  SELECT claimed_at, entrypoint, zone, 0, 0, 1 FROM ran WHERE ended_at IS NULL OR claimed_at < ended_at
  UNION ALL
  SELECT ended_at, entrypoint, zone, 0, 0, -1 FROM ran WHERE claimed_at < ended_at
), changes AS (
  SELECT date_trunc('MINUTE', at) AS minute, entrypoint, zone, sum(s) AS s, sum(d) AS d, sum(r) AS r,
    sum(s * left_ms) AS s_ms, sum(d * left_ms) AS d_ms, sum(r * left_ms) AS r_ms
  FROM (SELECT *, unix_millis(least(date_trunc('MINUTE', at) + INTERVAL 1 MINUTE, as_of)) - unix_millis(at) AS left_ms
    FROM points CROSS JOIN run WHERE at <= as_of) GROUP BY 1, 2, 3
), levels AS (
  SELECT *, sum(s) OVER so_far AS s_level, sum(d) OVER so_far AS d_level, sum(r) OVER so_far AS r_level,
    date_trunc('DAY', minute) + INTERVAL 1 DAY AS midnight,
    coalesce(lead(minute) OVER (PARTITION BY entrypoint, zone ORDER BY minute) - INTERVAL 1 MINUTE, as_of) AS last
  FROM changes CROSS JOIN run WINDOW so_far AS (PARTITION BY entrypoint, zone ORDER BY minute)
), shown AS (
  -- The minute of the run itself is as long as it has lasted; the next run computes its hour again.
  SELECT *, int(at = minute) AS own, unix_millis(least(at + INTERVAL 1 MINUTE, as_of)) - unix_millis(at) AS length_ms
  FROM levels LATERAL VIEW explode(IF(midnight <= last AND (s_level <> 0 OR d_level <> 0 OR r_level <> 0),
    concat(array(minute), sequence(midnight, last, INTERVAL 1 DAY)), array(minute))) AS at
)
SELECT at AS minute, to_date(at) AS date, entrypoint, zone,
  s_level AS scheduled, d_level - r_level AS waiting, r_level AS running,
  s_level * length_ms + own * (s_ms - s * length_ms) AS scheduled_ms,
  (d_level - r_level) * length_ms + own * (d_ms - r_ms - (d - r) * length_ms) AS waiting_ms,
  r_level * length_ms + own * (r_ms - r * length_ms) AS running_ms
FROM shown
