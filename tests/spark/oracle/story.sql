-- Everything that happened to a job but heartbeats, in order. Its life is 0, and one more each time it is revived.
SELECT *, row_number() OVER so_far AS n, count_if(kind = 'revived') OVER so_far AS life,
  lead(kind) OVER so_far AS next_kind, lead(at_ms) OVER so_far AS next_at, lead(error) OVER so_far AS next_error
FROM (
  SELECT * REPLACE (
    CASE kind WHEN 'expired' THEN 'the lease ran out: its worker stopped sending heartbeats' ELSE error END AS error)
  FROM feed WHERE job_id IS NOT NULL AND kind NOT IN ('beaten', 'advanced', 'watched')
)
WINDOW so_far AS (PARTITION BY job_id ORDER BY shard, position, index)
