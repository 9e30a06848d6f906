WITH ran AS (
  SELECT worker, claimed_at, coalesce(ended_at, as_of) AS until, outcome FROM attempts CROSS JOIN run WHERE kept
), minutes AS (
  SELECT *, unnest(range(claimed_at // 60000 * 60000, until + 1, 60000)) AS minute FROM ran
)
SELECT minute // 86400000 AS date, minute, worker,
  sum(least(until, minute + 60000) - greatest(claimed_at, minute)) AS busy_ms, busy_ms / 60000 AS utilisation,
  count_if(outcome IS NOT NULL AND until < minute + 60000) AS attempts,
  count_if(coalesce(outcome, 'done') NOT IN ('done', 'cancelled') AND until < minute + 60000) AS failed
FROM minutes GROUP BY ALL HAVING busy_ms <> 0 OR attempts <> 0
