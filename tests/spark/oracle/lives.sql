-- A job from its enqueueing, or from a revival, to its end or to now.
WITH ends AS (
  SELECT job_id, life, position, at_ms AS finished_at FROM story
  WHERE kind IN ('acked', 'died', 'quarantined', 'cancelled', 'withdrawn', 'lapsed')
), tried AS (
  SELECT job_id, life, min(n) AS first_n, min(claimed_at) AS began_at, count_if(failure) AS failures,
    count_if(ended_by IS DISTINCT FROM 'crashed' AND ended_by IS DISTINCT FROM 'quarantined') AS attempts,
    count_if(ended_by IN ('crashed', 'quarantined')) AS crashes,
    bool_or(outcome IN ('done', 'dead', 'cancelled')) AS held, bool_or(outcome IS NULL) AS running,
    coalesce(list({claimed_at: claimed_at, ended_at: ended_at, outcome: outcome, worker: worker, token: token,
      error: error} ORDER BY n) FILTER (failure AND kept), []) AS tried,
    sum(ended_at - claimed_at) FILTER (kept) AS run_ms
  FROM attempts GROUP BY ALL
), begins AS (
  SELECT job_id, life, max(n) AS last_n, max_by(due_at, n) FILTER (due_at IS NOT NULL) AS due_at,
    max_by(coalesce(delayed, kind = 'declined'), n) FILTER (due_at IS NOT NULL) AS put_off,
    count_if(kind IN ('snoozed', 'declined', 'rescheduled', 'revived')) AS moves
  FROM story GROUP BY ALL
), first AS (
  -- Until its first attempt; what comes after that is about the next one.
  SELECT s.job_id, s.life, max_by(s.due_at, s.n) AS came_due_at
  FROM story s LEFT JOIN tried t USING (job_id, life)
  WHERE s.due_at IS NOT NULL AND s.n < coalesce(first_n, 1000000) GROUP BY ALL
), last AS (
  -- Of the whole job, earlier lives too.
  SELECT b.job_id, b.life, max_by(s.token, s.n) FILTER (kind = 'claimed') AS token,
    max_by(s.worker, s.n) FILTER (kind = 'claimed') AS worker,
    max_by(s.at_ms, s.n) FILTER (kind = 'claimed') AS claimed_at,
    max_by(s.error, s.n) FILTER (s.error IS NOT NULL) AS error
  FROM begins b JOIN story s ON b.job_id = s.job_id AND s.n <= b.last_n GROUP BY ALL
), known AS (
  SELECT b.job_id AS id, b.life, b.life > 0 AS revived, e.position, finished_at, b.due_at, put_off, moves,
    came_due_at, coalesce(failures, 0) AS failures, coalesce(t.attempts, 0) AS attempts,
    coalesce(crashes, 0) AS crashes,
    coalesce(held, false) AS held, coalesce(running, false) AS running, coalesce(tried, []) AS tried,
    coalesce(run_ms, 0) AS run_ms, coalesce(l.token, 0) AS token, claimed_at, error,
    CASE WHEN held OR running THEN worker END AS worker,
    CASE WHEN failures <= 50 THEN began_at END AS first_claimed_at
  FROM begins b JOIN first USING (job_id, life) JOIN last l USING (job_id, life)
    LEFT JOIN tried t USING (job_id, life) LEFT JOIN ends e USING (job_id, life)
), asked AS (
  SELECT job_id AS id, shard, at_ms AS created_at, entrypoint, zone, key, payload_bytes, sequence, max_attempts,
    max_crashes, fifo, tags, expires_ms
  FROM feed WHERE kind = 'added'
), stored AS (
  SELECT known.*, asked.* EXCLUDE (id), greatest(created_at, run_at) AS asked_at
  FROM known JOIN asked ON asked.id = known.id LEFT JOIN (
    SELECT id, position, run_at FROM archive UNION ALL SELECT id, NULL, run_at FROM held WHERE state <> 'dead'
  ) s ON s.id = known.id AND s.position IS NOT DISTINCT FROM known.position
)
SELECT *, error_class(error) AS error_class,
  -- What a failed attempt had waited for is not kept: it counts as due when it was enqueued, or for the time that was
  -- set last; and from its first claim on if it was revived, or moved after that claim.
  CASE WHEN failures = 0 THEN came_due_at
       WHEN revived OR asked_at > first_claimed_at THEN first_claimed_at
       ELSE asked_at END AS first_due_at,
  failures = 0 OR NOT (revived OR coalesce(asked_at > first_claimed_at, false)) AS due_known
FROM stored
