// Package replication reads a logical replication slot: connection, catalog and
// slot checks, the stream, and the setup of what it needs.
//
// One goroutine owns a [Session]'s stream; others set values that it reads.
package replication

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pglogrepl"
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

	// Dial replaces the network; nil means net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	Log  zerolog.Logger
}

// Server is what the server said about itself before the stream began.
type Server struct {
	SystemID         string // IDENTIFY_SYSTEM's systemid
	Timeline         int32
	WALEnd           pglogrepl.LSN // flushed WAL end
	Version          int           // server_version_num
	WALSenderTimeout time.Duration // 0: the server never gives up on a silent client
	Database         string
}

// Slot is the replication slot as it was read before START_REPLICATION.
type Slot struct {
	Confirmed pglogrepl.LSN
	Restart   pglogrepl.LSN
}

// Catalog names the objects whose replacement would hide rows without an error.
type Catalog struct {
	Publication uint32 // oid of the publication
	Membership  uint32 // oid of what puts the table into it (its own row, or its schema's); 0: FOR ALL TABLES
	Table       uint32 // oid of the table
}

// Column is a column of the table that the stream carries.
type Column struct {
	Name     string
	Type     uint32 // type oid
	TypeName string // as format_type prints it, for messages
}

// Kind tells what a [Message] is.
type Kind uint8

const (
	Data      Kind = iota // WAL holds one pgoutput message
	Keepalive             // WALEnd holds the server's position
	Drained               // every byte received is consumed; the next call to Next blocks
	Woken                 // Wake was called
)

// Message is what Next returns.
type Message struct {
	Kind           Kind
	WAL            []byte        // Data: the pgoutput message, valid until the next call to Next
	ServerTime     int64         // Data, Keepalive: when the server sent it, by its clock, µs since the Unix epoch
	WALEnd         pglogrepl.LSN // Keepalive: what was sent up to; safe to confirm only behind all transactions received before it
	ReplyRequested bool          // Keepalive: the server waits for our confirmed position
}

// Session is one logical replication stream and the side connection beside it.
type Session struct {
	Server  Server
	Slot    Slot
	Catalog Catalog
	Columns []Column // the table's published columns
	PID     int32    // of the walsender
}

// Open connects, checks server, slot, publication and table, and starts the
// stream at the slot's own position. The errors are those of this package, or
// transient.
func Open(ctx context.Context, cfg Config) (*Session, error) { panic("not yet") }

// Next returns the next message. Only the goroutine that owns the stream calls
// it; it sends the status updates and answers keepalives. It allocates nothing.
func (s *Session) Next() (Message, error) { panic("not yet") }

// Hold keeps the session alive without reading, while the pipe is full. It
// returns nil when ready is closed or readable, and an error when the connection
// is known to be broken. Owner only.
func (s *Session) Hold(ready <-chan struct{}) error { panic("not yet") }

// Bulk reports whether a backlog is being read: reads are coalesced, and a batch
// that is not full may wait. Owner only.
func (s *Session) Bulk() bool { panic("not yet") }

// Wake makes Next return Woken, at once or the next time it would block.
func (s *Session) Wake() { panic("not yet") }

// Confirm lets the next status update carry lsn as written, flushed and applied.
// It is monotone: a lower lsn than one confirmed before is ignored.
func (s *Session) Confirm(lsn pglogrepl.LSN) { panic("not yet") }

// Heard returns the time of the newest proof that the server was alive.
func (s *Session) Heard() time.Time { panic("not yet") }

// Verify proves, in one query on the side connection, that publication and table
// still are what they were at Open: *ContinuityError if not.
func (s *Session) Verify(ctx context.Context) error { panic("not yet") }

// HoldsSlot proves on the side connection that the slot is held by this session.
func (s *Session) HoldsSlot(ctx context.Context) error { panic("not yet") }

// Marker writes a logical message into the WAL and returns its end: all that was
// committed before the call lies below.
func (s *Session) Marker(ctx context.Context) (pglogrepl.LSN, error) { panic("not yet") }

// WALPosition returns the server's pg_current_wal_lsn().
func (s *Session) WALPosition(ctx context.Context) (pglogrepl.LSN, error) { panic("not yet") }

// Close sends the confirmed position, ends the stream in good order as far as
// ctx allows, and closes both connections. Only when no other call is running.
func (s *Session) Close(ctx context.Context) error { panic("not yet") }
