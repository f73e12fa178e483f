package relay

import (
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/checkpoint"
)

// G1: a snapshot becomes part of the position when what it speaks of is delivered, not before;
// Rooted when a transaction behind it is. One that is taken later never keeps it from that.
func TestG1SnapshotsRipen(t *testing.T) {
	tr := newTracker()
	tr.start(checkpoint.Position{SystemID: "1", Slot: "s", Safe: 100})
	want := func(when string, snapshot, rooted uint64) {
		t.Helper()
		got, _ := tr.positions()
		if got.Snapshot.Xmin != snapshot || got.Rooted.Xmin != rooted {
			t.Errorf("%s: snapshot %d, rooted %d; want %d, %d", when, got.Snapshot.Xmin, got.Rooted.Xmin, snapshot, rooted)
		}
	}
	delivered := func(commit, end pglogrepl.LSN) {
		p, _ := tr.positions()
		p.Last, p.Safe, p.Snapshot, p.Rooted = checkpoint.Txn{Commit: commit, End: end}, end, checkpoint.Snapshot{}, checkpoint.Snapshot{}
		tr.acked(p, 1)
	}
	tr.snapshot(checkpoint.Snapshot{Xmin: 10, LSN: 150})
	tr.snapshot(checkpoint.Snapshot{Xmin: 20, LSN: 300})
	want("ahead", 0, 0)
	tr.verified(100, 200)
	want("passed while idle", 10, 0)
	delivered(210, 220)
	want("a commit behind the first", 10, 10)
	tr.snapshot(checkpoint.Snapshot{Xmin: 30, LSN: 320})
	delivered(310, 330)
	want("a commit between the last two", 30, 20)
	delivered(340, 350)
	want("a commit behind all", 30, 30)
	tr.snapshot(checkpoint.Snapshot{Xmin: 40, LSN: 400})
	tr.start(checkpoint.Position{SystemID: "1", Slot: "s", Safe: 500})
	tr.verified(500, 600)
	want("another session", 0, 0)
}
