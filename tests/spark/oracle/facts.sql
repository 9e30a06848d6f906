-- What gold/minutes and gold/hours count.
SELECT at_ms, 'enqueued' AS what, entrypoint, zone, false AS again, NULL AS ms FROM feed WHERE kind = 'added'
UNION ALL
SELECT finished_at, state, entrypoint, zone, attempts > 1, wait_ms FROM silver_jobs
UNION ALL
SELECT ended_at, 'attempt', entrypoint, zone, outcome NOT IN ('done', 'cancelled'), ended_at - a.claimed_at
FROM attempts a JOIN lives l ON a.job_id = l.id AND a.life = l.life WHERE ended_at IS NOT NULL AND kept
