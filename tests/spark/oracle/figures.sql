CREATE MACRO figures(span_ms, seconds) AS TABLE
  WITH sums AS (
    SELECT at_ms // span_ms * span_ms AS since, entrypoint, zone, count_if(what = 'enqueued') AS enqueued,
      count_if(what IN ('done', 'dead', 'cancelled')) AS finished, count_if(what = 'done') AS done,
      count_if(what = 'dead') AS dead,
      count_if(what = 'cancelled') AS cancelled, count_if(again AND what <> 'attempt') AS retried,
      count_if(what = 'attempt') AS attempts, count_if(again AND what = 'attempt') AS failed,
      coalesce(list(ms ORDER BY ms) FILTER (ms IS NOT NULL AND what <> 'attempt'), []) AS waits,
      coalesce(list(ms ORDER BY ms) FILTER (what = 'attempt'), []) AS runs
    FROM facts GROUP BY ALL
  )
  SELECT *, since // 86400000 AS date, since AS minute, since AS hour, finished / seconds AS throughput,
    retried / nullif(done + dead, 0) AS retry_rate, dead / nullif(done + dead, 0) AS failure_rate,
    failed / nullif(attempts, 0) AS attempt_failure_rate,
    len(waits) AS wait_count, coalesce(list_sum(waits), 0) AS wait_ms_sum, list_max(waits) AS wait_ms_max,
    percentile(waits, 50) AS wait_p50_ms, percentile(waits, 90) AS wait_p90_ms, percentile(waits, 99) AS wait_p99_ms,
    len(runs) AS run_count, coalesce(list_sum(runs), 0) AS run_ms_sum, list_max(runs) AS run_ms_max,
    percentile(runs, 50) AS run_p50_ms, percentile(runs, 90) AS run_p90_ms, percentile(runs, 99) AS run_p99_ms
  FROM sums;
