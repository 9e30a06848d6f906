CREATE MACRO ms(moment) AS epoch_ms(CAST(rtrim(moment, 'Z') AS TIMESTAMP));
CREATE MACRO kind(error) AS trim(split_part(error, ':', 1));
-- What looks like a class, with or without its modules, keeps its numbers.
CREATE MACRO error_class(error) AS left(CASE WHEN regexp_full_match(kind(error), '([A-Za-z0-9_]+\.)*[A-Z][A-Za-z0-9_]*[a-z]')
  THEN kind(error) ELSE regexp_replace(kind(error),
  '0x[[:xdigit:]]+|[[:xdigit:]]{8}-[[:xdigit:]]{4}-[[:xdigit:]]{4}-[[:xdigit:]]{4}-[[:xdigit:]]{12}'
  || '|\b[[:xdigit:]]{16,}\b|[0-9]+', '#', 'g') END, 120);
-- The value that this percentage of them does not exceed.
CREATE MACRO percentile(sorted, percent) AS sorted[(len(sorted) * percent + 99) // 100];
CREATE MACRO jain(numbers) AS pow(list_sum(numbers), 2)
  / nullif(len(numbers) * list_sum(list_transform(numbers, lambda x: x * x)), 0);
