-- gold/workers: one minute of a worker in which it had a job
-- unique: minute, worker
-- time: minute
-- date date: the day, in UTC
-- minute timestamp: its beginning
-- worker string: who; null if the worker gave no name
-- busy_ms bigint: the time of all its attempts within the minute, together
-- utilisation double: `busy_ms` / 60,000: above 1 if it does several jobs at once
-- attempts bigint: attempts that ended in the minute
-- failed bigint: those of them that failed, crashed or whose lease ran out
-- expect busy_is_not_negative: busy_ms >= 0 AND failed <= attempts
WITH ran AS (
  SELECT worker, claimed_at, ended_at, outcome FROM silver_attempts
  UNION ALL
  SELECT one.worker, one.claimed_at, one.ended_at, one.outcome FROM silver_queue LATERAL VIEW explode(tried) AS one
  UNION ALL
  SELECT worker, claimed_at, as_of, NULL FROM silver_queue WHERE state = 'running' AND claimed_at < as_of
), spans AS (
  SELECT worker, coalesce(least(claimed_at, ended_at), ended_at) AS began_at, ended_at, outcome FROM ran
), minutes AS (
  SELECT worker, began_at, ended_at, outcome, minute
  FROM (SELECT *, date_trunc('MINUTE', greatest(began_at, since)) AS first, date_trunc('MINUTE', ended_at) AS last
      FROM spans CROSS JOIN run)
    LATERAL VIEW explode(IF(first <= last, sequence(first, last, INTERVAL 1 MINUTE), array())) AS minute
), sums AS (
  SELECT minute, worker,
    sum(least(unix_millis(ended_at), unix_millis(minute) + 60000) - greatest(unix_millis(began_at), unix_millis(minute)))
      AS busy_ms,
    count_if(outcome IS NOT NULL AND minute = date_trunc('MINUTE', ended_at)) AS attempts,
    count_if(outcome IN ('failed', 'expired', 'crashed', 'dead') AND minute = date_trunc('MINUTE', ended_at)) AS failed
  FROM minutes GROUP BY 1, 2
)
SELECT *, to_date(minute) AS date, busy_ms / 60000D AS utilisation
FROM sums WHERE busy_ms <> 0 OR attempts <> 0
