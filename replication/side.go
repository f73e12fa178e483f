package replication

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// side is the ordinary connection beside the stream. It is made again when it is
// lost, but not in a tight loop: while it can't be made, calls fail at once.
type side struct {
	connect func(ctx context.Context) (*pgconn.PgConn, error)

	lock chan struct{} // holds a token while a call runs; bounds what is below
	conn *pgconn.PgConn
	next time.Time // no new attempt before
	wait time.Duration
	err  error // why the last attempt failed
}

const (
	sideTimeout = 5 * time.Second // of a call whose context has no deadline
	sideBackoff = 5 * time.Second // longest pause between attempts to connect
)

// never is when a closed side connection is made again.
var never = time.Unix(1<<40, 0)

func newSide(connect func(ctx context.Context) (*pgconn.PgConn, error)) *side {
	return &side{connect: connect, lock: make(chan struct{}, 1)}
}

// row is row on the side connection. A connection that turns out to be dead is
// replaced once.
func (d *side) row(ctx context.Context, sql string) ([][]byte, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, sideTimeout)
		defer cancel()
	}
	select {
	case d.lock <- struct{}{}:
		defer func() { <-d.lock }()
	case <-ctx.Done():
		return nil, fmt.Errorf("replication: side connection: %w", ctx.Err())
	}
	for old := d.conn != nil; ; old = false {
		if err := d.open(ctx); err != nil {
			return nil, err
		}
		got, err := row(ctx, d.conn, sql)
		if err == nil {
			return got, nil
		}
		if d.conn.IsClosed() {
			hangUp(ctx, d.conn)
			d.conn = nil
			if old && ctx.Err() == nil {
				continue
			}
		}
		return nil, classify("query the catalog", err)
	}
}

func (d *side) open(ctx context.Context) error {
	if d.conn != nil {
		return nil
	}
	if now := time.Now(); now.Before(d.next) {
		return d.err
	}
	d.conn, d.err = d.connect(ctx)
	if d.err == nil {
		d.wait = 0
		return nil
	}
	d.wait = min(max(2*d.wait, 100*time.Millisecond), sideBackoff)
	d.next = time.Now().Add(d.wait)
	return d.err
}

// close closes the connection for good, when a call that is running has ended.
func (d *side) close(ctx context.Context) {
	d.lock <- struct{}{}
	defer func() { <-d.lock }()
	d.next, d.err = never, fmt.Errorf("replication: side connection: %w", net.ErrClosed)
	if d.conn != nil {
		hangUp(ctx, d.conn)
		d.conn = nil
	}
}

// clockSQL is the SQL for the server's clock, µs since the Unix epoch.
const clockSQL = `floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// setClock takes the server's clock as it was within a call that has just ended.
func (s *Session) setClock(server []byte) {
	if t, err := strconv.ParseInt(string(server), 10, 64); err == nil {
		s.offset.Store(now() - t)
	}
}

// HoldsSlot proves that the slot is held by this session: nobody else can have
// taken it over. Any goroutine.
func (s *Session) HoldsSlot(ctx context.Context) error {
	asked := now()
	got, err := s.side.row(ctx, fmt.Sprintf(`/* walrelay: holder */ SELECT active_pid, %s FROM pg_replication_slots WHERE slot_name = %s`,
		clockSQL, quoteLiteral(s.cfg.Slot)))
	if err != nil {
		return err
	}
	if got == nil || string(got[0]) != strconv.Itoa(int(s.PID)) {
		return fmt.Errorf("replication: slot %q is no longer held by this session", s.cfg.Slot)
	}
	s.setClock(got[1])
	s.heard.Store(asked)
	return nil
}

// Marker writes a logical message into the WAL and returns its end: all that was
// committed before the call lies below it. Any goroutine.
func (s *Session) Marker(ctx context.Context) (pglogrepl.LSN, error) {
	return s.lsn(ctx, `/* walrelay: marker */ SELECT pg_logical_emit_message(true, 'walrelay', '')`)
}

// WALPosition returns where the server writes WAL now. Any goroutine.
func (s *Session) WALPosition(ctx context.Context) (pglogrepl.LSN, error) {
	return s.lsn(ctx, `/* walrelay: position */ SELECT pg_current_wal_lsn()`)
}

func (s *Session) lsn(ctx context.Context, sql string) (pglogrepl.LSN, error) {
	got, err := s.side.row(ctx, sql)
	if err != nil {
		return 0, err
	}
	if got == nil {
		return 0, errors.New("replication: query the WAL position: no row")
	}
	return parseLSN(got[0])
}

func parseLSN(b []byte) (pglogrepl.LSN, error) {
	lsn, err := pglogrepl.ParseLSN(string(b))
	if err != nil {
		return 0, fmt.Errorf("replication: LSN %q: %w", b, err)
	}
	return lsn, nil
}

// Headroom returns how many bytes of WAL may still be written before the server
// gives the slot up; ok is false where it never does (max_slot_wal_keep_size = -1).
// Any goroutine.
func (s *Session) Headroom(ctx context.Context) (bytes int64, ok bool, err error) {
	got, err := s.side.row(ctx, fmt.Sprintf(`/* walrelay: headroom */ SELECT safe_wal_size FROM pg_replication_slots WHERE slot_name = %s`,
		quoteLiteral(s.cfg.Slot)))
	if err != nil || got == nil || got[0] == nil {
		return 0, false, err
	}
	bytes, err = strconv.ParseInt(string(got[0]), 10, 64)
	return bytes, err == nil, err
}

// Snapshot returns a transaction id and an LSN: every transaction with an id below xmin has
// ended, and what it wrote lies below at. The statement's snapshot is taken before its
// functions are called; the insert position, because a commit may be seen before it is flushed. Any goroutine.
func (s *Session) Snapshot(ctx context.Context) (xmin uint64, at pglogrepl.LSN, err error) {
	got, err := s.side.row(ctx, `/* walrelay: snapshot */ SELECT pg_snapshot_xmin(pg_current_snapshot()), pg_current_wal_insert_lsn()`)
	if err != nil {
		return 0, 0, err
	}
	if len(got) != 2 {
		return 0, 0, errors.New("replication: query the snapshot: no row")
	}
	if xmin, err = strconv.ParseUint(string(got[0]), 10, 64); err != nil {
		return 0, 0, fmt.Errorf("replication: query the snapshot: %w", err)
	}
	at, err = parseLSN(got[1])
	return xmin, at, err
}
