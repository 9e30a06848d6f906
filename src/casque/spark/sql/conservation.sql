-- Jobs that are in one table must be in the others: every job that was enqueued has finished or is in the queue, and
-- the hours count each of them once.
WITH totals AS (
  SELECT
    (SELECT coalesce(sum(enqueued), 0) FROM gold_hours) AS enqueued,
    (SELECT coalesce(sum(finished), 0) FROM gold_hours) AS finished,
    (SELECT coalesce(sum(attempts), 0) FROM gold_hours) AS attempts,
    (SELECT count(*) FROM silver_jobs) AS jobs,
    (SELECT count(*) FROM silver_jobs WHERE NOT revived)
      + (SELECT count(*) FROM silver_queue WHERE NOT revived AND state <> 'dead') AS known,
    (SELECT count(*) FROM silver_attempts) + (SELECT coalesce(sum(size(tried)), 0) FROM silver_queue WHERE tried IS NOT NULL) AS tries
)
SELECT 'gold/hours' AS table, rule, rows, broken FROM totals LATERAL VIEW
  stack(3, 'enqueued_are_finished_or_waiting', known, abs(enqueued - known),
    'finished_are_jobs', jobs, abs(finished - jobs),
    'attempts_are_attempts', tries, abs(attempts - tries)) AS rule, rows, broken
