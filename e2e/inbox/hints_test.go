package inbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/walrelay/walrelay/inbox"
)

// A crash anywhere loses nothing and applies nothing twice; with the id written before the work,
// the usual mistake, the event is lost.
func TestCrashPoints(t *testing.T) {
	pool, ctx := newPool(t), t.Context()
	hints, server := newHints(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	box := inbox.Inbox{Consumer: "billing", Hints: hints}

	deliver := func(ev inbox.Event, crash string) { // one delivery, up to the crash
		b := box
		if crash == "between commit and hint" {
			b.Hints = nil
		}
		_, err := b.Once(ctx, pool, ev, func(ctx context.Context, tx pgx.Tx, c *inbox.Claim) error {
			if crash == "after claim" {
				return errCrash
			}
			if err := apply(ev.ID)(ctx, tx, c); err != nil || crash != "before commit" {
				return err
			}
			return errCrash
		})
		if err != nil && !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
	}
	for i, crash := range []string{"after claim", "before commit", "between commit and hint", "after hint"} {
		ev := inbox.Event{ID: fmt.Sprint("e", i)}
		deliver(ev, crash)
		deliver(ev, "")
		deliver(ev, "")
		if n := times(t, pool)[ev.ID]; n != 1 {
			t.Errorf("crash %s: applied %d times", crash, n)
		}
	}

	mistaken := func(id string, crash bool) { // SETNX first, then the work
		fresh, err := client.SetNX(ctx, "mistake:"+id, "", time.Hour).Result()
		must(t, err)
		if fresh && !crash {
			must(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return apply(id)(ctx, tx, nil) }))
		}
	}
	mistaken("lost", true)
	mistaken("lost", false)
	if n := times(t, pool)["lost"]; n != 0 {
		t.Errorf("the mistake applied the event %d times: this test shows nothing", n)
	}
}

// Redis that is away, hangs, was flushed, or lies changes nothing but speed.
func TestRedisIsOnlyAHint(t *testing.T) {
	pool, ctx := newPool(t), t.Context()
	hints, server := newHints(t)
	hints.Rest = time.Nanosecond // every question is asked
	for _, mode := range []inbox.Positions{inbox.IDsOnly, inbox.PositionsAndIDs, inbox.PositionsOnly} {
		box := inbox.Inbox{Consumer: fmt.Sprint("billing", mode), Positions: mode, Hints: hints}
		n := 0
		event := func() inbox.Event {
			n++
			return inbox.Event{ID: fmt.Sprint(mode, "-", n), Topic: "t", Source: "a", LSN: fmt.Sprintf("1/%X", n)}
		}
		check := func(what string, ev inbox.Event) {
			t.Helper()
			for try, want := range []bool{false, true, true} {
				c, err := box.Once(ctx, pool, ev, apply(ev.ID))
				must(t, err)
				if c.Duplicate != want {
					t.Errorf("mode %d, %s: delivery %d: duplicate %v", mode, what, try, c.Duplicate)
				}
			}
			if got := times(t, pool)[ev.ID]; got != 1 {
				t.Errorf("mode %d, %s: applied %d times", mode, what, got)
			}
		}
		check("up", event())

		liar := event()
		hints.Note(ctx, box.Consumer, liar.ID)
		check("lies", liar)

		known := event()
		check("before the flush", known)
		must(t, server.Command(ctx, "FLUSHALL"))
		if c, err := box.Once(ctx, pool, known, apply(known.ID)); err != nil || !c.Duplicate {
			t.Errorf("mode %d: after a flush: %+v, %v", mode, c, err)
		}

		server.Pause()
		check("hangs", event())
		server.Resume()

		must(t, server.Kill())
		check("away", event())
		must(t, server.Start(ctx))
		check("back", event())
	}
}

// A Redis that does not answer is left alone for a while: it must not cost every event its wait.
func TestRedisIsLeftAlone(t *testing.T) {
	hints, server := newHints(t)
	hints.Wait, hints.Rest = 100*time.Millisecond, time.Hour
	server.Pause()
	defer server.Resume()
	began := time.Now()
	for range 100 {
		hints.Seen(t.Context(), "c", "e")
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("100 questions to a Redis that hangs took %s", took)
	}
}
