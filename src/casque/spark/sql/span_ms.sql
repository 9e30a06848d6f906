-- Milliseconds from one moment to another, at least 0, because the clocks of two writers may differ; null without both.
CREATE OR REPLACE TEMPORARY FUNCTION span_ms(begin TIMESTAMP, end TIMESTAMP) RETURNS BIGINT RETURN
  CASE WHEN begin IS NOT NULL AND end IS NOT NULL THEN greatest(unix_millis(end) - unix_millis(begin), 0L) END
