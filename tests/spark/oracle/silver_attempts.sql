SELECT finished_at // 86400000 AS date, l.shard, l.position, a.job_id, l.entrypoint, l.zone, a.attempt, a.token,
  a.worker, a.claimed_at, a.ended_at, a.ended_at - a.claimed_at AS run_ms, a.outcome, a.reason AS error,
  error_class(a.reason) AS error_class, NOT failure AS last
FROM (SELECT *, CASE WHEN failure OR outcome = 'dead' THEN error END AS reason FROM attempts WHERE kept) a
  JOIN lives l ON a.job_id = l.id AND a.life = l.life
WHERE l.finished_at IS NOT NULL
