package checkpoint

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// samplePosition is a position in the middle of a large transaction.
func samplePosition() Position {
	return Position{
		SystemID:    "7431293842039482210",
		Timeline:    3,
		Slot:        "walrelay",
		Publication: "walrelay",
		Last: Txn{
			Commit:  0x16_B374D848,
			End:     0x16_B374D878,
			XID:     774,
			Time:    time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC),
			EventID: `order-1 <"é">`,
		},
		Open:    Progress{Commit: 0x16_C0000000, Rows: 51234, EventID: "order-2"},
		Safe:    0x16_B374D900,
		Trusted: 0x16_B3000000, Verified: 0x16_B374D000,
		Catalog:  Catalog{Publication: 16390, Membership: 16391, Table: 16384},
		Snapshot: Snapshot{Xmin: 4294968070, LSN: 0x16_B374D8FF}, Rooted: Snapshot{Xmin: 4294968069, LSN: 0x16_B374D000},
	}
}

// idle is a position with nothing in progress.
func idle(safe pglogrepl.LSN) Position {
	return Position{SystemID: "1", Timeline: 1, Slot: "s", Publication: "p", Safe: safe}
}

// inside is a position with rows of the transaction commit delivered.
func inside(safe, commit pglogrepl.LSN, rows uint64) Position {
	p := idle(safe)
	p.Open = Progress{Commit: commit, Rows: rows, EventID: "e"}
	return p
}

// G3: what counts as higher decides which of two relays' positions survives.
func TestG3CompareOrdersByWhatIsDelivered(t *testing.T) {
	ascending := []Position{
		idle(0),
		idle(100),
		inside(100, 200, 1),
		inside(100, 200, 2),
		inside(150, 200, 2), // as much is delivered, more may be confirmed
		inside(100, 200, 3), // rows of the transaction count before the safe LSN
		idle(201),           // that transaction is delivered whole
		inside(201, 300, 1),
		idle(1 << 40),
	}
	for i, p := range ascending {
		for j, q := range ascending {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := p.Compare(q); got != want {
				t.Errorf("Compare(%s, %s) = %d, want %d", p.progress(), q.progress(), got, want)
			}
		}
	}
}

// G1: a position is never used for a stream that it was not made for.
func TestG1BelongsToOneSlotOfOneCluster(t *testing.T) {
	p := samplePosition()
	if err := p.Belongs(p.SystemID, p.Slot); err != nil {
		t.Fatal(err)
	}
	for _, other := range [][2]string{{"42", p.Slot}, {p.SystemID, "other"}} {
		var state *StateError
		if err := p.Belongs(other[0], other[1]); !errors.As(err, &state) {
			t.Fatalf("Belongs(%q) = %v, want a *StateError", other, err)
		}
		if !strings.Contains(state.Error(), other[0]) || !strings.Contains(state.Error(), "--checkpoint") {
			t.Errorf("the error names neither what it is nor what to do: %v", state)
		}
	}
}

// G3: a position that breaks Last.End ≤ Safe ≤ Open.Commit is neither saved nor believed.
func TestG3CheckRefusesContradictions(t *testing.T) {
	if err := samplePosition().check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Position){
		"no system":             func(p *Position) { p.SystemID = "" },
		"no slot":               func(p *Position) { p.Slot = "" },
		"commit past end":       func(p *Position) { p.Last.Commit = p.Last.End + 1 },
		"end past safe":         func(p *Position) { p.Safe = p.Last.End - 1 },
		"trusted past safe":     func(p *Position) { p.Trusted = p.Safe + 1 },
		"verified past safe":    func(p *Position) { p.Verified = p.Safe + 1 },
		"safe past open commit": func(p *Position) { p.Safe = p.Open.Commit + 1 },
		"open without commit":   func(p *Position) { p.Open.Commit = 0 },
	} {
		p := samplePosition()
		spoil(&p)
		if p.check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
