-- From when to when a job was scheduled, there and due, or running; `until` is null of what goes on.
WITH of_lives AS (
  SELECT *, least(first_due_at, first_claimed_at, finished_at) AS due FROM lives
)
SELECT entrypoint, zone, 'scheduled' AS state, created_at AS since, due AS until
FROM of_lives WHERE NOT revived AND created_at < due
UNION ALL
SELECT entrypoint, zone, 'due', due, finished_at FROM of_lives
UNION ALL
SELECT entrypoint, zone, 'running', a.claimed_at, a.ended_at
FROM attempts a JOIN lives l ON a.job_id = l.id AND a.life = l.life
WHERE kept AND (a.claimed_at < a.ended_at OR a.ended_at IS NULL)
