-- What happened in a period, counted in all, by step, hour, entrypoint and zone. Zones after the largest are one: `other`.
-- The view `counted` has the rows of gold/minutes or gold/hours and their time `at`.
WITH places AS (
  SELECT zone AS placed,
    row_number() OVER (ORDER BY sum(finished) DESC, sum(enqueued) DESC, coalesce(zone, '')) <= :zones_max AS shown
  FROM counted GROUP BY zone
), sums AS (
  SELECT dimension, key, sum(enqueued) AS enqueued, sum(finished) AS finished, sum(done) AS done, sum(dead) AS died,
    sum(cancelled) AS cancelled, sum(retried) AS retried, sum(attempts) AS attempts, sum(failed) AS failed,
    sum(wait_count) AS wait_count, sum(wait_ms_sum) AS wait_ms, max(wait_ms_max) AS wait_max,
    sum(run_count) AS run_count, sum(run_ms_sum) AS run_ms, max(run_ms_max) AS run_max,
    kll_merge_agg_bigint(wait_sketch) AS wait_kll, kll_merge_agg_bigint(run_sketch) AS run_kll
  FROM counted JOIN places ON zone <=> placed LATERAL VIEW inline(array(
    struct('all', ''), struct('step', string(at div :step_ms * :step_ms)),
    struct('hour', string(at div 3600000 * 3600000)), struct('entrypoint', string(entrypoint)),
    struct(IF(shown, 'zone', 'other'), IF(shown, zone, '')))) AS dimension, key
  GROUP BY dimension, key
), looked AS (
  -- Spark refuses to look into an empty sketch.
  SELECT *, IF(wait_count > 0, kll_sketch_get_quantile_bigint(wait_kll, array(0.5D, 0.9D, 0.99D)), NULL) AS wait,
    IF(run_count > 0, kll_sketch_get_quantile_bigint(run_kll, array(0.5D, 0.9D, 0.99D)), NULL) AS run
  FROM sums
)
SELECT dimension, key, struct(enqueued, finished, done, died, cancelled, retried, attempts, failed,
    retried / nullif(done + died, 0) AS retry_rate, died / nullif(done + died, 0) AS failure_rate,
    failed / nullif(attempts, 0) AS attempt_failure_rate,
    struct(wait_count AS count, wait_ms AS sum_ms, wait_ms / nullif(wait_count, 0) AS mean_ms, wait[0] AS p50_ms,
      wait[1] AS p90_ms, wait[2] AS p99_ms, wait_max AS max_ms) AS wait,
    struct(run_count AS count, run_ms AS sum_ms, run_ms / nullif(run_count, 0) AS mean_ms, run[0] AS p50_ms,
      run[1] AS p90_ms, run[2] AS p99_ms, run_max AS max_ms) AS run) AS tally,
  IF(wait_count > 0 AND dimension = 'all', kll_sketch_get_rank_bigint(wait_kll, :edges), NULL) AS wait_ranks,
  IF(run_count > 0 AND dimension = 'all', kll_sketch_get_rank_bigint(run_kll, :edges), NULL) AS run_ranks
FROM looked
