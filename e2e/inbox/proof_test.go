package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/inbox"
)

// partitionLog is a partition as walrelay may leave it behind: first publications in the order
// of their positions, repeats that end at the newest event, and, as asked for, what else there can be.
type partitionLog struct {
	rng      *rand.Rand
	log      []inbox.Event
	first    []inbox.Event // of the present source, each once
	source   int
	lsn, ids int
}

func (l *partitionLog) publish(ev inbox.Event) { l.log = append(l.log, ev) }

func (l *partitionLog) transaction() {
	l.lsn += 1 + l.rng.IntN(1000)
	for seq := range 1 + l.rng.IntN(4) {
		l.ids++
		ev := inbox.Event{ID: fmt.Sprint("e", l.ids), Topic: "t", Source: fmt.Sprint("source", l.source), LSN: fmt.Sprintf("%X/%X", l.lsn>>8, l.lsn&0xff), Seq: int64(seq)}
		l.first = append(l.first, ev)
		l.publish(ev)
	}
}

// tail is the last events; a crash of the relay repeats them.
func (l *partitionLog) tail(most int) []inbox.Event {
	return l.first[max(0, len(l.first)-1-l.rng.IntN(most)):]
}

// restore starts another cluster, timeline or slot: positions begin anew, with other events.
func (l *partitionLog) restore() { l.source, l.lsn, l.first = l.source+1, 0, nil }

// failover goes on under a new source, and repeats what the relay had not saved.
func (l *partitionLog) failover() {
	repeated := l.tail(20)
	l.source++
	l.first = nil
	for _, ev := range repeated {
		ev.Source = fmt.Sprint("source", l.source)
		l.first = append(l.first, ev)
		l.publish(ev)
	}
}

// replay publishes a window again, recover a part of the table.
func (l *partitionLog) again(as inbox.Copy) {
	for _, ev := range l.tail(40) {
		if ev.Copy = as; as == inbox.CopyRecover {
			ev.Source, ev.LSN, ev.Seq = "", "", 0
		}
		l.publish(ev)
	}
}

// Every event is applied exactly once, by every inbox where it claims to be right, whatever is
// repeated, and wherever the consumer crashes and reads again from an older offset. And where it does not claim it, the
// same run shows why.
func TestExactlyOnce(t *testing.T) {
	whole := []func(*partitionLog){
		func(l *partitionLog) { l.again("") }, (*partitionLog).restore, (*partitionLog).failover,
		func(l *partitionLog) { l.again(inbox.CopyReplay) }, func(l *partitionLog) { l.again(inbox.CopyRecover) },
	}
	for _, c := range []struct {
		name   string
		mode   inbox.Positions
		events []func(*partitionLog)
		wrong  bool
	}{
		{"ids", inbox.IDsOnly, whole, false},
		{"positions and ids", inbox.PositionsAndIDs, whole, false},
		{"positions", inbox.PositionsOnly, whole[:2], false},
		{"positions, failover", inbox.PositionsOnly, whole[:3], true},
	} {
		t.Run(c.name, func(t *testing.T) {
			pool, rng := newPool(t), rand.New(rand.NewPCG(seed(), 7))
			l := &partitionLog{rng: rng}
			for range 60 {
				l.transaction()
				if rng.IntN(4) == 0 {
					c.events[rng.IntN(len(c.events))](l)
				}
			}
			box := inbox.Inbox{Consumer: "test", Positions: c.mode}
			for offset := 0; offset < len(l.log); offset++ {
				ev := l.log[offset]
				crash := rng.IntN(10)
				_, err := box.Once(t.Context(), pool, ev, func(ctx context.Context, tx pgx.Tx, claim *inbox.Claim) error {
					if err := apply(ev.ID)(ctx, tx, claim); err != nil || crash > 0 {
						return err
					}
					return errCrash
				})
				if err != nil && !errors.Is(err, errCrash) {
					t.Fatal(err)
				}
				if crash <= 1 { // before or after the commit: its offset is older than what it did
					offset = max(-1, offset-1-rng.IntN(5))
				}
			}
			counts := times(t, pool)
			wrong := 0
			for i := 1; i <= l.ids; i++ {
				if counts[fmt.Sprint("e", i)] != 1 {
					wrong++
				}
			}
			if (wrong > 0) != c.wrong {
				t.Errorf("%d of %d events are not applied once", wrong, l.ids)
			}
		})
	}
}

// Alone, positions refuse what they cannot decide, and claim nothing.
func TestUndecidable(t *testing.T) {
	pool := newPool(t)
	box := inbox.Inbox{Consumer: "test", Positions: inbox.PositionsOnly}
	for _, ev := range []inbox.Event{
		{ID: "a", Topic: "t"},
		{ID: "b", Topic: "t", Source: "s", LSN: "0/1", Copy: inbox.CopyReplay},
		{ID: "c", Topic: "t", Copy: inbox.CopyRecover},
	} {
		if _, err := box.Once(t.Context(), pool, ev, apply(ev.ID)); !errors.Is(err, inbox.ErrUndecidable) {
			t.Errorf("%s: %v", ev, err)
		}
	}
	if n := len(times(t, pool)); n != 0 {
		t.Errorf("%d were applied", n)
	}
}
