-- Which errors killed jobs in the hours of a period, by class and entrypoint, the most frequent first.
SELECT error_class, entrypoint, jobs, first.sample_job, first.sample_error, first.at AS first_ms, last_ms FROM (
  SELECT error_class, entrypoint, sum(jobs) AS jobs, max(unix_millis(last_at)) AS last_ms,
    min(struct(unix_millis(first_at) AS at, sample_job, sample_error)) AS first
  FROM gold_dead_letters WHERE unix_millis(hour) >= :hour_ms AND unix_millis(hour) < :to_ms GROUP BY 1, 2)
ORDER BY jobs DESC, error_class, entrypoint LIMIT 100
