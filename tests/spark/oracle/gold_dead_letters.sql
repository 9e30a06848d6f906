SELECT finished_at // 86400000 AS date, finished_at // 3600000 * 3600000 AS hour, entrypoint, zone, error_class,
  count(*) AS jobs, first(id ORDER BY finished_at, id) AS sample_job,
  first(error ORDER BY finished_at, id) AS sample_error,
  min(finished_at) AS first_at, max(finished_at) AS last_at
FROM silver_jobs WHERE state = 'dead' GROUP BY ALL
