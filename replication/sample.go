package replication

import (
	"context"
	"errors"
	"fmt"
)

// Sample is what rows of the table tell about the events that will come.
type Sample struct {
	Largest  int64   `json:"largest"` // bytes of the largest payload; 0: no row has any
	NullKeys bool    `json:"null_keys"`
	Routes   []Route `json:"routes"` // every combination, at most routeCap
}

// Route is what the topic of a row is made from; nil is NULL, or no such column.
type Route struct {
	Topic         *string `json:"topic"`
	AggregateType *string `json:"aggregate_type"`
	EventType     *string `json:"event_type"`
}

// The sample is bounded, so that a look at a large table costs no more than at a small one.
const (
	sampleRows = 100_000
	routeCap   = 200
)

// sampleSQL finds the largest value by its size as stored, which is there without
// reading it, and measures only that one.
const sampleSQL = `/* walrelay: sample */ WITH s AS MATERIALIZED (SELECT ctid AS at, tableoid AS rel, pg_column_size(%[1]s) AS size, %[2]s IS NULL AS keyless,
 %[3]s::text AS topic, %[4]s::text AS aggregate_type, %[5]s::text AS event_type FROM %[6]s LIMIT %[7]d)
 SELECT json_build_object('null_keys', coalesce((SELECT bool_or(keyless) FROM s), false),
 'largest', coalesce((SELECT octet_length(%[1]s%[8]s) FROM %[6]s t JOIN (SELECT at, rel FROM s WHERE size IS NOT NULL ORDER BY size DESC LIMIT 1) l ON t.ctid = l.at AND t.tableoid = l.rel), 0),
 'routes', (SELECT json_agg(r) FROM (SELECT DISTINCT topic, aggregate_type, event_type FROM s LIMIT %[9]d) r))`

const byteaOID = 17

// Sample reads some of the table's rows; column names the column of a role, "" for none.
// An error says why it can't.
func (o *Observer) Sample(ctx context.Context, column func(role string) string) (Sample, error) {
	v, err := o.Look(ctx)
	switch {
	case err != nil:
		return Sample{}, err
	case v.table == "" || v.columns[column("payload")] == 0 || v.columns[column("key")] == 0:
		return Sample{}, errors.New("there is no table that fits")
	case !v.readable:
		return Sample{}, fmt.Errorf("the role may not read the table: GRANT SELECT ON %s TO it", v.table)
	}
	name := func(role string) string {
		if c := column(role); v.columns[c] != 0 {
			return quoteIdent(c)
		}
		return "NULL"
	}
	asText := "::text"
	if v.columns[column("payload")] == byteaOID {
		asText = ""
	}
	var doc Sample
	err = o.document(ctx, &doc, sampleSQL, name("payload"), name("key"), name("topic"), name("aggregate_type"), name("event_type"),
		v.table, sampleRows, asText, routeCap)
	return doc, err
}
