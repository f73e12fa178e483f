package replication

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// SetupOptions says what a setup creates beside publication and slot.
type SetupOptions struct {
	CreateTable bool
	Role        string // "": no role
	DropAnchor  bool   // nothing but this
}

// Step is one statement of a setup.
type Step struct {
	Name string // what it makes, as in "publication walrelay"
	SQL  string // without the final semicolon
	Why  string // for a DBA

	Drop bool // it takes away what it names, instead of making it

	Done bool   // Setup: it was there before; with Drop: it was not
	Made bool   // Setup: it is there now; with Drop: it is not
	Note string // Setup: what is there differs from what the step makes, and does it matter

	exists string // SQL with a row where it is there
}

// Plan returns the statements of a fresh install, in order. It doesn't connect.
func Plan(cfg Config, opts SetupOptions) ([]Step, error) {
	if _, err := cfg.parse(); err != nil {
		return nil, err
	}
	if opts.DropAnchor {
		return []Step{dropAnchor(cfg)}, nil
	}
	schema, table := cfg.Table.Schema, cfg.Table.String()
	schemaLit, tableLit := quoteLiteral(schema), quoteLiteral(cfg.Table.Name)
	var steps []Step
	if opts.CreateTable && schema != "public" {
		steps = append(steps, Step{
			Name:   "schema " + quoteIdent(schema),
			SQL:    "CREATE SCHEMA IF NOT EXISTS " + quoteIdent(schema),
			Why:    "Holds the outbox.",
			exists: "SELECT 1 FROM pg_namespace WHERE nspname = " + schemaLit,
		})
	}
	if opts.CreateTable {
		steps = append(steps, Step{
			Name: "table " + table,
			SQL:  "CREATE TABLE IF NOT EXISTS " + table + outboxColumns,
			Why:  "Services insert here, in the transaction of the change that the event is about.",
			exists: "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = " + schemaLit +
				" AND relname = " + tableLit,
		})
	}
	steps = append(steps,
		Step{
			Name: "publication " + quoteIdent(cfg.Publication),
			SQL: "CREATE PUBLICATION " + quoteIdent(cfg.Publication) + " FOR TABLE " + table +
				" WITH (publish = 'insert', publish_via_partition_root = true)",
			Why:    "What is streamed: inserts only, so deletes in the outbox cost nothing. It must exist before the slot.",
			exists: "SELECT 1 FROM pg_publication WHERE pubname = " + quoteLiteral(cfg.Publication),
		},
		Step{
			Name:   "slot " + cfg.Slot,
			SQL:    "SELECT pg_create_logical_replication_slot(" + quoteLiteral(cfg.Slot) + ", 'pgoutput')",
			Why:    "The stream begins here: rows committed later are delivered. It waits for open writing transactions to end.",
			exists: "SELECT 1 FROM pg_replication_slots WHERE slot_name = " + quoteLiteral(cfg.Slot),
		})
	if cfg.ReplayRetain > 0 {
		steps = append(steps, anchorStep(cfg))
	}
	if opts.Role == "" {
		return steps, nil
	}
	if err := checkIdent(opts.Role); err != nil {
		return nil, &SetupError{Reason: fmt.Sprintf("role name %q: %v", opts.Role, err), Remedy: "set --role"}
	}
	return append(steps, rolePlan(opts.Role, schema, table)...), nil
}

// anchorStep copies the slot: so the anchor reaches as far back as the slot does, and no
// open transaction is waited for.
func anchorStep(cfg Config) Step {
	return Step{
		Name: "anchor " + AnchorSlot(cfg.Slot),
		SQL:  "SELECT pg_copy_logical_replication_slot(" + quoteLiteral(cfg.Slot) + ", " + quoteLiteral(AnchorSlot(cfg.Slot)) + ")",
		Why: "A replay begins here. `walrelay run` keeps it behind the slot by --replay-retain, and the server keeps that much WAL more;\n" +
			"a replay needs one more free slot and sender while it runs.",
		exists: "SELECT 1 FROM pg_replication_slots WHERE slot_name = " + quoteLiteral(AnchorSlot(cfg.Slot)),
	}
}

func dropAnchor(cfg Config) Step {
	return Step{
		Name:   "anchor " + AnchorSlot(cfg.Slot),
		SQL:    "SELECT pg_drop_replication_slot(" + quoteLiteral(AnchorSlot(cfg.Slot)) + ")",
		Why:    "Nothing can be replayed any more, and the server no longer keeps WAL for it.",
		Drop:   true,
		exists: "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = " + quoteLiteral(AnchorSlot(cfg.Slot)) + ")",
	}
}

// outboxColumns are those that the relay looks for by default. Only event_id,
// aggregate_id and payload have to be there.
const outboxColumns = ` (
    event_id        text PRIMARY KEY DEFAULT gen_random_uuid()::text,
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    payload         jsonb,
    topic           text,
    headers         jsonb,
    correlation_id  text,
    idempotency_key text,
    created_at      timestamptz DEFAULT clock_timestamp()
)`

func rolePlan(role, schema, table string) []Step {
	ident, lit := quoteIdent(role), quoteLiteral(role)
	return []Step{
		{
			Name: "role " + ident,
			SQL:  "CREATE ROLE " + ident + " LOGIN REPLICATION",
			Why: "All that streaming needs. It has no password yet: set one with \\password " + ident + " in psql.\n" +
				"REPLICATION is a power over the whole cluster: contain it in pg_hba.conf.",
			exists: "SELECT 1 FROM pg_roles WHERE rolname = " + lit,
		},
		{
			Name: "CONNECT for " + ident,
			SQL: "DO $$ BEGIN\n" +
				"    EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), " + lit + ");\n" +
				"END $$",
			Why:    "On this database only.",
			exists: "SELECT 1 FROM pg_roles WHERE rolname = " + lit + " AND has_database_privilege(oid, current_database(), 'CONNECT')",
		},
		{
			Name: "USAGE for " + ident,
			SQL:  "GRANT USAGE ON SCHEMA " + quoteIdent(schema) + " TO " + ident,
			Why: "To see the table. Reading it is only needed to publish from the table itself:\n" +
				"GRANT SELECT ON " + table + " TO " + ident + ";",
			exists: "SELECT 1 FROM pg_roles r JOIN pg_namespace n ON nspname = " + quoteLiteral(schema) + " WHERE rolname = " + lit +
				" AND has_schema_privilege(r.oid, n.oid, 'USAGE')",
		},
	}
}

// WriteSQL writes steps as a script for psql, which must run each statement in a
// transaction of its own: a slot can't be created behind a write.
func WriteSQL(w io.Writer, steps []Step) error {
	out := bufio.NewWriter(w)
	for i, step := range steps {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "-- %s\n%s;\n", strings.ReplaceAll(step.Why, "\n", "\n-- "), step.SQL)
	}
	return out.Flush()
}
