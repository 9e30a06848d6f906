-- How many jobs there were in each step of a period, of all entrypoints and zones together: the time that they spent
-- scheduled, waiting and running, the most that waited at the end of a minute, or of a second, and how many there were at the end.
-- gold/depth has rows only where something changes, so levels are carried on from row to row.
WITH series AS (
  SELECT unix_millis(minute) AS at, least(:tick_ms, :as_of_ms - unix_millis(minute)) AS length, scheduled, waiting, running, scheduled_ms, waiting_ms, running_ms,
    coalesce(lag(scheduled) OVER w, 0) AS scheduled_before, coalesce(lag(waiting) OVER w, 0) AS waiting_before,
    coalesce(lag(running) OVER w, 0) AS running_before
  FROM gold_depth WINDOW w AS (PARTITION BY entrypoint, zone ORDER BY minute)
), changes AS (
  SELECT at, length, sum(scheduled - scheduled_before) AS s, sum(waiting - waiting_before) AS w,
    sum(running - running_before) AS r,
    -- What the series that changed had in this minute, instead of what they had before.
    sum(scheduled_ms - scheduled_before * length) AS s_ms, sum(waiting_ms - waiting_before * length) AS w_ms,
    sum(running_ms - running_before * length) AS r_ms
  FROM series GROUP BY at, length
), levels AS (
  SELECT *, sum(s) OVER o AS scheduled, sum(w) OVER o AS waiting, sum(r) OVER o AS running,
    coalesce(lead(at) OVER o, least(:to_ms, :as_of_ms)) AS next FROM changes WINDOW o AS (ORDER BY at)
), spans AS (
  SELECT at AS begin, at + :tick_ms AS end, scheduled, waiting, running, (scheduled - s) * length + s_ms AS s_ms,
    (waiting - w) * length + w_ms AS w_ms, (running - r) * length + r_ms AS r_ms FROM levels
  UNION ALL
  SELECT at + :tick_ms, next, scheduled, waiting, running, NULL, NULL, NULL FROM levels WHERE next > at + :tick_ms
), steps AS (
  SELECT *, least(end, step + :step_ms, :to_ms) - greatest(begin, step, :from_ms) AS ms
  FROM (SELECT * FROM spans WHERE end > :from_ms AND begin < :to_ms)
    LATERAL VIEW explode(sequence(greatest(begin, :from_ms) div :step_ms * :step_ms,
      (least(end, :to_ms) - 1) div :step_ms * :step_ms, :step_ms)) AS step
), sums AS (
  SELECT step, sum(coalesce(s_ms, scheduled * ms)) AS scheduled_ms, sum(coalesce(w_ms, waiting * ms)) AS waiting_ms,
    sum(coalesce(r_ms, running * ms)) AS running_ms, max(waiting) AS waiting_max,
    max_by(struct(scheduled, waiting, running), begin) AS last
  FROM steps GROUP BY step
)
SELECT at_ms, coalesce(scheduled_ms / length, 0D) AS scheduled, coalesce(waiting_ms / length, 0D) AS waiting,
  coalesce(running_ms / length, 0D) AS running, coalesce(waiting_max, 0) AS waiting_max, last
FROM (SELECT at_ms, least(at_ms + :step_ms, :to_ms) - greatest(at_ms, :from_ms) AS length FROM
    (SELECT explode(sequence(:from_ms div :step_ms * :step_ms, :to_ms - 1, :step_ms)) AS at_ms))
  LEFT JOIN sums ON step = at_ms ORDER BY at_ms
