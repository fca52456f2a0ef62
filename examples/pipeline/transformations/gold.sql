-- Gold: what people ask.

CREATE MATERIALIZED VIEW queue_minutes AS
SELECT
  entity,
  date_trunc('minute', first_delivered_at) AS minute,
  count(*) AS messages,
  percentile_approx(timestampdiff(MILLISECOND, enqueued_at, first_delivered_at), 0.5) AS queue_ms_p50,
  percentile_approx(timestampdiff(MILLISECOND, enqueued_at, first_delivered_at), 0.99) AS queue_ms_p99
FROM lives
WHERE first_delivered_at IS NOT NULL
GROUP BY entity, date_trunc('minute', first_delivered_at);

CREATE MATERIALIZED VIEW dead_letter_reasons AS
SELECT entity, end_reason AS reason, count(*) AS messages, min(ended_at) AS first_at, max(ended_at) AS last_at
FROM lives
WHERE end_type = 'dead_lettered'
GROUP BY entity, end_reason;
