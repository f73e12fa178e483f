package relay

import (
	"time"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
)

// batch is what travels through the pipe: events, and the position that is proven
// when they are acknowledged.
//
// The reader owns it while it fills; handing it over gives it to the sink's
// goroutine until that hands it back, empty.
type batch struct {
	*decode.Batch
	base      checkpoint.Position // before the first event
	ends      []end               // the commits that were read into the batch, in order
	opened    time.Time           // when the first event came in
	committed time.Time           // commit time of the first event
}

// end is a COMMIT: a transaction whose last row is event number events-1.
type end struct {
	txn    decode.Txn
	events int
}

func newBatch(size int) *batch { return &batch{Batch: decode.NewBatch(size)} }

// reset empties the batch; what is read from now on follows base.
func (b *batch) reset(base checkpoint.Position) {
	b.Batch.Reset()
	b.base = base
	b.ends = b.ends[:0]
}

func (b *batch) empty() bool { return len(b.Events) == 0 && len(b.ends) == 0 }

// commit notes the end of a transaction with outbox rows.
func (b *batch) commit(t decode.Txn) {
	b.ends = append(b.ends, end{txn: t, events: len(b.Events)})
}

// positionAt is the position when the first n events are acknowledged.
func (b *batch) positionAt(n int) checkpoint.Position {
	p := b.base
	whole := 0 // events that belong to transactions which ended
	for _, e := range b.ends {
		if e.events > n {
			break
		}
		id := p.Open.EventID // a COMMIT whose rows were all in earlier batches
		if e.events > whole {
			id = ""
		}
		p.Last = checkpoint.Txn{Commit: e.txn.Commit, End: e.txn.End, XID: e.txn.XID, Time: e.txn.Time, EventID: id}
		p.Safe = max(p.Safe, e.txn.End)
		p.Open = checkpoint.Progress{}
		whole = e.events
	}
	if p.Last.EventID == "" && whole > 0 {
		p.Last.EventID = string(b.Events[whole-1].ID)
	}
	if n > whole {
		ev := &b.Events[n-1]
		p.Open = checkpoint.Progress{Commit: ev.Commit, Rows: ev.Seq + 1, EventID: string(ev.ID)}
	}
	return p
}
