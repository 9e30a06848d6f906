WITH series AS (
  SELECT DISTINCT entrypoint, zone FROM spans
), changed AS (
  SELECT DISTINCT entrypoint, zone, at_ms // 60000 * 60000 AS minute
  FROM (SELECT entrypoint, zone, unnest([since, until]) AS at_ms FROM spans) CROSS JOIN run WHERE at_ms <= as_of
), midnights AS (
  SELECT entrypoint, zone,
    unnest(range((SELECT min(since) FROM spans) // 86400000 * 86400000, as_of + 1, 86400000)) AS minute
  FROM series CROSS JOIN run
), filled AS (
  -- Midnights at which something was there.
  SELECT DISTINCT m.* FROM midnights m JOIN spans s
    ON s.entrypoint = m.entrypoint AND s.zone IS NOT DISTINCT FROM m.zone
      AND since < minute AND coalesce(until, minute) >= minute
), minutes AS (
  SELECT *, least(minute + 60000, as_of) AS over, least(minute + 60000, as_of + 1) AS after
  FROM (FROM changed UNION FROM filled) CROSS JOIN run
), sums AS (
  SELECT minute, m.entrypoint, m.zone, state, count_if(since < after AND coalesce(until >= after, true)) AS jobs,
    sum(greatest(least(coalesce(until, over), over) - greatest(since, minute), 0)) AS ms
  FROM minutes m LEFT JOIN spans s ON s.entrypoint = m.entrypoint AND s.zone IS NOT DISTINCT FROM m.zone
  GROUP BY ALL
), states AS (
  SELECT minute, entrypoint, zone, coalesce(max(jobs) FILTER (state = 'scheduled'), 0) AS scheduled,
    coalesce(max(jobs) FILTER (state = 'due'), 0) AS due, coalesce(max(jobs) FILTER (state = 'running'), 0) AS running,
    coalesce(max(ms) FILTER (state = 'scheduled'), 0) AS scheduled_ms,
    coalesce(max(ms) FILTER (state = 'due'), 0) AS due_ms, coalesce(max(ms) FILTER (state = 'running'), 0) AS running_ms
  FROM sums GROUP BY ALL
)
SELECT minute // 86400000 AS date, minute, entrypoint, zone, scheduled, due - running AS waiting, running, scheduled_ms,
  due_ms - running_ms AS waiting_ms, running_ms
FROM states
