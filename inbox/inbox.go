// Package inbox lets a consumer's effects happen once, although its events arrive at
// least once: it claims an event in the transaction of the effect, so that both are committed or
// neither is.
//
//	box := inbox.Inbox{Consumer: "billing"}
//	claim, err := box.Once(ctx, pool, inbox.Event{ID: id}, func(ctx context.Context, tx pgx.Tx, _ *inbox.Claim) error {
//		return charge(ctx, tx, order) // the effect, in the transaction of the claim
//	})
//
// The tables are in sql/inbox.sql. The package knows nothing of Kafka; inbox/kafkaconsumer
// is a consumer's loop around it, and inbox/redishint tells most duplicates without a transaction.
//
// # Two inboxes
//
// The event inbox keeps the id of every event (table consumed_event). It is right for any events that
// have an id, in any order, for as long as the ids are kept.
//
// The position inbox (Inbox.Positions) makes use of what walrelay promises of its topics: the position of an
// event, its commit LSN and its ordinal in the transaction, rises along a partition, and what is repeated is a run
// that ends at the newest event. So one row per consumer, topic, partition and source, with the position that
// was applied last, knows every repeat, and never grows. It is not right by itself for
//
//   - events without a position: those that were published from the table;
//   - copies, marked by the header walrelay-replay, walrelay-recover or walrelay-redrive: they come behind events
//     with a higher position, and what they repeat may have been applied or not;
//   - what is repeated under another source: LSNs of different clusters, timelines and slots don't compare, so after
//     a failover that the relay did not outlive either, up to two batches look new;
//   - what is repeated after the topic was given more partitions: its key may have moved. Stop the relay (a stop
//     repeats nothing) and let the consumers catch up before you add partitions.
//
// [PositionsAndIDs] therefore keeps the ids as well and decides by them in the first three cases; the ids need only be kept
// for as long as copies can reach back, and the position covers the rest for ever. [PositionsOnly] keeps
// no ids, takes the third case for new, and refuses what it cannot decide with [ErrUndecidable].
package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Positions says what an [Inbox] remembers events by.
type Positions int

const (
	IDsOnly         Positions = iota // by their ids
	PositionsAndIDs                  // by their positions, and by their ids where positions don't decide
	PositionsOnly                    // by their positions; nothing grows, copies are refused
)

// Errors of a claim that no repetition mends.
var (
	// ErrNoID is returned for an event without an id.
	ErrNoID = errors.New("inbox: the event has no id")
	// ErrUndecidable is returned under PositionsOnly for an event that only its id could tell: one without
	// a position, or a copy. Nothing is claimed; PositionsAndIDs would have had to be on when the event came first.
	ErrUndecidable = errors.New("inbox: neither a position nor a kept id tells whether the event was applied; decide by hand, or keep ids (PositionsAndIDs) for as long as copies may come")
	// ErrNotKept is returned by Keep where the claim left no row that could hold a result.
	ErrNotKept = errors.New("inbox: a claim by position alone keeps no result")
)

// Inbox is a consumer's memory of the events that it has applied. It is a value without state of its own: the state is in the
// database of the transactions that are passed in.
type Inbox struct {
	// Consumer is the name under which events are claimed: one for each effect, shared by all processes that
	// share the work. Renaming it forgets everything.
	Consumer  string
	Positions Positions
	Hints     Hints // nil = none
}

// Hints is a fast memory beside the database, such as inbox/redishint. It may forget, be away and be wrong: a yes is looked up in the
// database, a no leads to a claim.
type Hints interface {
	Seen(ctx context.Context, consumer, id string) bool
	Note(ctx context.Context, consumer, id string) // called behind the commit
}

// Claim is what a transaction knows of its event.
type Claim struct {
	Duplicate bool   // the event has been dealt with: don't run the effect
	Parked    bool   // it was parked, not applied; with Duplicate
	Result    []byte // what the first run has kept; with Duplicate

	consumer, id string
	tx           pgx.Tx
}

