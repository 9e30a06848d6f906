-- gold/minutes: one minute of an entrypoint and a zone in which anything happened
-- unique: minute, entrypoint, zone
-- time: minute
-- date date: the day, in UTC
-- minute timestamp: its beginning
-- entrypoint string: which handler the jobs are for
-- zone string: whose jobs they are; null for none
-- enqueued bigint: jobs enqueued in this time, finished by now or not
-- finished bigint: jobs that finished in this time: done, dead and cancelled
-- done bigint: jobs that were done
-- dead bigint: jobs that finished as dead: they died in this time, and may have been retried or purged since
-- cancelled bigint: jobs that were cancelled
-- retried bigint: of the finished jobs, those that took more than one attempt
-- attempts bigint: attempts that ended in this time, their jobs finished by now or not
-- failed bigint: attempts that ended in a failure, a crash or with a lease that ran out
-- throughput double: `finished` per second
-- retry_rate double: `retried` / (`done` + `dead`); null without any
-- failure_rate double: `dead` / (`done` + `dead`); null without any
-- attempt_failure_rate double: `failed` / `attempts`; null without any
-- wait_count bigint: finished jobs whose wait is known
-- wait_ms_sum bigint: the time from `first_due_at` to `first_claimed_at`, all of them together
-- wait_ms_max bigint: the longest
-- wait_p50_ms bigint: the median of the wait
-- wait_p90_ms bigint: what nine of ten did not exceed
-- wait_p99_ms bigint: what 99 of 100 did not exceed
-- wait_sketch binary: the waits as a KLL sketch, for kll_merge_agg_bigint
-- run_count bigint: attempts that ended in this time and whose claim is known
-- run_ms_sum bigint: the time from claim to end, all of them together
-- run_ms_max bigint: the longest
-- run_p50_ms bigint: the median of the run time
-- run_p90_ms bigint: what nine of ten did not exceed
-- run_p99_ms bigint: what 99 of 100 did not exceed
-- run_sketch binary: the run times as a KLL sketch
-- expect ends_add_up: finished = done + dead + cancelled
-- expect parts_are_parts: failed <= attempts AND retried <= finished AND wait_count <= finished AND run_count <= attempts
WITH facts AS (
  SELECT created_at AS at, entrypoint, zone, 1 AS enqueued, 0 AS finished, 0 AS done, 0 AS dead, 0 AS cancelled,
    0 AS retried, 0 AS attempts, 0 AS failed, CAST(NULL AS BIGINT) AS wait_ms, CAST(NULL AS BIGINT) AS run_ms
  FROM silver_jobs WHERE NOT revived
  UNION ALL
  SELECT created_at, entrypoint, zone, 1, 0, 0, 0, 0, 0, 0, 0, NULL, NULL
  FROM silver_queue WHERE NOT revived AND state <> 'dead'
  UNION ALL
  SELECT finished_at, entrypoint, zone, 0, 1, int(state = 'done'), int(state = 'dead'), int(state = 'cancelled'),
    int(attempts > 1), 0, 0, wait_ms, NULL
  FROM silver_jobs
  UNION ALL
  SELECT ended_at, entrypoint, zone, 0, 0, 0, 0, 0, 0, 1,
    int(outcome IN ('failed', 'expired', 'crashed', 'dead')), NULL, run_ms
  FROM silver_attempts
  UNION ALL
  SELECT one.ended_at, entrypoint, zone, 0, 0, 0, 0, 0, 0, 1, 1, NULL,
    span_ms(one.claimed_at, one.ended_at)
  FROM silver_queue LATERAL VIEW explode(tried) AS one
), sums AS (
  SELECT date_trunc('MINUTE', at) AS minute, entrypoint, zone, sum(enqueued) AS enqueued, sum(finished) AS finished,
    sum(done) AS done, sum(dead) AS dead, sum(cancelled) AS cancelled, sum(retried) AS retried,
    sum(attempts) AS attempts, sum(failed) AS failed,
    count(wait_ms) AS wait_count, coalesce(sum(wait_ms), 0) AS wait_ms_sum, max(wait_ms) AS wait_ms_max,
    kll_sketch_agg_bigint(wait_ms, 400) AS wait_kll,
    count(run_ms) AS run_count, coalesce(sum(run_ms), 0) AS run_ms_sum, max(run_ms) AS run_ms_max,
    kll_sketch_agg_bigint(run_ms, 400) AS run_kll
  FROM facts GROUP BY 1, 2, 3
), ranked AS (
  SELECT *, IF(wait_count > 0, wait_kll, NULL) AS wait_sketch, IF(run_count > 0, run_kll, NULL) AS run_sketch FROM sums
), quantiles AS (
  SELECT *, kll_sketch_get_quantile_bigint(wait_sketch, array(0.5D, 0.9D, 0.99D)) AS wait,
    kll_sketch_get_quantile_bigint(run_sketch, array(0.5D, 0.9D, 0.99D)) AS run
  FROM ranked
)
SELECT *, to_date(minute) AS date, finished / 60D AS throughput,
  retried / nullif(done + dead, 0) AS retry_rate, dead / nullif(done + dead, 0) AS failure_rate,
  failed / nullif(attempts, 0) AS attempt_failure_rate,
  wait[0] AS wait_p50_ms, wait[1] AS wait_p90_ms, wait[2] AS wait_p99_ms,
  run[0] AS run_p50_ms, run[1] AS run_p90_ms, run[2] AS run_p99_ms
FROM quantiles
