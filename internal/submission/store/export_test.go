package store

// QueriesOf returns queries that something else runs.
func QueriesOf(q querier) Queries { return Queries{q} }
