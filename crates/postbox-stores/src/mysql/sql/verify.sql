-- What of some aggregates is not published: who has locked a run of one and finds something else before it lets it be. Writers
-- commit in another order than they draw numbers, so that reading on by sequence alone does not tell.
-- … aggregate ids  ? up to this sequence
SELECT sequence, tenant_id, aggregate_type, aggregate_id
FROM {{table}} {{by_aggregate}}
WHERE aggregate_id IN (<in>) AND published_at IS NULL AND sequence <= ?{{not_dead}}
