// Package replication reads a logical replication slot: connection, catalog and
// slot checks, the stream, and the setup of what it needs.
//
// One goroutine owns a [Session]'s stream; others set values that it reads.
package replication

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"
)

// Config says what to stream from where.
type Config struct {
	// URL is a libpq connection string, URL or keywords; PG* variables, service
	// and password files and sslmode mean what they mean to libpq.
	URL         string
	Table       Table
	Publication string
	Slot        string

	// ReplayRetain is how many bytes of WAL the anchor is kept behind; 0: there is none.
	ReplayRetain int

	// Dial replaces the network; nil means net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	Log  zerolog.Logger
}

// Session is one logical replication stream and the side connection beside it.
type Session struct {
	Ground
	PID int32 // of the walsender

	cfg  Config
	copy bool // the slot is a copy of the anchor; see OpenCopy
	conn *pgconn.PgConn
	sock *socket // below conn's TLS
	side *side

	// Set by any goroutine, read by the owner of the stream.
	confirmed atomic.Uint64 // the LSN that status updates carry; from the slot's own on, monotone
	unsent    atomic.Bool   // confirmed moved since the last status update
	wake      chan struct{} // Wake's token
	nudge     chan struct{} // Confirm's token, for Hold

	// Set by the owner and by HoldsSlot, read by any goroutine. µs since the Unix epoch.
	heard  atomic.Int64 // when the newest message was sent, by our clock: see now
	offset atomic.Int64 // our clock minus the server's, at most a round trip too much

	// The owner's.
	told   bool        // Drained was returned since the last message
	broken bool        // the stream has failed, or has not begun
	noise  int         // messages in a row that nobody needs to see
	timer  *time.Timer // for Hold and sleep

	serverTime int64 // when the newest message was sent, by the server's clock, µs
	commitTime int64 // of the transaction being read, by the server's clock, µs
	lag        int64 // age of that commit when the newest row was sent, µs

	every      time.Duration // between status updates when nothing is new
	probeAfter time.Duration
	floodGap   time.Duration
	sent       time.Time // of the last status update
	replyDue   bool      // the server asked for one
	waited     time.Time // when we last listened
	silent     time.Time // since when nothing came although we listened
	probed     time.Time // when we asked for a sign of life since then; zero: not yet
	askedAt    time.Time // of the server's newest question
	firstAsk   time.Time // of the row of questions that it belongs to
	asks       int       // in that row
	flood      time.Time // firstAsk, if the row is long enough to mean a shutdown
}

// Open connects, checks server, slot, publication and table, and starts the
// stream at the slot's own position. Errors are those of this package, or transient.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	s, err := connectAndCheck(ctx, cfg, false)
	if err != nil {
		return nil, err
	}
	if err := s.Start(ctx, 0); err != nil {
		s.Close(ctx)
		return nil, err
	}
	return s, nil
}

// connectAndCheck is Open without the start; copied is OpenCopy's.
func connectAndCheck(ctx context.Context, cfg Config, copied bool) (*Session, error) {
	pc, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	s := &Session{cfg: cfg, copy: copied, broken: true, wake: make(chan struct{}, 1), nudge: make(chan struct{}, 1)}
	if s.conn, s.sock, err = connectStream(ctx, cfg, pc); err != nil {
		return nil, err
	}
	s.side = newSide(func(ctx context.Context) (*pgconn.PgConn, error) { return connectSide(ctx, cfg, pc, s.sock) })
	checking, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := s.check(checking); err != nil {
		s.Close(ctx)
		return nil, err
	}
	return s, nil
}

// openTimeout bounds what comes between connecting and the stream: each step is an
// answer from memory, and a link that falls silent here is not watched by anything else.
const openTimeout = 30 * time.Second

// Start takes the slot and begins to stream what commits at from or later; [Open] has done
// so with 0/0, the slot's own position. The server skips in silence up to any other one, even if the LSN
// belongs to WAL that this server never wrote: only a copy of the anchor is started elsewhere.
// After an error the session is only good for Close.
func (s *Session) Start(ctx context.Context, from pglogrepl.LSN) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := s.start(ctx, from); err != nil {
		return err
	}
	s.broken = false
	return nil
}

func (s *Session) start(ctx context.Context, from pglogrepl.LSN) error {
	err := pglogrepl.StartReplication(ctx, s.conn, `"`+s.cfg.Slot+`"`, from, pglogrepl.StartReplicationOptions{
		Mode: pglogrepl.LogicalReplication,
		PluginArgs: []string{
			"proto_version '1'",
			"publication_names " + quoteLiteral(`"`+strings.ReplaceAll(s.cfg.Publication, `"`, `""`)+`"`),
			"messages 'false'",
		},
	})
	if err != nil {
		return classifyStart(s.cfg.Slot, err)
	}
	// Nobody else moves the slot from here on. Read again what it says: another
	// session may have confirmed more between our check and our start.
	if s.Slot, err = readSlot(ctx, s.side.row, s.cfg.Slot, s.Server.Database, s.PID); err != nil {
		return err
	}
	if err := s.HoldsSlot(ctx); err != nil {
		return s.lastWords(ctx, err)
	}
	s.confirmed.Store(uint64(s.Slot.Confirmed))
	s.sock.streaming = true
	s.timer = time.NewTimer(time.Hour)
	s.timer.Stop()
	s.every, s.probeAfter, s.floodGap = statusEvery, probeAfter, floodGap
	if t := s.Server.WALSenderTimeout; t > 0 {
		s.every, s.probeAfter, s.floodGap = min(s.every, t/4), min(s.probeAfter, t/2), min(s.floodGap, t/4)
	}
	s.serverTime = now() - s.offset.Load()
	s.commitTime = s.serverTime
	now := time.Now()
	s.waited, s.silent = now, now
	return nil
}

// lastWords returns what the server said in the stream if it has ended already: that
// is the cause of err. A publication that is missing at the first row, for one, ends the
// walsender within milliseconds.
func (s *Session) lastWords(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for {
		raw, end := s.conn.ReceiveMessage(ctx)
		var pe *pgconn.PgError
		if errors.As(end, &pe) {
			return classifyStream(s.cfg, pe)
		}
		if end != nil {
			return err
		}
		if _, _, said := s.take(raw); said != nil {
			return said
		}
	}
}

// Close sends the confirmed position, ends the stream in good order as far as
// ctx allows, and closes both connections. It returns an error if the server may
// not have seen that position. Calls on the side connection that are running end first.
func (s *Session) Close(ctx context.Context) error {
	var err error
	if !s.broken {
		s.broken = true
		err = s.goodbye(ctx)
	}
	hangUp(ctx, s.conn)
	s.side.close(ctx)
	return err
}

// goodbye returns when the server has answered our CopyDone, which it reads
// behind the last status.
func (s *Session) goodbye(ctx context.Context) error {
	s.sock.streaming = false
	if err := s.sock.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("replication: end the stream: %w", err)
	}
	defer context.AfterFunc(ctx, func() { s.sock.SetReadDeadline(past) })()
	if err := s.status(time.Now(), false); err != nil {
		return err
	}
	if _, err := pglogrepl.SendStandbyCopyDone(ctx, s.conn); err != nil {
		return fmt.Errorf("replication: end the stream: %w", err)
	}
	return nil
}
