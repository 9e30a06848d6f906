-- gold/fairness: one hour in which jobs finished, all zones compared
-- unique: hour
-- time: hour
-- date date: the day, in UTC
-- hour timestamp: its beginning
-- zones int: zones whose jobs finished in it; jobs without a zone count as one zone
-- jobs bigint: jobs that finished in it
-- jain_service double: Jain's index over the zones' run time (`run_ms_sum`): 1 all alike, 1 / `zones` one has all
-- jain_wait double: Jain's index over the zones' mean waits: 1 if all wait alike; null without any waits
-- largest_zone string: the zone with the most finished jobs
-- largest_share double: its share of them
-- large_zones int: the fewest zones that together have half of the finished jobs or more; the others are small
-- large_wait_ms double: mean wait of the large zones' jobs
-- small_wait_ms double: mean wait of the small zones' jobs; null if there are none
-- small_to_large double: `small_wait_ms` / `large_wait_ms`: above 1 the small ones suffer; null if one is missing or 0
-- expect indices_are_shares: coalesce(jain_service, 0) BETWEEN 0 AND 1.000001 AND coalesce(jain_wait, 0) BETWEEN 0 AND 1.000001 AND largest_share BETWEEN 0 AND 1
WITH per_zone AS (
  SELECT hour, zone, sum(finished) AS jobs, CAST(sum(run_ms_sum) AS DOUBLE) AS run, sum(wait_ms_sum) AS wait,
    sum(wait_count) AS waits, sum(wait_ms_sum) / nullif(sum(wait_count), 0) AS mean
  FROM gold_hours GROUP BY 1, 2 HAVING sum(finished) > 0
), ranked AS (
  -- Of zones of the same size the first by name counts as larger, jobs without a zone before all others.
  SELECT *, (sum(jobs) OVER (PARTITION BY hour ORDER BY jobs DESC, zone ASC NULLS FIRST) - jobs) * 2
      < sum(jobs) OVER (PARTITION BY hour) AS large,
    row_number() OVER (PARTITION BY hour ORDER BY jobs DESC, zone ASC NULLS FIRST) AS place
  FROM per_zone
), sums AS (
  SELECT hour, count(*) AS zones, sum(jobs) AS jobs,
    pow(sum(run), 2) / nullif(count(*) * sum(run * run), 0) AS jain_service,
    pow(sum(mean), 2) / nullif(count(mean) * sum(mean * mean), 0) AS jain_wait,
    max_by(zone, -place) AS largest_zone, max(jobs) / sum(jobs) AS largest_share, count_if(large) AS large_zones,
    sum(IF(large, wait, 0)) / nullif(sum(IF(large, waits, 0)), 0) AS large_wait_ms,
    sum(IF(large, 0, wait)) / nullif(sum(IF(large, 0, waits)), 0) AS small_wait_ms
  FROM ranked GROUP BY hour
)
SELECT *, to_date(hour) AS date, small_wait_ms / nullif(large_wait_ms, 0) AS small_to_large
FROM sums