// Beginner is a pool or a connection.
type Beginner interface {
	Queryer
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Once runs effect in a transaction that claims ev, unless ev is a duplicate, which the returned claim then says. After an error nothing has
// happened, or, where the answer to the commit was lost, all of it: run it again, and the claim tells.
func (b Inbox) Once(ctx context.Context, db Beginner, ev Event, effect func(context.Context, pgx.Tx, *Claim) error) (*Claim, error) {
	if b.Hints != nil && b.Hints.Seen(ctx, b.Consumer, ev.ID) {
		if result, seen, err := b.Seen(ctx, db, ev); seen || err != nil {
			return &Claim{Duplicate: true, Result: result}, err
		}
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("inbox: begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	c, err := b.Claim(ctx, tx, ev)
	if err != nil {
		return nil, err
	}
	if !c.Duplicate {
		if err := effect(ctx, tx, c); err != nil {
			return nil, err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, fmt.Errorf("inbox: commit: %w", err)
	}
	if b.Hints != nil && !c.Parked {
		b.Hints.Note(ctx, b.Consumer, ev.ID)
	}
	return c, nil
}

// Claim claims ev in tx. Unless it is a duplicate, run the effect in tx and commit; a rollback gives the event
// back. When another transaction holds the same claim, Claim waits for its end.
//
// Claim before anything else in the transaction. Under repeatable read and serializable isolation a claim that had to wait can
// end with SQLSTATE 40001, as any statement can: roll back, and begin again.
func (b Inbox) Claim(ctx context.Context, tx pgx.Tx, ev Event) (*Claim, error) {
	if ev.ID == "" {
		return nil, ErrNoID
	}
	byPosition := b.Positions != IDsOnly && ev.positioned() && ev.Copy == ""
	switch {
	case byPosition && b.Positions == PositionsOnly:
		return b.claimPosition(ctx, tx, ev)
	case byPosition:
		return b.claimBoth(ctx, tx, ev)
	case ev.Copy == CopyRedrive:
		return b.claimRedriven(ctx, tx, ev)
	case b.Positions == PositionsOnly:
		return nil, ErrUndecidable
	}
	return b.claimID(ctx, tx, b.Consumer, ev.ID)
}

// ClaimKey claims an idempotency key: what its sender calls one command, however often the command is given.
// Claim tells copies of one event; a client that tries again makes a new event, with an id of its own and the same
// key. Claim the event first, and the key with it where the command came from a client that tries again.
func (b Inbox) ClaimKey(ctx context.Context, tx pgx.Tx, key string) (*Claim, error) {
	if key == "" {
		return nil, ErrNoID
	}
	return b.claimID(ctx, tx, b.Consumer+keySpace, key)
}

// keySpace sets keys apart from ids, which may be equal.
const keySpace = "#key"

const insertID = `INSERT INTO consumed_event (consumer_name, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`

// claimID waits at the key's index entry for a transaction that inserts it, so that claims of one event serialise.
func (b Inbox) claimID(ctx context.Context, tx pgx.Tx, consumer, id string) (*Claim, error) {
	c := &Claim{consumer: consumer, id: id, tx: tx}
	tag, err := tx.Exec(ctx, insertID, consumer, id)
	if err != nil {
		return nil, fmt.Errorf("inbox: claim event %q: %w", id, err)
	}
	if tag.RowsAffected() == 0 {
		return c, c.recall(ctx)
	}
	return c, nil
}

const unpark = `INSERT INTO consumed_event AS c (consumer_name, event_id) VALUES ($1, $2)
ON CONFLICT (consumer_name, event_id) DO UPDATE SET parked_at = NULL, claimed_at = now() WHERE c.parked_at IS NOT NULL`

// claimRedriven claims a dead letter that was sent again. A parked event has a row that says so, which becomes a claim. An event that
// the relay parked was in no consumer's topic before and has no row. An event that another consumer
// parked was applied here long ago: our copy was in the same place of the same partition.
func (b Inbox) claimRedriven(ctx context.Context, tx pgx.Tx, ev Event) (*Claim, error) {
	c := &Claim{consumer: b.Consumer, id: ev.ID, tx: tx}
	if b.Positions == PositionsOnly && ev.ParkedBy != "" && ev.ParkedBy != b.Consumer {
		c.Duplicate = true
		return c, nil
	}
	tag, err := tx.Exec(ctx, unpark, b.Consumer, ev.ID)
	if err != nil {
		return nil, fmt.Errorf("inbox: claim redriven event %q: %w", ev.ID, err)
	}
	if tag.RowsAffected() == 0 {
		return c, c.recall(ctx)
	}
	return c, nil
}

// recall makes c a duplicate, with what the first run has left.
func (c *Claim) recall(ctx context.Context) error {
	c.Duplicate = true
	var err error
	if c.Result, c.Parked, err = lookUp(ctx, c.tx, c.consumer, c.id); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("inbox: look up event %q: %w", c.id, err)
	}
	return nil // a row that retention has taken meanwhile was a row all the same
}

// Queryer is a transaction, a connection or a pool.
type Queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func lookUp(ctx context.Context, db Queryer, consumer, id string) (result []byte, parked bool, err error) {
	err = db.QueryRow(ctx, "SELECT result, parked_at IS NOT NULL FROM consumed_event WHERE consumer_name = $1 AND event_id = $2", consumer, id).Scan(&result, &parked)
	return result, parked, err
}

// Keep stores what later duplicates get as Claim.Result: the answer to a command, say. It is committed with the claim.
func (c *Claim) Keep(ctx context.Context, result []byte) error {
	tag, err := c.tx.Exec(ctx, "UPDATE consumed_event SET result = $3 WHERE consumer_name = $1 AND event_id = $2", c.consumer, c.id, result)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrNotKept
	}
	if err != nil {
		return fmt.Errorf("inbox: keep the result of event %q: %w", c.id, err)
	}
	return nil
}
