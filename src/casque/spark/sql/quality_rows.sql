-- quality/rows: one row that a run with `--expect quarantine` left out of its table because it breaks a rule. A run that died and was completed may have it twice
-- unique: run, table, row
-- time: checked_at
-- date date: the day of `checked_at`, in UTC
-- checked_at timestamp: when the run was at this
-- run bigint: the number of the run
-- table string: the table
-- rules array<string>: the rules that it breaks
-- row string: the row as JSON
SELECT to_date(checked_at) AS date, *
FROM broken
