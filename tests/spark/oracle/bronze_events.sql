-- The feed itself, which has tests of its own; here it is complete and in its place.
SELECT at_ms // 86400000 AS date, at_ms AS "at", * EXCLUDE (at_ms) REPLACE (NULL AS payload, NULL AS result) FROM feed
