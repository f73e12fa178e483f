package relay

import (
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
)

// resume recognises, at the start of a session, what the position says was
// delivered, and has it dropped.
//
// A session streams from the slot's own position, which may lie behind ours (a
// confirmed LSN is persisted late) but never ahead of it. Asking the server to
// skip instead would be silent where the WAL is not the WAL we knew: after a file
// copy of the cluster was restored, system id and timeline are the same, the LSN
// is taken, and rows vanish. So the newest delivered transaction has to come by
// and to be the one that we remember; the same holds for a transaction that is
// delivered in part. Whatever else commits below the safe LSN and has rows proves
// other WAL.
type resume struct {
	pos  checkpoint.Position
	slot pglogrepl.LSN // the slot's confirmed LSN at the start: nothing below it is streamed

	last bool // pos.Last still has to come by
	open bool // pos.Open still has to come by
}

// delivered says whether the transaction that commits there is delivered whole.
func (r *resume) delivered(commit pglogrepl.LSN) bool {
	return commit <= r.pos.Last.Commit || commit < r.pos.Trusted
}

// verdict is what resume says of a row.
type verdict int

const (
	publish verdict = iota // not delivered yet
	drop                   // delivered before
)

// newResume checks a position against the slot that was found.
func newResume(pos checkpoint.Position, slot pglogrepl.LSN) (*resume, error) {
	if slot > pos.Safe {
		return nil, &replication.ContinuityError{
			Fault:  replication.SlotAhead,
			Reason: fmt.Sprintf("the slot stands at %s, ahead of the saved position %s: it was advanced by somebody else or created again, or the checkpoint is an older copy", slot, pos.Safe),
			From:   pos.Safe, To: slot,
		}
	}
	return &resume{
		pos: pos, slot: slot,
		last: pos.Last.Commit != 0 && slot <= pos.Last.Commit,
		open: pos.Open.Commit != 0,
	}, nil
}

// pending says whether something delivered is still expected to come by.
func (r *resume) pending() bool { return r.last || r.open }

// row judges the newest event of the transaction in progress.
func (r *resume) row(ev *decode.Event) (verdict, error) {
	switch {
	case r.delivered(ev.Commit):
		return drop, nil
	case r.last:
		return drop, r.foreign(ev.Commit, "the last transaction that was delivered (commit %s) did not come by", r.pos.Last.Commit)
	case ev.Commit < r.pos.Safe:
		return drop, r.foreign(ev.Commit, "a transaction with outbox rows commits at %s, where the saved position says that there is none", ev.Commit)
	case !r.open:
		return publish, nil
	case ev.Commit != r.pos.Open.Commit:
		return drop, r.foreign(ev.Commit, "the transaction that was delivered in part (commit %s) did not come by", r.pos.Open.Commit)
	case ev.Seq+1 < r.pos.Open.Rows:
		return drop, nil
	}
	// The last row of the delivered part: from the next one on, everything is new.
	if string(ev.ID) != r.pos.Open.EventID {
		return drop, r.foreign(ev.Commit, "row %d of transaction %s has another event id than the one that was delivered", ev.Seq, ev.Commit)
	}
	r.open = false
	return drop, nil
}

// commit checks a whole transaction; lastID is the id of its last row.
func (r *resume) commit(t decode.Txn, lastID []byte) error {
	if r.open && t.Commit >= r.pos.Open.Commit && t.Rows > 0 {
		return r.foreign(t.Commit, "transaction %s ends after %d rows, of which %d were delivered", t.Commit, t.Rows, r.pos.Open.Rows)
	}
	if !r.last || t.Rows == 0 || t.Commit != r.pos.Last.Commit {
		return nil
	}
	l := r.pos.Last
	if t.End != l.End || t.XID != l.XID || string(lastID) != l.EventID {
		return r.foreign(t.Commit, "the transaction at %s is not the one that was delivered from there (xid %d, delivered %d)", t.Commit, t.XID, l.XID)
	}
	r.last = false
	return nil
}

// passed checks that nothing expected lies below lsn, which the stream has passed.
func (r *resume) passed(lsn pglogrepl.LSN) error {
	switch {
	case r.last && lsn >= r.pos.Last.End:
		return r.foreign(lsn, "the last transaction that was delivered (commit %s) did not come by", r.pos.Last.Commit)
	case r.open && lsn > r.pos.Open.Commit:
		return r.foreign(lsn, "the transaction that was delivered in part (commit %s) did not come by", r.pos.Open.Commit)
	}
	return nil
}

func (r *resume) foreign(at pglogrepl.LSN, format string, args ...any) error {
	return &replication.ContinuityError{
		Fault: replication.Restored,
		Reason: "this is not the WAL that was relayed before: " + fmt.Sprintf(format, args...) +
			" (was the cluster restored from a copy, or the checkpoint file taken from another one?)",
		From: r.slot, To: max(at, r.pos.Safe),
	}
}
