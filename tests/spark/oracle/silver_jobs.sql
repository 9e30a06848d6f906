SELECT finished_at // 86400000 AS date, a.shard, a.position, a.id, a.entrypoint, a.zone, a.state, a.priority,
  a.key, a.payload_bytes, a.sequence, l.token, l.attempts, l.crashes, a.max_attempts, l.worker, l.created_at,
  a.run_at, l.first_due_at, l.first_claimed_at, l.claimed_at, l.due_at, a.finished_at, l.error, l.error_class,
  l.revived, NOT l.held AS waiting,
  CASE WHEN NOT l.revived AND due_known THEN first_due_at - l.created_at END AS scheduled_ms,
  CASE WHEN due_known AND first_claimed_at IS NOT NULL THEN greatest(first_claimed_at - first_due_at, 0) END AS wait_ms,
  l.run_ms, coalesce(l.finished_at - first_claimed_at - l.run_ms, 0) AS pause_ms,
  l.finished_at - l.created_at AS total_ms,
  a.result_bytes, a.max_crashes, a.fifo, a.tags, a.expires_ms, l.tried
FROM archive a FULL JOIN (FROM lives WHERE finished_at IS NOT NULL) l USING (shard, position, id, finished_at)
