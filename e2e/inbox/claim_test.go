package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/inbox"
)

// The second claim says duplicate, the effect does not run, and the first run's result
// comes back; a rollback gives the event back.
func TestClaimOnce(t *testing.T) {
	pool, ctx := newPool(t), t.Context()
	box := inbox.Inbox{Consumer: "billing"}
	ev := inbox.Event{ID: "e1"}

	if _, err := box.Once(ctx, pool, ev, func(ctx context.Context, tx pgx.Tx, c *inbox.Claim) error {
		return errors.Join(apply("e1")(ctx, tx, c), c.Keep(ctx, []byte("lost")), errCrash)
	}); !errors.Is(err, errCrash) {
		t.Fatalf("Once = %v, want the effect's error", err)
	}
	c, err := box.Once(ctx, pool, ev, func(ctx context.Context, tx pgx.Tx, c *inbox.Claim) error {
		return errors.Join(apply("e1")(ctx, tx, c), c.Keep(ctx, []byte("receipt 7")))
	})
	must(t, err)
	if c.Duplicate {
		t.Error("after a rollback: duplicate")
	}
	c, err = box.Once(ctx, pool, ev, apply("e1"))
	must(t, err)
	if !c.Duplicate || string(c.Result) != "receipt 7" {
		t.Errorf("second claim: duplicate %v, result %q", c.Duplicate, c.Result)
	}
	if n := times(t, pool)["e1"]; n != 1 {
		t.Errorf("applied %d times", n)
	}
	// Another consumer has another effect.
	c, err = inbox.Inbox{Consumer: "mail"}.Once(ctx, pool, ev, apply("mail e1"))
	must(t, err)
	if c.Duplicate {
		t.Error("another consumer's claim counts")
	}
	if _, err := box.Once(ctx, pool, inbox.Event{}, apply("")); !errors.Is(err, inbox.ErrNoID) {
		t.Errorf("without an id: %v", err)
	}
}

// Claims of one event at the same time serialise, in every mode: one runs, the others wait for its
// end; when it rolls back, one of them runs.
func TestConcurrentClaims(t *testing.T) {
	for _, mode := range []inbox.Positions{inbox.IDsOnly, inbox.PositionsAndIDs, inbox.PositionsOnly} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			pool, ctx := newPool(t), t.Context()
			box := inbox.Inbox{Consumer: "billing", Positions: mode}
			for round := range 12 {
				ev := inbox.Event{ID: fmt.Sprint("e", round), Topic: "t", Source: "a", LSN: fmt.Sprintf("1/%X", round+1)}
				var wg sync.WaitGroup
				errs := make(chan error, 8)
				for i := range 8 {
					wg.Go(func() {
						_, err := box.Once(ctx, pool, ev, func(ctx context.Context, tx pgx.Tx, c *inbox.Claim) error {
							if err := apply(ev.ID)(ctx, tx, c); err != nil || i%4 != 3 {
								return err
							}
							return errCrash
						})
						if err != nil && !errors.Is(err, errCrash) {
							errs <- err
						}
					})
				}
				wg.Wait()
				close(errs)
				for err := range errs {
					t.Error(err)
				}
				if n := times(t, pool)[ev.ID]; n != 1 {
					t.Fatalf("round %d: applied %d times", round, n)
				}
			}
		})
	}
}

// A claim that waits under repeatable read ends with 40001 and not with a wrong answer.
func TestClaimRepeatableRead(t *testing.T) {
	for _, mode := range []inbox.Positions{inbox.IDsOnly, inbox.PositionsAndIDs} {
		pool, ctx := newPool(t), t.Context()
		box := inbox.Inbox{Consumer: "billing", Positions: mode}
		ev := inbox.Event{ID: "e", Topic: "t", Source: "a", LSN: "1/1"}
		late, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		must(t, err)
		defer late.Rollback(ctx)
		_, err = late.Exec(ctx, "SELECT count(*) FROM effect") // its snapshot
		must(t, err)
		_, err = box.Once(ctx, pool, ev, apply("e"))
		must(t, err)
		c, err := box.Claim(ctx, late, ev)
		if err == nil && !c.Duplicate {
			t.Errorf("mode %d: claimed twice", mode)
		}
	}
}

