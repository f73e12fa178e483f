package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// Ground is what a saved position has to fit: server, slot and catalog as they are.
type Ground struct {
	Server   Server
	Slot     Slot
	Catalog  Catalog
	Columns  []Column // the table's published columns
	Warnings []string // what works, but costs or will bite
}

// Survey is the ground, and what stands against streaming from it.
type Survey struct {
	Ground
	SlotFault    error // a *ContinuityError, or wraps ErrSlotInUse; Slot is then zero
	CatalogFault error // a *ContinuityError; Catalog and Columns are then zero

	pid   int32
	clock []byte
}

// LookAround surveys the server on a connection of its own, without taking the slot.
func LookAround(ctx context.Context, cfg Config) (*Survey, error) {
	pc, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	conn, _, err := connectStream(ctx, cfg, pc)
	if err != nil {
		return nil, err
	}
	defer hangUp(context.WithoutCancel(ctx), conn)
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return survey(ctx, conn, cfg)
}

// survey asks on a replication connection. Its own error means that nothing is known.
func survey(ctx context.Context, conn *pgconn.PgConn, cfg Config) (*Survey, error) {
	query := func(ctx context.Context, sql string) ([][]byte, error) {
		got, err := row(ctx, conn, sql)
		if err != nil {
			err = classify("check the server", err)
		}
		return got, err
	}
	var s Survey
	var err error
	if s.Server, s.pid, s.clock, err = readServer(ctx, conn, query); err != nil {
		return nil, err
	}
	s.Slot, err = readSlot(ctx, query, cfg.Slot, s.Server.Database, s.pid)
	if s.SlotFault = err; err != nil && !isFault(err) {
		return nil, err
	}
	id, err := pglogrepl.IdentifySystem(ctx, conn)
	if err != nil {
		return nil, classify("identify the system", err)
	}
	s.Server.SystemID, s.Server.Timeline, s.Server.WALEnd = id.SystemID, id.Timeline, id.XLogPos
	if s.Slot.Confirmed > s.Server.WALEnd {
		s.SlotFault = &ContinuityError{
			Fault: Restored,
			Reason: fmt.Sprintf("replication: slot %q is confirmed up to %s, beyond the end of the server's WAL: the cluster was restored to an earlier state",
				cfg.Slot, s.Slot.Confirmed),
			From: s.Slot.Restart, To: s.Slot.Confirmed,
		}
	}
	cat, err := readCatalog(ctx, query, cfg, s.Server.Version)
	if s.CatalogFault = err; err != nil {
		if isFault(err) {
			err = nil
		}
		return &s, err
	}
	s.Catalog, s.Columns, s.Warnings = cat.oids, cat.columns, cat.warnings
	return &s, nil
}

// isFault tells what is wrong with the ground from what kept us from seeing it.
func isFault(err error) bool {
	return errors.As(err, new(*ContinuityError)) || errors.Is(err, ErrSlotInUse)
}
