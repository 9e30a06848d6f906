-- The kind of an error: the text before the first colon, without numbers and ids.
CREATE OR REPLACE TEMPORARY FUNCTION error_class(error STRING) RETURNS STRING RETURN substr(
  regexp_replace(trim(split_part(error, ':', 1)),
    r'0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\b[0-9a-fA-F]{16,}\b|\d+', '#'), 1, 120)
