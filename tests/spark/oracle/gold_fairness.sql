WITH zones AS (
  SELECT hour, zone, sum(finished) AS jobs, sum(run_ms_sum) AS run, sum(wait_ms_sum) AS wait, sum(wait_count) AS waits
  FROM gold_hours GROUP BY ALL HAVING sum(finished) > 0
), placed AS (
  SELECT *, row_number() OVER (PARTITION BY hour ORDER BY jobs DESC, zone NULLS FIRST) AS place FROM zones
), enough AS (
  -- The fewest zones that have half of the jobs.
  SELECT hour, min(place) AS large_zones FROM (
    SELECT *, sum(jobs) OVER (PARTITION BY hour ORDER BY place) AS so_far,
      sum(jobs) OVER (PARTITION BY hour) AS total
    FROM placed
  ) WHERE so_far * 2 >= total GROUP BY hour
)
SELECT hour // 86400000 AS date, hour, count(*) AS zones, sum(jobs) AS jobs,
  jain(list(CAST(run AS DOUBLE))) AS jain_service,
  jain(list(wait / waits) FILTER (waits > 0)) AS jain_wait, first(zone ORDER BY place) AS largest_zone,
  max(jobs) / sum(jobs) AS largest_share, large_zones,
  sum(wait) FILTER (place <= large_zones) / nullif(sum(waits) FILTER (place <= large_zones), 0) AS large_wait_ms,
  sum(wait) FILTER (place > large_zones) / nullif(sum(waits) FILTER (place > large_zones), 0) AS small_wait_ms,
  small_wait_ms / nullif(large_wait_ms, 0) AS small_to_large
FROM placed JOIN enough USING (hour) GROUP BY hour, large_zones
