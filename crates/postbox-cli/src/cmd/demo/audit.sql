-- One line for each number that an order or an event has: whether there is an order, how many events, and what became
-- of them. All of the table, sorted once; nothing but the two tables themselves is asked.
SELECT number, sum(orders), sum(events), max(event_id), sum(published), sum(dead)
FROM (
    SELECT id AS number, 1 AS orders, 0 AS events, NULL AS event_id, 0 AS published, 0 AS dead
    FROM orders
    UNION ALL
    SELECT CAST(aggregate_id AS INTEGER), 0, 1, event_id, published_at IS NOT NULL,
           published_at IS NULL AND dead_at IS NOT NULL
    FROM shop_outbox
)
GROUP BY number
