CREATE MACRO ms(moment) AS epoch_ms(CAST(rtrim(moment, 'Z') AS TIMESTAMP));
CREATE MACRO error_class(error) AS left(regexp_replace(trim(split_part(error, ':', 1)),
  '0x[[:xdigit:]]+|[[:xdigit:]]{8}-[[:xdigit:]]{4}-[[:xdigit:]]{4}-[[:xdigit:]]{4}-[[:xdigit:]]{12}'
  || '|\b[[:xdigit:]]{16,}\b|[0-9]+', '#', 'g'), 120);
-- The value that this percentage of them does not exceed.
CREATE MACRO percentile(sorted, percent) AS sorted[(len(sorted) * percent + 99) // 100];
CREATE MACRO jain(numbers) AS pow(list_sum(numbers), 2)
  / nullif(len(numbers) * list_sum(list_transform(numbers, lambda x: x * x)), 0);
