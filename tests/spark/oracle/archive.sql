-- The archive's lines, in the numbers of a ring if it is one.
SELECT CAST(coalesce(nullif(regexp_extract(filename, 'shards/(\d+)/', 1), ''), '0') AS INT) AS shard,
  id, position, entrypoint, zone, state, coalesce(priority, 0) AS priority, key, max_attempts, max_crashes,
  coalesce(blob_bytes, octet_length(from_base64(payload))) AS payload_bytes,
  octet_length(from_base64(result)) AS result_bytes,
  CASE WHEN filename LIKE '%/shards/%' THEN sequence * 4096 + shard ELSE sequence END AS sequence,
  attempts, coalesce(crashes, 0) AS crashes, error, coalesce(fifo, false) AS fifo, tags, expires_ms,
  ms(created_at) AS created_at, ms(run_at) AS run_at, ms(finished_at) AS finished_at
FROM lines