// A client that tries again sends a new event with the same key: one effect, one answer.
func TestIdempotencyKey(t *testing.T) {
	pool, ctx := newPool(t), t.Context()
	box := inbox.Inbox{Consumer: "payments"}
	handle := func(id, key string) (answer string) {
		_, err := box.Once(ctx, pool, inbox.Event{ID: id}, func(ctx context.Context, tx pgx.Tx, _ *inbox.Claim) error {
			k, err := box.ClaimKey(ctx, tx, key)
			if err != nil {
				return err
			}
			if answer = string(k.Result); k.Duplicate {
				return nil
			}
			answer = "paid by " + id
			return errors.Join(apply(key)(ctx, tx, nil), k.Keep(ctx, []byte(answer)))
		})
		must(t, err)
		return answer
	}
	first, again := handle("e1", "cart-7"), handle("e2", "cart-7")
	if n := times(t, pool)["cart-7"]; n != 1 || first != again {
		t.Errorf("charged %d times; answers %q, %q", n, first, again)
	}
	if c, err := box.Once(ctx, pool, inbox.Event{ID: "cart-7"}, apply("x")); err != nil || c.Duplicate {
		t.Errorf("a key is taken for an event's id: %+v, %v", c, err)
	}
}

// A parked event is left alone until its dead letter is sent again, and then claimed once.
func TestParkAndRedrive(t *testing.T) {
	for _, mode := range []inbox.Positions{inbox.IDsOnly, inbox.PositionsAndIDs, inbox.PositionsOnly} {
		pool, ctx := newPool(t), t.Context()
		box := inbox.Inbox{Consumer: "billing", Positions: mode}
		place := inbox.Event{ID: "e1", Topic: "t", Source: "a", LSN: "1/10"}
		must(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return box.Park(ctx, tx, place) }))
		claim := func(ev inbox.Event) bool {
			c, err := box.Once(ctx, pool, ev, apply(ev.ID))
			must(t, err)
			return !c.Duplicate
		}
		if claim(place) {
			t.Errorf("mode %d: a repeat of a parked event is applied", mode)
		}
		if !claim(inbox.Event{ID: "e2", Topic: "t", Source: "a", LSN: "1/20"}) {
			t.Errorf("mode %d: the next event is stuck", mode)
		}
		redriven := place
		redriven.Copy, redriven.ParkedBy = inbox.CopyRedrive, "billing"
		if !claim(redriven) || claim(redriven) || claim(place) {
			t.Errorf("mode %d: a redriven event is not claimed once", mode)
		}
		others := inbox.Event{ID: "e2", Topic: "t", Source: "a", LSN: "1/20", Copy: inbox.CopyRedrive, ParkedBy: "mail"}
		if claim(others) {
			t.Errorf("mode %d: what another consumer parked is applied again", mode)
		}
		relays := inbox.Event{ID: "e0", Topic: "t", Source: "a", LSN: "1/8", Copy: inbox.CopyRedrive}
		if !claim(relays) || claim(relays) {
			t.Errorf("mode %d: what the relay parked is not claimed once", mode)
		}
	}
}

// Claims are pruned in batches; parked events stay.
func TestPrune(t *testing.T) {
	pool, ctx := newPool(t), t.Context()
	_, err := pool.Exec(ctx, `INSERT INTO consumed_event (consumer_name, event_id, claimed_at, parked_at)
		SELECT 'c', n::text, now() - n * interval '1 hour', CASE WHEN n = 90 THEN now() END FROM generate_series(1, 100) n`)
	must(t, err)
	n, err := inbox.Prune(ctx, pool, time.Now().Add(-50*time.Hour-time.Minute), 7)
	must(t, err)
	var left, parked int
	must(t, pool.QueryRow(ctx, "SELECT count(*), count(parked_at) FROM consumed_event").Scan(&left, &parked))
	if n != 49 || left != 51 || parked != 1 {
		t.Errorf("deleted %d, left %d, parked %d", n, left, parked)
	}
}
