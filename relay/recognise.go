package relay

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
)

// recogniseTimeout is how long the stream may take to show what the position remembers.
const recogniseTimeout = 20 * time.Second

var errSlow = errors.New("recover: the stream has not come to the saved position yet; try again")

// recognise streams from the slot, and confirms nothing, until what the position remembers has
// come by and the stream is past until: a session's start without the rest of it.
func recognise(ctx context.Context, cfg Config, pos checkpoint.Position, until pglogrepl.LSN) error {
	s, err := replication.Open(ctx, cfg.Postgres)
	if err != nil {
		return err
	}
	defer s.Close(context.WithoutCancel(ctx))
	r, err := newResume(pos, s.Slot.Confirmed)
	if err != nil {
		return err
	}
	cfg.Decoder.Table = s.Catalog.Table
	cfg.Decoder.Start("")
	ctx, cancel := context.WithTimeout(ctx, recogniseTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, s.Wake)()
	p := passage{resume: r, until: until, decoder: cfg.Decoder, batch: decode.NewBatch(0)}
	for {
		m, err := s.Next()
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return errSlow
		}
		if done, err := p.take(m); done || err != nil {
			return err
		}
	}
}

// passage is what comes by before anything new does.
type passage struct {
	resume  *resume
	until   pglogrepl.LSN
	decoder *decode.Decoder
	batch   *decode.Batch
	lastID  []byte
}

// take takes one message; done says that nothing is expected any more.
func (p *passage) take(m replication.Message) (done bool, err error) {
	switch m.Kind {
	case replication.Keepalive:
		if _, open := p.decoder.Txn(); !open {
			err = p.resume.passed(m.WALEnd)
		}
		return p.past(m.WALEnd), err
	case replication.Data:
	default:
		return false, nil
	}
	kind, err := p.decoder.Decode(m.WAL, p.batch)
	if err != nil {
		return false, err
	}
	switch kind {
	case decode.Row:
		ev := &p.batch.Events[0]
		v, err := p.resume.row(ev)
		p.lastID = append(p.lastID[:0], ev.ID...)
		p.batch.DropLast()
		return v == publish && p.past(ev.Commit), err
	case decode.Commit:
		t, _ := p.decoder.Txn()
		if t.Rows == 0 {
			err = p.resume.passed(t.End)
		} else {
			err = p.resume.commit(t, p.lastID)
		}
		return p.past(t.End), err
	}
	return false, nil
}

func (p *passage) past(lsn pglogrepl.LSN) bool { return !p.resume.pending() && lsn >= p.until }
