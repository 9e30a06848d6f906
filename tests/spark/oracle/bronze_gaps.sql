FROM (SELECT NULL AS date, NULL AS shard, NULL AS first, NULL AS last, NULL AS noticed_at) LIMIT 0
