package relay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
)

// recoverMark is the header of events that are published from the table, and may be repeats.
const recoverMark = "walrelay-recover"

// FromTable publishes what the outbox still holds and is not proven to be delivered, and goes on from
// there. Rows say less than the WAL: which transaction wrote them, not when it committed. So it is a
// superset, in the best order that the rows allow, and each event bears a mark.
func (r *Recovery) FromTable(ctx context.Context) error {
	gap, err := r.gap(replication.FromTable)
	if gap == nil {
		return err
	}
	scan := r.scan(gap)
	if _, err := replication.CountRows(ctx, r.cfg.Postgres, scan); err != nil { // before anything is changed
		return err
	}
	pos, fresh, err := r.ground(ctx, gap)
	if err != nil {
		return err
	}
	if fresh != nil {
		scan.Snapshot = fresh.Snapshot
		defer fresh.Release(context.WithoutCancel(ctx))
	}
	rows, err := replication.OpenRows(ctx, r.cfg.Postgres, scan)
	if err != nil {
		return err
	}
	defer rows.Close(context.WithoutCancel(ctx))
	run := tableRun{cfg: r.cfg, sink: r.cfg.Producer, rows: rows, source: pos.Source(), marks: []decode.Header{{Key: recoverMark, Value: []byte(runID())}}}
	if run.total, err = rows.Count(ctx); err != nil {
		return err
	}
	r.cfg.Log.Warn().Int64("rows", run.total).Str("mark", recoverMark+": "+string(run.marks[0].Value)).Str("order", rows.Order).Str("whole_table", rows.Whole).
		Stringer("from", gap.From).Stringer("to", gap.To).Msg("publishing from the table what is not proven to be delivered; rows of the gap that were pruned or deleted cannot be recovered")
	if err := run.run(ctx); err != nil {
		return fmt.Errorf("recover: stopped after %d of %d events from the table; give the same command again: %w", run.published.Load(), run.total, err)
	}
	if err := r.replace(ctx, pos); err != nil {
		return err
	}
	r.cfg.Log.Warn().Int64("published", run.published.Load()).Int64("repeats_at_least", run.known).Int64("repeats_at_most", min(run.perhaps+int64(r.pos.Open.Rows), run.published.Load())).
		Stringer("position", pos.Safe).Msg("recovered from the table: consumers tell repeats by the event id")
	return nil
}

// scan says which rows of the table may be undelivered.
func (r *Recovery) scan(gap *replication.ContinuityError) replication.Scan {
	scan := replication.Scan{IDColumn: r.cfg.Decoder.IDColumn(), TimeColumn: r.timeColumn()}
	switch {
	case r.loaded != nil, gap.Fault == replication.Restored:
		return scan
	}
	scan.Since, scan.ID, scan.XID, scan.Known = r.pos.Rooted.Xmin, r.pos.Last.EventID, r.pos.Last.XID, r.pos.Snapshot.Xmin
	scan.Newest = r.pos.Last.Time
	return scan
}

// timeColumn is the column that says when a row was written, if the mapping reads one.
func (r *Recovery) timeColumn() string {
	if r.cfg.Decoder.StartTable("", columns(r.survey.Columns), r.pos.Last.Time) != nil {
		return ""
	}
	return r.cfg.Decoder.TimeColumn()
}

// tell completes a refusal by what the outbox may still hold of the gap.
func (r *Recovery) tell(ctx context.Context, err error) {
	if gap := (*replication.ContinuityError)(nil); errors.As(err, &gap) && gap.Fault.Ways()&replication.FromTable != 0 {
		ctx, cancel := context.WithTimeout(ctx, refusalTimeout)
		defer cancel()
		gap.Rows = r.held(ctx, gap)
	}
}

func (r *Recovery) held(ctx context.Context, gap *replication.ContinuityError) string {
	scan := replication.Scan{}
	if r.loaded == nil {
		scan = r.scan(gap)
	}
	n, err := replication.CountRows(ctx, r.cfg.Postgres, scan)
	switch {
	case errors.As(err, new(*replication.AuthError)):
		return "what of it the outbox still holds is not known: " + err.Error()
	case err != nil:
		return "what of it the outbox still holds could not be counted in time"
	}
	return fmt.Sprintf("the outbox holds %d rows that may be of it", n)
}

// runID names one run of a command in the headers of its events.
func runID() string {
	var b [4]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
