package workload

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// act runs one transaction of a random kind.
func (w *writer) act(ctx context.Context) error {
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return err
	}
	t := &transaction{writer: w, ctx: ctx, tx: tx}
	if w.o.Single {
		t.insert(1)
		return t.commit()
	}
	n := 1 + w.rng.IntN(w.o.MaxRows)
	switch k := w.rng.IntN(100); {
	case k < 40:
		t.insert(n)
	case k < 50: // statement by statement, with others in between
		for range n {
			t.insert(1)
		}
		t.exec("SELECT pg_sleep(0.003)")
		t.insert(1)
	case k < 60:
		t.insert(n)
		return t.rollback()
	case k < 72:
		t.savepoints(n)
	case k < 80:
		t.copy(3*n, true)
	case k < 86:
		t.copy(3*n, false)
	case k < 94:
		t.insertAndDelete(n)
	default: // no outbox row at all
		t.exec("SELECT pg_logical_emit_message(true, 'business', 'change')")
	}
	return t.commit()
}

// transaction collects the first error, so that a kind of transaction reads like SQL.
type transaction struct {
	*writer
	ctx  context.Context
	tx   pgx.Tx
	live int // rows that a commit commits
	gone int // rows that a savepoint took back
	err  error
}

func (t *transaction) exec(sql string, args ...any) {
	if t.err == nil {
		_, t.err = t.tx.Exec(t.ctx, sql, args...)
	}
}

func (t *transaction) commit() error {
	if t.err != nil {
		return t.err
	}
	if err := t.tx.Commit(t.ctx); err != nil {
		t.stats.Unknown++
		return err
	}
	t.stats.Transactions++
	t.stats.Rows += t.live
	t.stats.RolledBack += t.gone
	return nil
}

func (t *transaction) rollback() error {
	t.stats.RolledBack += t.live + t.gone
	if t.err != nil {
		return t.err
	}
	return t.tx.Rollback(t.ctx)
}

// insert writes n rows with one statement.
func (t *transaction) insert(n int) {
	var values []string
	var args []any
	for range n {
		var places []string
		for _, v := range t.row(t.rng.IntN(3) > 0) {
			if v == useDefault {
				places = append(places, "DEFAULT")
				continue
			}
			args = append(args, v)
			places = append(places, fmt.Sprintf("$%d", len(args)))
		}
		values = append(values, "("+strings.Join(places, ", ")+")")
	}
	t.exec("INSERT INTO "+t.o.Table+" ("+strings.Join(columns, ", ")+") VALUES "+strings.Join(values, ", "), args...)
	t.live += n
}

// savepoints keeps some rows and takes others back, also nested.
func (t *transaction) savepoints(n int) {
	t.insert(n)
	t.exec("SAVEPOINT a")
	t.insert(1 + t.rng.IntN(n))
	t.exec("SAVEPOINT b")
	before := t.live
	t.insert(1 + t.rng.IntN(n))
	switch t.rng.IntN(3) {
	case 0:
		t.exec("RELEASE b")
	case 1:
		t.exec("ROLLBACK TO b")
		t.gone, t.live = t.gone+t.live-before, before
	case 2:
		t.exec("ROLLBACK TO a")
		t.gone, t.live = t.gone+t.live-n, n
	}
	t.insert(1)
}

func (t *transaction) copy(n int, withIDs bool) {
	names, from := columns, 0
	if !withIDs {
		names, from = columns[1:], 1
	}
	var rows [][]any
	for range n {
		r := t.row(true)[from:]
		for i, v := range r {
			if v == useDefault { // COPY has no DEFAULT
				r[i] = nil
			}
		}
		rows = append(rows, r)
	}
	if t.err == nil {
		_, t.err = t.tx.CopyFrom(t.ctx, pgx.Identifier(strings.Split(t.o.Table, ".")), names, pgx.CopyFromRows(rows))
	}
	t.live += n
}

// insertAndDelete empties the outbox where it fills it; the inserts count.
func (t *transaction) insertAndDelete(n int) {
	first := t.rows
	t.insert(n)
	var ids []string
	for i := first; i < t.rows; i++ {
		ids = append(ids, t.eventID(i))
	}
	t.exec("DELETE FROM "+t.o.Table+" WHERE event_id = ANY($1)", ids)
}
