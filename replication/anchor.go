package replication

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// Anchor is the slot that replays are copied from, as it was when it was looked at: a
// second slot, which nobody streams from and which stays some WAL behind the first.
//
// Postgres raises a start LSN below a slot's own in silence, so the live slot can't show
// again what it has confirmed. The anchor can, and is not moved by it: what is streamed is a
// temporary copy.
type Anchor struct {
	Slot string
	LSN  pglogrepl.LSN // transactions that commit here or later can be replayed

	// What it costs, and what the server lets it cost.
	WALBytes int64 // of WAL that the server keeps for it
	Headroom int64 // of WAL that may still be written before the server gives it up; -1: without limit
	Limit    int64 // max_slot_wal_keep_size in bytes; -1: none
	XIDs     int64 // transactions since the oldest one whose catalog rows are kept from vacuum

	// IdleTimeout is after how long the server gives up a slot that nobody touches
	// (idle_replication_slot_timeout, from Postgres 18 on); 0: never.
	IdleTimeout time.Duration
}

const anchorSQL = `/* walrelay: anchor */ SELECT confirmed_flush_lsn, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint,` +
	` coalesce(safe_wal_size, -1), coalesce(age(catalog_xmin), 0),` +
	` (SELECT CASE WHEN setting::bigint < 0 THEN -1 ELSE setting::bigint * 1048576 END FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),` +
	` coalesce((SELECT setting FROM pg_settings WHERE name = 'idle_replication_slot_timeout'), '0')` +
	` FROM pg_replication_slots WHERE slot_name = %s`

// readAnchor returns a *ContinuityError where there is no anchor that can be copied.
func readAnchor(ctx context.Context, query querier, cfg Config, database string, pid int32) (Anchor, error) {
	name := AnchorSlot(cfg.Slot)
	fail := func(err error) (Anchor, error) { return Anchor{}, err }
	got, err := query(ctx, fmt.Sprintf(anchorSQL, quoteLiteral(name)))
	if err != nil {
		return fail(err)
	}
	if got == nil {
		return fail(&ContinuityError{
			Reason: fmt.Sprintf("replication: there is nothing to replay from: the anchor, slot %q, does not exist", name),
			Remedy: "create it with `walrelay setup --replay-retain SIZE`, and give `walrelay run` the same option: what is committed from then on can be replayed",
		})
	}
	var ce *ContinuityError
	if _, err := readSlot(ctx, query, name, database, pid); errors.As(err, &ce) {
		ce.Fault, ce.Remedy = 0, "nothing can be replayed from it; drop it (`walrelay setup --drop-anchor`) and create it anew (`walrelay setup --replay-retain SIZE`)"
		return fail(ce)
	} else if err != nil && !errors.Is(err, ErrSlotInUse) { // it may be moved, or copied, at this moment
		return fail(err)
	}
	if len(got) != 6 {
		return fail(fmt.Errorf("replication: check the anchor: %d columns", len(got)))
	}
	a := Anchor{Slot: name}
	if a.LSN, err = parseLSN(got[0]); err != nil {
		return fail(err)
	}
	var idle int64
	for i, dst := range []*int64{&a.WALBytes, &a.Headroom, &a.XIDs, &a.Limit, &idle} {
		if *dst, err = strconv.ParseInt(string(got[i+1]), 10, 64); err != nil {
			return fail(fmt.Errorf("replication: check the anchor: %w", err))
		}
	}
	a.IdleTimeout = time.Duration(idle) * time.Second
	return a, nil
}

// Anchor looks at the anchor; a *ContinuityError says that there is none to replay from.
// Any goroutine.
func (s *Session) Anchor(ctx context.Context) (Anchor, error) {
	return readAnchor(ctx, s.side.row, s.cfg, s.Server.Database, s.PID)
}

// AdvanceAnchor moves the anchor to lsn; its own LSN only shows the server that it is in
// use. It takes a connection of its own: the server reads the WAL from the
// oldest transaction on that was open at the anchor, and nothing else should wait for that.
func (s *Session) AdvanceAnchor(ctx context.Context, lsn pglogrepl.LSN) error {
	conn, err := s.side.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(context.WithoutCancel(ctx), conn)
	for _, sql := range []string{
		`/* walrelay: patience */ SET statement_timeout = 0`,
		fmt.Sprintf(`/* walrelay: advance */ SELECT end_lsn FROM pg_replication_slot_advance(%s, '%s')`, quoteLiteral(AnchorSlot(s.cfg.Slot)), lsn),
	} {
		if _, err := row(ctx, conn, sql); err != nil {
			return classify("advance the anchor", err)
		}
	}
	return nil
}

// copyPrefix is what the names of copies begin with; the walsender's pid follows.
const copyPrefix = "walrelay_replay_"

// OpenCopy connects, makes a temporary copy of the anchor, which ends with the session,
// and checks what Open checks. [Session.Start] begins to stream; Slot is the copy until then, so that
// Slot.Confirmed is the first LSN that can be streamed.
func OpenCopy(ctx context.Context, cfg Config) (*Session, error) {
	return connectAndCheck(ctx, cfg, true)
}

// copyAnchor makes the copy on the connection that will stream: a temporary slot is its
// session's alone.
func (s *Session) copyAnchor(ctx context.Context, server Server) (Slot, error) {
	query := func(ctx context.Context, sql string) ([][]byte, error) {
		got, err := row(ctx, s.conn, sql)
		if err != nil {
			err = classify("copy the anchor", err)
		}
		return got, err
	}
	if _, err := readAnchor(ctx, query, s.cfg, server.Database, s.PID); err != nil {
		return Slot{}, err
	}
	name := copyPrefix + strconv.Itoa(int(s.PID))
	_, err := query(ctx, fmt.Sprintf(`/* walrelay: copy */ SELECT lsn FROM pg_copy_logical_replication_slot(%s, %s, true)`,
		quoteLiteral(AnchorSlot(s.cfg.Slot)), quoteLiteral(name)))
	var pe *pgconn.PgError
	switch {
	case errors.As(err, &pe) && pe.Code == "53400": // configuration_limit_exceeded
		return Slot{}, &SetupError{Reason: "replication: copy the anchor: " + pe.Message,
			Remedy: "a replay needs one free slot: drop one that nobody uses, or raise max_replication_slots and restart Postgres"}
	case err != nil:
		return Slot{}, err
	}
	s.cfg.Slot = name
	return readSlot(ctx, query, name, server.Database, s.PID)
}

// ConfirmedBy returns what a slot has confirmed; 0/0 where it does not exist. Any goroutine.
func (s *Session) ConfirmedBy(ctx context.Context, slot string) (pglogrepl.LSN, error) {
	got, err := s.side.row(ctx, fmt.Sprintf(`/* walrelay: confirmed */ SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s`, quoteLiteral(slot)))
	if err != nil || got == nil {
		return 0, err
	}
	return parseLSN(got[0])
}
