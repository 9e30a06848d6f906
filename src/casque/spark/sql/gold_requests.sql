-- gold/requests: one hour of an entrypoint and a zone, and what its operations cost at the store
-- unique: hour, entrypoint, zone
-- time: hour
-- date date: the day, in UTC
-- hour timestamp: its beginning
-- entrypoint string: which handler the jobs are for
-- zone string: whose jobs they are; null for none
-- operations bigint: events of the feed about their jobs: added, claimed, beaten, acked, ...
-- commits decimal(28,9): their share of the commits: an operation's is 1 / the operations of its commit
-- bytes bigint: payloads enqueued with them
-- dollars double: `commits` at the price of one write request (S3's list price unless set)
WITH of_jobs AS (
  SELECT shard, position, date_trunc('HOUR', at) AS hour, job_id, entrypoint, zone, payload_bytes
  FROM bronze_events WHERE job_id IS NOT NULL
), commits AS (
  SELECT shard, position, CAST(1 / count(*) AS DECIMAL(28, 18)) AS share FROM of_jobs GROUP BY 1, 2
), by_job AS (
  SELECT hour, job_id, count(*) AS operations, sum(share) AS commits, sum(coalesce(payload_bytes, 0L)) AS bytes
  FROM of_jobs JOIN commits USING (shard, position) GROUP BY 1, 2
), owners AS (
  -- Most events name only a job. Its entrypoint and zone come from its enqueue event, from the queue or from its end.
  SELECT id, max(owner) AS owner FROM (
    SELECT job_id AS id, struct(entrypoint, zone) AS owner FROM of_jobs WHERE entrypoint IS NOT NULL
    UNION ALL SELECT id, struct(entrypoint, zone) FROM silver_jobs
    UNION ALL SELECT id, struct(entrypoint, zone) FROM silver_queue
  ) GROUP BY id
), sums AS (
  SELECT hour, owner.entrypoint, owner.zone, sum(operations) AS operations,
    CAST(sum(commits) AS DECIMAL(28, 9)) AS commits, sum(bytes) AS bytes
  FROM by_job LEFT JOIN owners ON job_id = id GROUP BY 1, 2, 3
)
SELECT s.*, to_date(hour) AS date, CAST(commits AS DOUBLE) * put_dollars AS dollars
FROM sums s CROSS JOIN run
