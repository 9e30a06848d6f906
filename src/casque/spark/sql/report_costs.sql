-- The cost of each zone's operations in the hours of a period, the most expensive first; zones after these are one.
WITH sums AS (
  SELECT zone, sum(operations) AS operations, CAST(sum(commits) AS DOUBLE) AS commits, sum(bytes) AS bytes,
    sum(dollars) AS dollars, row_number() OVER (ORDER BY sum(dollars) DESC, coalesce(zone, '')) AS place
  FROM gold_requests WHERE unix_millis(hour) >= :hour_ms AND unix_millis(hour) < :to_ms GROUP BY zone
)
SELECT IF(place <= :zones_max, zone, NULL) AS zone, sum(operations) AS operations, sum(commits) AS commits,
  coalesce(sum(bytes), 0) AS bytes, sum(dollars) AS dollars, count(*) AS zones, place > :zones_max AS other
FROM sums GROUP BY 1, 7, IF(place <= :zones_max, place, 0) ORDER BY min(place)
