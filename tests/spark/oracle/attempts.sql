-- Claims that count: not those that were given back, snoozed or declined. A job keeps its last 50 failures.
SELECT *, coalesce(outcome IN ('failed', 'expired', 'crashed'), false) AS failure,
  row_number() OVER (PARTITION BY job_id, life ORDER BY n) AS attempt,
  NOT failure OR count_if(failure) OVER (PARTITION BY job_id, life ORDER BY n DESC) <= 50 AS kept
FROM (
  SELECT job_id, life, n, token, worker, at_ms AS claimed_at, next_at AS ended_at, next_kind AS ended_by,
    next_error AS error,
    CASE WHEN next_kind = 'nacked' THEN 'failed' WHEN next_kind IN ('expired', 'crashed') THEN next_kind
      WHEN next_kind = 'acked' THEN 'done' WHEN next_kind IN ('died', 'quarantined') THEN 'dead'
      WHEN next_kind IN ('cancelled', 'withdrawn') THEN 'cancelled' END AS outcome
  FROM story WHERE kind = 'claimed' AND coalesce(next_kind, '') NOT IN ('returned', 'snoozed', 'declined')
)
