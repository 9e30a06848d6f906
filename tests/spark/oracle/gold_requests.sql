WITH of_jobs AS (
  SELECT *, at_ms // 3600000 * 3600000 AS hour, 1 / count(*) OVER (PARTITION BY shard, position) AS share
  FROM feed WHERE job_id IS NOT NULL
)
SELECT hour // 86400000 AS date, hour, l.entrypoint, l.zone, count(*) AS operations, sum(share) AS commits,
  sum(coalesce(f.payload_bytes, 0)) AS bytes, sum(share) * 0.000005 AS dollars
FROM of_jobs f JOIN lives l ON job_id = id AND life = 0 GROUP BY ALL
