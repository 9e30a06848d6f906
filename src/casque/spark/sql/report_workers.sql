-- How busy each worker was in a period, all in all and step by step, the busiest first.
WITH steps AS (
  SELECT worker, unix_millis(minute) div :step_ms * :step_ms AS step, sum(busy_ms) AS busy_ms,
    sum(attempts) AS attempts, sum(failed) AS failed
  FROM gold_workers WHERE unix_millis(minute) >= :from_ms AND unix_millis(minute) < :to_ms GROUP BY 1, 2
)
SELECT worker, sum(busy_ms) AS busy_ms, sum(busy_ms) / (:to_ms - :from_ms) AS utilisation, sum(attempts) AS attempts,
  sum(failed) AS failed,
  map_from_entries(sort_array(collect_list(IF(busy_ms <> 0, struct(step,
    busy_ms / (least(step + :step_ms, :to_ms) - greatest(step, :from_ms))), NULL)))) AS over_time
FROM steps GROUP BY worker ORDER BY busy_ms DESC, coalesce(worker, '')
