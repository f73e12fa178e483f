package relay

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
)

// wal is a stream as resume sees it: transactions with event ids, and passed LSNs.
type wal struct {
	commit, end pglogrepl.LSN
	xid         uint32
	ids         []string
}

// play feeds transactions to a resume and returns the ids that are to be published.
func play(r *resume, stream []wal) (published []string, err error) {
	for _, t := range stream {
		var last []byte
		for i, id := range t.ids {
			v, err := r.row(&decode.Event{Commit: t.commit, Seq: uint64(i), ID: []byte(id)})
			if err != nil {
				return published, err
			}
			if v == publish {
				published = append(published, id)
			} else {
				last = []byte(id)
			}
		}
		txn := decode.Txn{Commit: t.commit, End: t.end, XID: t.xid, Rows: uint64(len(t.ids))}
		if len(t.ids) == 0 {
			err = r.passed(t.end)
		} else {
			err = r.commit(txn, last)
		}
		if err != nil {
			return published, err
		}
	}
	return published, nil
}

// G5, G1: what the position names is dropped, everything behind it is published,
// and WAL that is not the WAL of the position is refused.
func TestG5ResumeDropsWhatWasDelivered(t *testing.T) {
	t1 := wal{100, 110, 1, []string{"a", "b"}}
	t2 := wal{120, 130, 2, []string{"c", "d", "e"}}
	t3 := wal{140, 150, 3, []string{"f"}}
	idleTo := func(lsn pglogrepl.LSN) wal { return wal{end: lsn} }
	afterT1 := checkpoint.Position{Last: checkpoint.Txn{Commit: 100, End: 110, XID: 1, EventID: "b"}, Safe: 110}
	idleAfterT1 := afterT1
	idleAfterT1.Safe = 118
	inT2 := afterT1
	inT2.Open = checkpoint.Progress{Commit: 120, Rows: 2, EventID: "d"}
	allOfT2 := inT2
	allOfT2.Open = checkpoint.Progress{Commit: 120, Rows: 3, EventID: "e"}

	for _, c := range []struct {
		name   string
		pos    checkpoint.Position
		slot   pglogrepl.LSN
		stream []wal
		want   string
		gap    string // part of the refusal; "" = none
	}{
		{"fresh", checkpoint.Position{Safe: 90}, 90, []wal{t1, t2}, "a b c d e", ""},
		{"slot behind", afterT1, 90, []wal{t1, t2}, "c d e", ""},
		{"slot at the end", afterT1, 110, []wal{t2}, "c d e", ""},
		{"slot behind, idle first", afterT1, 90, []wal{idleTo(95), t1, t2}, "c d e", ""},
		{"in the middle", inT2, 90, []wal{t1, t2, t3}, "e f", ""},
		{"in the middle, slot at the last end", inT2, 110, []wal{t2, t3}, "e f", ""},
		{"all rows but not the commit", allOfT2, 110, []wal{t2, t3}, "f", ""},
		{"idle position", idleAfterT1, 118, []wal{t2}, "c d e", ""},

		{"slot behind what it was trusted for", checkpoint.Position{Safe: 118, Trusted: 115}, 90, []wal{t1, t2}, "c d e", ""},

		{"rows behind what the slot was trusted for", checkpoint.Position{Safe: 118, Trusted: 112}, 90, []wal{{114, 116, 7, []string{"x"}}}, "", "says that there is none"},
		{"slot ahead", afterT1, 112, nil, "", "advanced by somebody else"},
		{"last transaction missing", afterT1, 90, []wal{t2}, "", "did not come by"},
		{"last transaction missing, idle", afterT1, 90, []wal{idleTo(110)}, "", "did not come by"},
		{"other xid", afterT1, 90, []wal{{100, 110, 9, []string{"a", "b"}}}, "", "not the one"},
		{"other end", afterT1, 90, []wal{{100, 111, 1, []string{"a", "b"}}}, "", "not the one"},
		{"other event id", afterT1, 90, []wal{{100, 110, 1, []string{"a", "x"}}}, "", "not the one"},
		{"rows where the WAL was idle", idleAfterT1, 110, []wal{{112, 116, 7, []string{"x"}}}, "", "says that there is none"},
		{"open transaction missing", inT2, 110, []wal{t3}, "", "did not come by"},
		{"open transaction missing, idle", inT2, 110, []wal{idleTo(121)}, "", "did not come by"},
		{"open transaction shorter", allOfT2, 110, []wal{{120, 130, 2, []string{"c", "d"}}}, "", "ends after 2 rows"},
		{"open transaction with another row", inT2, 110, []wal{{120, 130, 2, []string{"c", "x", "e"}}}, "", "another event id"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := newResume(c.pos, c.slot)
			var got []string
			if err == nil {
				got, err = play(r, c.stream)
			}
			if c.gap != "" {
				var gap *replication.ContinuityError
				if !errors.As(err, &gap) || !strings.Contains(gap.Reason, c.gap) {
					t.Fatalf("got %v, want a refusal with %q", err, c.gap)
				}
				if len(got) != 0 {
					t.Errorf("published %v before it refused", got)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("published %q, want %q", s, c.want)
			}
			if r.pending() {
				t.Error("something delivered is still expected")
			}
		})
	}
}

// G3: the position of every prefix of a batch, also of one that begins in the
// middle of a transaction.
func TestG3PositionOfEveryPrefix(t *testing.T) {
	b := newBatch(1 << 10)
	b.reset(checkpoint.Position{Safe: 100, Open: checkpoint.Progress{Commit: 120, Rows: 2, EventID: "b"}})
	row := func(commit pglogrepl.LSN, seq uint64, id string) {
		b.Events = append(b.Events, decode.Event{Commit: commit, Seq: seq, ID: []byte(id)})
	}
	b.commit(decode.Txn{Commit: 120, End: 130, XID: 1}) // its rows were in the batch before
	row(140, 0, "c")
	row(140, 1, "d")
	b.commit(decode.Txn{Commit: 140, End: 150, XID: 2})
	row(160, 0, "e")

	last := func(commit, end pglogrepl.LSN, xid uint32, id string) checkpoint.Txn {
		return checkpoint.Txn{Commit: commit, End: end, XID: xid, EventID: id}
	}
	for n, want := range []checkpoint.Position{
		{Safe: 130, Last: last(120, 130, 1, "b")},
		{Safe: 130, Last: last(120, 130, 1, "b"), Open: checkpoint.Progress{Commit: 140, Rows: 1, EventID: "c"}},
		{Safe: 150, Last: last(140, 150, 2, "d")},
		{Safe: 150, Last: last(140, 150, 2, "d"), Open: checkpoint.Progress{Commit: 160, Rows: 1, EventID: "e"}},
	} {
		if got := b.positionAt(n); got != want {
			t.Errorf("after %d events: %+v, want %+v", n, got, want)
		}
	}
}
