-- gold/dead_letters: one hour, entrypoint, zone and kind of error that killed jobs
-- unique: hour, entrypoint, zone, error_class
-- time: hour
-- date date: the day, in UTC
-- hour timestamp: in which they died
-- entrypoint string: which handler the jobs are for
-- zone string: whose jobs they are; null for none
-- error_class string: the class of the error: the text before its first colon, without numbers and ids if it is no name of a class; null if none was given
-- jobs bigint: how many died of it
-- sample_job string: the first of them
-- sample_error string: its error in full
-- first_at timestamp: when the first of them died
-- last_at timestamp: when the last of them died
WITH deaths AS (
  SELECT date_trunc('HOUR', finished_at) AS hour, entrypoint, zone, error_class, count(*) AS jobs,
    min_by(struct(id, error), struct(finished_at, id)) AS first, min(finished_at) AS first_at,
    max(finished_at) AS last_at
  FROM silver_jobs WHERE state = 'dead' GROUP BY 1, 2, 3, 4
)
SELECT *, to_date(hour) AS date, first.id AS sample_job, first.error AS sample_error
FROM deaths
