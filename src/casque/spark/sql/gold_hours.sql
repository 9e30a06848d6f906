-- gold/hours: one hour of an entrypoint and a zone in which anything happened
-- unique: hour, entrypoint, zone
-- time: hour
-- date date: the day, in UTC
-- hour timestamp: its beginning
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
WITH sums AS (
  SELECT date_trunc('HOUR', minute) AS hour, entrypoint, zone, sum(enqueued) AS enqueued, sum(finished) AS finished,
    sum(done) AS done, sum(dead) AS dead, sum(cancelled) AS cancelled, sum(retried) AS retried,
    sum(attempts) AS attempts, sum(failed) AS failed,
    sum(wait_count) AS wait_count, sum(wait_ms_sum) AS wait_ms_sum, max(wait_ms_max) AS wait_ms_max,
    kll_merge_agg_bigint(wait_sketch) AS wait_kll,
    sum(run_count) AS run_count, sum(run_ms_sum) AS run_ms_sum, max(run_ms_max) AS run_ms_max,
    kll_merge_agg_bigint(run_sketch) AS run_kll
  FROM gold_minutes GROUP BY 1, 2, 3
), ranked AS (
  SELECT *, IF(wait_count > 0, wait_kll, NULL) AS wait_sketch, IF(run_count > 0, run_kll, NULL) AS run_sketch FROM sums
), quantiles AS (
  SELECT *, kll_sketch_get_quantile_bigint(wait_sketch, array(0.5D, 0.9D, 0.99D)) AS wait,
    kll_sketch_get_quantile_bigint(run_sketch, array(0.5D, 0.9D, 0.99D)) AS run
  FROM ranked
)
SELECT *, to_date(hour) AS date, finished / 3600D AS throughput,
  retried / nullif(done + dead, 0) AS retry_rate, dead / nullif(done + dead, 0) AS failure_rate,
  failed / nullif(attempts, 0) AS attempt_failure_rate,
  wait[0] AS wait_p50_ms, wait[1] AS wait_p90_ms, wait[2] AS wait_p99_ms,
  run[0] AS run_p50_ms, run[1] AS run_p90_ms, run[2] AS run_p99_ms
FROM quantiles
