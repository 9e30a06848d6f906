-- quality/rules: one rule of a table, as one run found it
-- unique: run, table, rule
-- time: checked_at
-- date date: the day of `checked_at`, in UTC
-- checked_at timestamp: when the run was at this
-- run bigint: the number of the run
-- table string: the table
-- rule string: the rule, as the table's SQL file names it
-- rows bigint: the rows that the run wrote
-- broken bigint: those of them that break the rule
-- action string: what the run did about them: `warn` or `quarantine`
SELECT to_date(checked_at) AS date, *
FROM results
