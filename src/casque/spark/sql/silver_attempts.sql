-- silver/attempts: one attempt at a finished job, of failed ones the last 50. A claim that was given back, snoozed or declined is none
-- unique: shard, position, job_id, attempt
-- time: ended_at
-- date date: the day on which the job finished, as in silver/jobs
-- shard int: which shard of a ring; 0 of a queue without shards
-- position bigint: the commit that finished the job
-- job_id string: the job
-- entrypoint string: which handler it was for
-- zone string: whose job it was; null for none
-- attempt int: which attempt, from 1
-- token bigint: of its lease
-- worker string: who had claimed it
-- claimed_at timestamp: when it began; null if that is not known
-- ended_at timestamp: when it ended
-- run_ms bigint: from claim to end
-- outcome string: `failed`, `expired` or `crashed`; of the last one, what became of the job
-- error_class string: the class of the error: the text before its first colon, without numbers and ids if it is no name of a class
-- error string: what went wrong; null of an attempt that did not fail
-- last boolean: the attempt that finished the job
-- expect ended: job_id IS NOT NULL AND ended_at IS NOT NULL AND outcome IS NOT NULL
-- expect counted_from_one: attempt >= 1
-- expect run_is_not_negative: coalesce(run_ms, 0) >= 0
WITH every AS (
  SELECT date, shard, position, id AS job_id, entrypoint, zone,
    greatest(attempts + crashes, 1) AS attempt, token, worker, claimed_at, finished_at AS ended_at,
    state AS outcome, IF(state = 'dead', error, NULL) AS error, true AS last
  FROM silver_jobs WHERE claimed_at IS NOT NULL AND NOT waiting
  UNION ALL
  SELECT date, shard, position, id, entrypoint, zone,
    attempts + crashes - size(tried) + int(waiting) + place, one.token, one.worker, one.claimed_at, one.ended_at,
    one.outcome, one.error, false
  FROM silver_jobs LATERAL VIEW posexplode(tried) AS place, one
)
SELECT *, error_class(error) AS error_class,
  span_ms(claimed_at, ended_at) AS run_ms
FROM every
