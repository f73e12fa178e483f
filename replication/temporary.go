package replication

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// OpenTemporary is Open on a slot of its own, which ends with the session: the stream begins with what
// commits from now on, and the relay's slot is not touched. Making it waits for the transactions that
// are writing now, as long as ctx lets it, and says whom it waits for.
func OpenTemporary(ctx context.Context, cfg Config) (_ *Session, err error) {
	pc, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	s := &Session{cfg: cfg, broken: true, wake: make(chan struct{}, 1), nudge: make(chan struct{}, 1)}
	if s.conn, s.sock, err = connectStream(ctx, cfg, pc); err != nil {
		return nil, err
	}
	s.side = newSide(func(ctx context.Context) (*pgconn.PgConn, error) { return connectSide(ctx, cfg, pc, s.sock) })
	defer func() {
		if err != nil {
			s.Close(ctx)
		}
	}()
	if err := s.makeTemporary(ctx, pc); err != nil {
		return nil, err
	}
	checking, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := s.check(checking); err != nil {
		return nil, err
	}
	if err := s.Start(ctx, 0); err != nil {
		return nil, err
	}
	return s, nil
}

// makeTemporary creates the slot on the connection that will stream: it is its session's alone.
func (s *Session) makeTemporary(ctx context.Context, pc *pgconn.Config) error {
	pid := s.conn.PID()
	s.cfg.Slot = "walrelay_temporary_" + strconv.Itoa(int(pid))
	watcher := pc.Copy()
	watcher.DialFunc = s.cfg.dial
	watch, stop := context.WithCancel(ctx)
	seen := make(chan string)
	go func() { seen <- watchBlocker(watch, s.cfg, watcher, int32(pid)) }()
	_, err := pglogrepl.CreateReplicationSlot(ctx, s.conn, `"`+s.cfg.Slot+`"`, "pgoutput", pglogrepl.CreateReplicationSlotOptions{
		Mode: pglogrepl.LogicalReplication, Temporary: true, SnapshotAction: "NOEXPORT_SNAPSHOT",
	})
	stop()
	op := "create a temporary slot"
	if who := <-seen; who != "" {
		op += ", which waits for the end of a transaction (" + who + ")"
	}
	var pe *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pe) && pe.Code == "53400": // configuration_limit_exceeded
		return &SetupError{Reason: fmt.Sprintf("replication: %s: %s", op, pe.Message),
			Remedy: "drop a slot that nobody uses, or raise max_replication_slots and restart Postgres"}
	}
	return classify(op, err)
}
