package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const insertParked = `INSERT INTO consumed_event (consumer_name, event_id, parked_at) VALUES ($1, $2, now()) ON CONFLICT DO NOTHING`

// Park records in tx that the consumer gave up on ev: repeats of it are duplicates from now on, and later events go
// on; when the dead letter is sent again, marked as redriven, it can be claimed once. Send it to the dead-letter topic
// before, so that a crash between the two leaves a second dead letter and not none.
func (b Inbox) Park(ctx context.Context, tx pgx.Tx, ev Event) error {
	if ev.ID == "" {
		return nil // nothing could tell its repeats
	}
	if b.Positions != IDsOnly && ev.positioned() && ev.Copy == "" {
		c, err := b.claimPosition(ctx, tx, ev)
		if err != nil {
			return err
		}
		if c.Duplicate && b.Positions == PositionsOnly {
			return nil
		}
	}
	if _, err := tx.Exec(ctx, insertParked, b.Consumer, ev.ID); err != nil {
		return fmt.Errorf("inbox: park %s: %w", ev, err)
	}
	return nil
}

// Seen is a look without a transaction, a lock or a write: has ev been applied, and with which result? A yes is certain, and may be asked of a
// replica; a no is not, Claim decides. An event that was parked has not been applied.
func (b Inbox) Seen(ctx context.Context, db Queryer, ev Event) (result []byte, seen bool, err error) {
	if b.Positions == PositionsOnly {
		if !ev.positioned() || ev.Copy != "" {
			return nil, false, nil
		}
		err = db.QueryRow(ctx, `SELECT (lsn, seq) >= ($5::text::pg_lsn, $6::bigint) FROM consumed_position
			WHERE consumer_name = $1 AND topic = $2 AND partition = $3 AND source = $4`,
			b.Consumer, ev.Topic, ev.Partition, ev.Source, ev.LSN, ev.Seq).Scan(&seen)
	} else {
		var parked bool
		result, parked, err = lookUp(ctx, db, b.Consumer, ev.ID)
		seen = err == nil && !parked
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("inbox: look for %s: %w", ev, err)
	}
	return result, seen, nil
}

const pruneBatch = `DELETE FROM consumed_event WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM consumed_event WHERE claimed_at < $1 AND parked_at IS NULL LIMIT $2))`

// Prune deletes claims older than before, of all consumers, batch rows in a transaction of its own each, and returns how many.
// Keep claims for longer than anything can repeat their events: the topics' retention, the outbox table that recover
// reads, the window of replay. Parked events are kept until they are redriven, or deleted by hand.
func Prune(ctx context.Context, db Queryer, before time.Time, batch int) (deleted int64, err error) {
	for {
		tag, err := db.Exec(ctx, pruneBatch, before, batch)
		if err != nil {
			return deleted, fmt.Errorf("inbox: prune: %w", err)
		}
		deleted += tag.RowsAffected()
		if tag.RowsAffected() == 0 {
			return deleted, nil
		}
	}
}
