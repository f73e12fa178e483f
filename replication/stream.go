package replication

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

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

// y2k is the epoch of the protocol's timestamps, µs since the Unix epoch.
const y2k = 946684800 * 1000000

// Next returns the next message. Only the goroutine that owns the stream calls
// it; it sends the status updates, answers keepalives and finds a dead link. It
// allocates nothing per message. After an error the session is only good for Close.
func (s *Session) Next() (Message, error) {
	for {
		kind, body, err := s.sock.in.next()
		switch {
		case err == nil:
			m, ok, err := s.message(kind, body)
			if err != nil {
				return Message{}, s.fail(err)
			}
			if ok {
				s.told, s.noise = false, 0
				return m, nil
			}
			if s.noise++; s.noise > maxNoise {
				return Message{}, s.fail(fmt.Errorf("replication: read the stream: %d messages in a row that say nothing", s.noise))
			}
		case !errors.Is(err, errDrained):
			return Message{}, s.fail(fmt.Errorf("replication: read the stream: %w", err))
		case !s.told:
			s.told = true
			s.publishHeard()
			return Message{Kind: Drained}, nil
		default:
			why, err := s.wait()
			if err != nil {
				return Message{}, s.fail(err)
			}
			if why != arrived {
				return Message{Kind: why}, nil
			}
		}
	}
}

// maxNoise is how many notices and the like may come in a row: while they do, nobody looks up.
const maxNoise = 10_000

// message reads one message of the stream; ok is false for what nobody needs to see.
func (s *Session) message(kind byte, body []byte) (m Message, ok bool, err error) {
	var raw pgproto3.BackendMessage
	switch kind {
	case 'd':
		return s.copyData(body)
	case 'E':
		raw = new(pgproto3.ErrorResponse)
	case 'N':
		raw = new(pgproto3.NoticeResponse)
	case 'S':
		raw = new(pgproto3.ParameterStatus)
	case 'c':
		raw = new(pgproto3.CopyDone)
	case 'C':
		raw = new(pgproto3.CommandComplete)
	case 'Z':
		raw = new(pgproto3.ReadyForQuery)
	default:
		return m, false, fmt.Errorf("replication: read the stream: unexpected message of type %q", kind)
	}
	if err := raw.Decode(body); err != nil {
		return m, false, fmt.Errorf("replication: read the stream: %w", err)
	}
	return s.take(raw)
}

// take turns a protocol message into one of ours; ok is false for what nobody
// needs to see. In the stream errors and notices are messages like any other.
func (s *Session) take(raw pgproto3.BackendMessage) (m Message, ok bool, err error) {
	switch raw := raw.(type) {
	case *pgproto3.CopyData:
		return s.copyData(raw.Data)
	case *pgproto3.ErrorResponse:
		return m, false, classifyStream(s.cfg, pgconn.ErrorResponseToPgError(raw))
	case *pgproto3.NoticeResponse:
		if skipsPublication(raw.Code, raw.Routine, raw.Message) {
			return m, false, s.publicationGone("the server " + raw.Message)
		}
		return m, false, nil
	case *pgproto3.ParameterStatus:
		return m, false, nil
	case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
		return m, false, errors.New("replication: read the stream: the server ended it")
	}
	return m, false, fmt.Errorf("replication: read the stream: unexpected message %T", raw)
}

// copyData reads XLogData and primary keepalive messages.
// https://www.postgresql.org/docs/current/protocol-replication.html
func (s *Session) copyData(b []byte) (m Message, ok bool, err error) {
	switch {
	case len(b) >= 25 && b[0] == pglogrepl.XLogDataByteID:
		m = Message{Kind: Data, WAL: b[25:], ServerTime: y2k + int64(binary.BigEndian.Uint64(b[17:]))}
		if len(m.WAL) >= 17 && m.WAL[0] == 'B' {
			s.commitTime = y2k + int64(binary.BigEndian.Uint64(m.WAL[9:]))
		}
		s.lag = m.ServerTime - s.commitTime
	case len(b) >= 18 && b[0] == pglogrepl.PrimaryKeepaliveMessageByteID:
		m = Message{
			Kind:           Keepalive,
			WALEnd:         pglogrepl.LSN(binary.BigEndian.Uint64(b[1:])),
			ServerTime:     y2k + int64(binary.BigEndian.Uint64(b[9:])),
			ReplyRequested: b[17] != 0,
		}
		if m.ReplyRequested {
			s.asked()
		}
	default:
		return m, false, errors.New("replication: read the stream: malformed message")
	}
	s.serverTime = m.ServerTime
	return m, true, nil
}

// arrived is what wait says when there are bytes to read.
const arrived = Data

// wait returns arrived; Woken; or Drained when bulk has ended: a batch that waited
// for more must not wait for a read that may take for ever.
func (s *Session) wait() (why Kind, err error) {
	if s.sock.sleepy() && s.sleep() {
		return Woken, nil
	}
	now := time.Now()
	if now.Sub(s.waited) > listenGap {
		s.silent = now // nobody listened: silence says nothing
	}
	for ; ; now = time.Now() {
		if err := s.tend(now, true); err != nil {
			return 0, err
		}
		due := s.due()
		if s.sock.bulk {
			due = s.sock.soon(now, due)
		}
		if err := s.sock.until(due); err != nil {
			return 0, fmt.Errorf("replication: read the stream: %w", err)
		}
		// Wake and Confirm first leave their news, then move the deadline into the
		// past. Either we set ours before that, and the read ends at once, or after
		// it, and then the news is there to be seen here.
		select {
		case <-s.wake:
			s.waited = now
			return Woken, nil
		default:
		}
		if s.due().Before(due) {
			continue
		}
		n, err := s.sock.fill(time.Duration(s.lag) * time.Microsecond)
		if err != nil {
			return 0, fmt.Errorf("replication: read the stream: %w", err)
		}
		if n > 0 {
			s.waited, s.silent, s.probed = s.sock.readAt, s.sock.readAt, time.Time{}
			return arrived, nil
		}
		if s.sock.bulk && time.Since(now) >= emptyWait {
			s.sock.bulk, s.waited = false, now
			return Drained, nil
		}
	}
}

// sleep lets a backlog pile up in the kernel; it reports whether Wake ended it.
func (s *Session) sleep() (woken bool) {
	s.timer.Reset(nap)
	defer s.timer.Stop()
	select {
	case <-s.timer.C:
		return false
	case <-s.wake:
		return true
	}
}

// Hold keeps the session alive without reading, while the pipe is full. It
// returns nil when ready is closed or readable, and an error when the connection
// is known to be broken. Owner only.
func (s *Session) Hold(ready <-chan struct{}) error {
	defer s.timer.Stop()
	for {
		select {
		case <-ready:
			return nil
		default:
		}
		now := time.Now()
		if err := s.tend(now, false); err != nil {
			return s.fail(err)
		}
		s.timer.Reset(s.due().Sub(now))
		select {
		case <-ready:
			return nil
		case <-s.nudge:
		case <-s.timer.C:
		}
	}
}

// Bulk reports whether a backlog is being read: reads are coalesced, and a batch
// that is not full may wait for more. Owner only.
func (s *Session) Bulk() bool { return s.sock.bulk }

// Wake makes Next return Woken, at once or the next time it would block.
func (s *Session) Wake() {
	select {
	case s.wake <- struct{}{}:
	default: // one is pending
	}
	s.sock.SetReadDeadline(past)
}

// past interrupts a read.
var past = time.Unix(1, 0)

func (s *Session) fail(err error) error {
	s.broken = true
	return err
}
