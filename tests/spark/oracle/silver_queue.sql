-- A dead job is shown as it died. `run_at` and `priority` are asked from the queue: they may have been changed.
SELECT as_of // 86400000 AS date, as_of, l.shard, l.id, l.entrypoint, l.zone,
  CASE WHEN l.finished_at IS NOT NULL THEN 'dead' WHEN l.running THEN 'running'
    WHEN put_off AND l.due_at > as_of THEN 'delayed' ELSE 'ready' END AS state,
  h.priority, l.key, l.payload_bytes, l.sequence, l.token, l.attempts, l.crashes, l.max_attempts,
  CASE WHEN l.running THEN l.worker END AS worker, l.created_at, h.run_at, l.first_due_at, l.first_claimed_at,
  l.claimed_at, l.due_at, l.error, l.error_class, l.revived, l.max_crashes, l.fifo, l.tags, l.expires_ms,
  CASE WHEN l.finished_at IS NULL THEN l.tried END AS tried
FROM held h JOIN lives l USING (id) CROSS JOIN run
WHERE l.life = (SELECT max(life) FROM story WHERE job_id = id)
