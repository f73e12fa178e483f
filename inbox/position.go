package inbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A claim by position locks the partition's row until its transaction ends. Within a partition events are applied one
// after the other anyway; a consumer that was presumed dead and still works at an event is waited for here,
// and Postgres compares again with what it has committed.
const movePosition = `INSERT INTO consumed_position AS p (consumer_name, topic, partition, source, lsn, seq)
VALUES ($1, $2, $3, $4, $5::text::pg_lsn, $6)
ON CONFLICT (consumer_name, topic, partition, source) DO UPDATE SET lsn = excluded.lsn, seq = excluded.seq
WHERE (p.lsn, p.seq) < (excluded.lsn, excluded.seq)`

// One statement, one round trip: the id is looked at only if the position is new.
const moveAndNote = `WITH moved AS (` + movePosition + ` RETURNING 1),
noted AS (INSERT INTO consumed_event (consumer_name, event_id) SELECT $1, $7 FROM moved ON CONFLICT DO NOTHING RETURNING 1)
SELECT EXISTS (SELECT FROM noted)`

func (b Inbox) claimPosition(ctx context.Context, tx pgx.Tx, ev Event) (*Claim, error) {
	tag, err := tx.Exec(ctx, movePosition, b.Consumer, ev.Topic, ev.Partition, ev.Source, ev.LSN, ev.Seq)
	if err != nil {
		return nil, fmt.Errorf("inbox: claim %s by position: %w", ev, err)
	}
	return &Claim{Duplicate: tag.RowsAffected() == 0, consumer: b.Consumer, id: ev.ID, tx: tx}, nil
}

func (b Inbox) claimBoth(ctx context.Context, tx pgx.Tx, ev Event) (*Claim, error) {
	c := &Claim{consumer: b.Consumer, id: ev.ID, tx: tx}
	var isNew bool
	err := tx.QueryRow(ctx, moveAndNote, b.Consumer, ev.Topic, ev.Partition, ev.Source, ev.LSN, ev.Seq, ev.ID).Scan(&isNew)
	if err != nil {
		return nil, fmt.Errorf("inbox: claim %s by position and id: %w", ev, err)
	}
	if !isNew {
		return c, c.recall(ctx)
	}
	return c, nil
}
