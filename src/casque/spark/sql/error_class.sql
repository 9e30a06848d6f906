-- The kind of an error: the text before the first colon. A class, such as psycopg2.OperationalError, stays as it is; any other text loses its numbers and ids.
CREATE OR REPLACE TEMPORARY FUNCTION error_class(error STRING) RETURNS STRING RETURN substr(
  IF(trim(split_part(error, ':', 1)) RLIKE r'^(\w+\.)*[A-Z]\w*[a-z]$', trim(split_part(error, ':', 1)),
    regexp_replace(trim(split_part(error, ':', 1)),
      r'0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\b[0-9a-fA-F]{16,}\b|\d+', '#')), 1, 120)
