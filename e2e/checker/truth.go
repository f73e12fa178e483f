package checker

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Truth is the checker's own publication and slot on an outbox table. Nothing is ever
// confirmed on it, so it can be read from its creation on, any number of times.
type Truth struct {
	URL    string // of the database; must not lead through a faulty proxy
	Table  string // as in SQL
	Slot   string // also the publication's name
	Layout Layout
}

// Create makes publication and slot. What commits afterwards is the truth.
func (t Truth) Create(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, t.URL)
	if err != nil {
		return fmt.Errorf("checker: truth: %w", err)
	}
	defer conn.Close(ctx)
	name := pgx.Identifier{t.Slot}.Sanitize()
	_, err = conn.Exec(ctx, "CREATE PUBLICATION "+name+" FOR TABLE "+t.Table+" WITH (publish = 'insert', publish_via_partition_root = true)")
	if err == nil {
		_, err = conn.Exec(ctx, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", t.Slot)
	}
	if err != nil {
		return fmt.Errorf("checker: create the truth's slot %s: %w", t.Slot, err)
	}
	return nil
}

// Drop removes slot and publication.
func (t Truth) Drop(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, t.URL)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", t.Slot)
	_, err2 := conn.Exec(ctx, "DROP PUBLICATION IF EXISTS "+pgx.Identifier{t.Slot}.Sanitize())
	return errors.Join(err, err2)
}

// Read returns every event committed up to now, in commit order.
func (t Truth) Read(ctx context.Context) ([]Event, error) {
	end, err := t.mark(ctx)
	if err != nil {
		return nil, fmt.Errorf("checker: read the truth: %w", err)
	}
	config, err := pgconn.ParseConfig(t.URL)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["timezone"] = "UTC"
	config.RuntimeParams["datestyle"] = "ISO"
	config.RuntimeParams["wal_sender_timeout"] = "0" // nothing is confirmed here, and a busy machine is slow
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("checker: read the truth: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = pglogrepl.StartReplication(ctx, conn, t.Slot, 0, pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '1'", fmt.Sprintf("publication_names '%s'", t.Slot), "messages 'true'"}})
	if err != nil {
		return nil, fmt.Errorf("checker: read the truth: %w", err)
	}
	d := decoder{layout: t.Layout, relations: map[uint32]*pglogrepl.RelationMessage{}}
	for d.position < end {
		msg, err := conn.ReceiveMessage(ctx)
		if err == nil {
			err = d.message(msg)
		}
		if err != nil {
			return nil, fmt.Errorf("checker: read the truth at %s of %s: %w", d.position, end, err)
		}
	}
	return d.events, nil
}

// mark writes a message into the WAL and returns its end: whoever has read it has read
// all that was committed before.
func (t Truth) mark(ctx context.Context) (end pglogrepl.LSN, err error) {
	conn, err := pgx.Connect(ctx, t.URL)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	var s string
	if err := conn.QueryRow(ctx, "SELECT pg_logical_emit_message(true, 'walrelay-e2e', '')::text").Scan(&s); err != nil {
		return 0, err
	}
	return pglogrepl.ParseLSN(s)
}

// decoder follows one stream. It parses with pglogrepl's own parser.
type decoder struct {
	layout    Layout
	relations map[uint32]*pglogrepl.RelationMessage
	txn       []Event
	begin     *pglogrepl.BeginMessage
	events    []Event
	position  pglogrepl.LSN // everything that ends at or before it is in events
}

func (d *decoder) message(msg pgproto3.BackendMessage) error {
	switch msg := msg.(type) {
	case *pgproto3.ErrorResponse:
		return pgconn.ErrorResponseToPgError(msg)
	case *pgproto3.CopyData:
		switch msg.Data[0] {
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			return nil // idle or not: the end is the mark's transaction
		case pglogrepl.XLogDataByteID:
			data, err := pglogrepl.ParseXLogData(msg.Data[1:])
			if err != nil {
				return err
			}
			return d.wal(data.WALData)
		}
	case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		return nil
	}
	return fmt.Errorf("unexpected message %T", msg)
}

func (d *decoder) wal(data []byte) error {
	msg, err := pglogrepl.Parse(data)
	if err != nil {
		return err
	}
	switch msg := msg.(type) {
	case *pglogrepl.RelationMessage:
		d.relations[msg.RelationID] = msg
	case *pglogrepl.BeginMessage:
		d.begin, d.txn = msg, nil
	case *pglogrepl.InsertMessage:
		return d.insert(msg)
	case *pglogrepl.CommitMessage:
		for _, e := range d.txn {
			e.End = msg.TransactionEndLSN
			d.events = append(d.events, e)
		}
		d.position, d.txn = msg.TransactionEndLSN, nil
	}
	return nil
}

func (d *decoder) insert(msg *pglogrepl.InsertMessage) error {
	rel := d.relations[msg.RelationID]
	if rel == nil || len(rel.Columns) != len(msg.Tuple.Columns) {
		return errors.New("row without its relation")
	}
	r := row{}
	for i, c := range msg.Tuple.Columns {
		if c.DataType == pglogrepl.TupleDataTypeText {
			r[rel.Columns[i].Name] = append([]byte{}, c.Data...)
		}
	}
	content, err := d.layout.content(r, d.begin.CommitTime)
	d.txn = append(d.txn, Event{Commit: d.begin.FinalLSN, Seq: uint64(len(d.txn)), Content: content})
	return err
}
