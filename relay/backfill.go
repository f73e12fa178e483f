package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
)

// backfillMark is the header of events from before the slot.
const backfillMark = "walrelay-backfill"

// backfill publishes, once in the life of a checkpoint, the rows that are older than the slot. It creates
// the slot: what the snapshot sees that the slot exports is published here, all else comes in the stream.
//
// The position says that it has begun before the slot is there, and that it is done behind the last
// acknowledgement: whatever comes in between, it starts over with a new slot.
func (r *Relay) backfill(ctx context.Context) error {
	if r.cfg.Backfill == nil || r.filled {
		return nil
	}
	s, err := replication.LookAround(ctx, r.cfg.Postgres)
	if err != nil {
		return err
	}
	if errors.Is(s.SlotFault, replication.ErrSlotInUse) {
		return s.SlotFault // another relay's; it will be done
	}
	c := &Recovery{cfg: r.cfg, survey: s}
	r.cfg.Store.For(s.Server.SystemID, r.cfg.Postgres.Slot)
	if err := r.cfg.Store.Own(ctx); err != nil {
		return err
	}
	c.pos, c.loaded = r.cfg.Store.Load(ctx)
	switch {
	case c.loaded == nil && c.pos.Backfill.Runs == 0, c.loaded == nil && c.pos.Belongs(s.Server.SystemID, r.cfg.Postgres.Slot) != nil:
		r.log.Info().Msg("no backfill: there is a saved position")
		r.filled = true
		return nil
	case c.loaded != nil && !errors.Is(c.loaded, checkpoint.ErrNone):
		return nil // the session's start says what is the matter with it
	case c.loaded != nil && r.hasPredecessor(ctx, s.Server.SystemID):
		return nil
	case c.loaded != nil && s.SlotFault == nil:
		return &replication.SetupError{Reason: fmt.Sprintf("relay: --backfill creates the slot, and %q is there already", r.cfg.Postgres.Slot),
			Remedy: fmt.Sprintf("SELECT pg_drop_replication_slot('%s') if no relay has used it, and start again: rows that were committed since are in the table too; or leave --backfill away", r.cfg.Postgres.Slot)}
	}
	missing := (*replication.ContinuityError)(nil)
	if errors.As(s.SlotFault, &missing) && missing.Fault != replication.SlotMissing && c.loaded != nil {
		return s.SlotFault
	}
	if s.CatalogFault != nil {
		return s.CatalogFault
	}
	if err := r.cfg.Fits(s.Columns); err != nil {
		return err
	}
	err = c.backfill(ctx, s.SlotFault == nil || missing.Fault != replication.SlotMissing)
	r.filled = err == nil
	return err
}

// hasPredecessor says whether the store that is to be taken over holds anything.
func (r *Relay) hasPredecessor(ctx context.Context, systemID string) bool {
	if r.cfg.From == nil {
		return false
	}
	r.cfg.From.For(systemID, r.cfg.Postgres.Slot)
	_, err := r.cfg.From.Load(ctx)
	return !errors.Is(err, checkpoint.ErrNone)
}

func (r *Recovery) backfill(ctx context.Context, drop bool) error {
	begun := r.fresh(0)
	begun.Backfill = checkpoint.Backfill{Runs: r.pos.Backfill.Runs + 1, Events: r.pos.Backfill.Events}
	if err := r.replace(ctx, begun); err != nil {
		return err
	}
	fresh, err := r.createSlot(ctx, drop)
	if err != nil {
		return err
	}
	defer fresh.Release(context.WithoutCancel(ctx))
	rows, err := replication.OpenRows(ctx, r.cfg.Postgres, replication.Scan{Snapshot: fresh.Snapshot, TimeColumn: r.timeColumn()})
	if err != nil {
		return err
	}
	defer rows.Close(context.WithoutCancel(ctx))
	done := r.fresh(fresh.Confirmed)
	run := tableRun{cfg: r.cfg, sink: r.cfg.Backfill, rows: rows, source: done.Source(),
		marks: []decode.Header{{Key: backfillMark, Value: []byte(runID())}}, saw: r.expiring(ctx)}
	note := func(published int64) error { // also when we are asked to stop
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
		defer cancel()
		now := begun
		now.Backfill.Events += published
		return r.replace(ctx, now)
	}
	run.note = func(published int64) {
		if err := note(published); err != nil {
			r.cfg.Log.Warn().Err(err).Msg("the progress of the backfill is not saved")
		}
	}
	if run.total, err = rows.Count(ctx); err != nil {
		return err
	}
	r.cfg.Log.Info().Int64("rows", run.total).Str("order", rows.Order).Stringer("slot_begins_at", fresh.Confirmed).
		Int64("overlap", begun.Backfill.Events).Msg("backfill: publishing the rows that are older than the slot")
	if err := run.run(ctx); err != nil {
		r.cfg.Log.Warn().Int64("published", run.published.Load()).Int64("of", run.total).Msg("backfill interrupted: it starts over with a new slot")
		return errors.Join(err, note(run.published.Load()))
	}
	if err := r.replace(ctx, done); err != nil {
		return err
	}
	r.cfg.Log.Info().Int64("published", run.published.Load()).Int64("overlap", begun.Backfill.Events).Stringer("position", done.Safe).Msg("backfill done")
	return nil
}

// saveTimeout bounds a save that is not part of the pipe.
const saveTimeout = 5 * time.Second

// expiring warns, once for each topic, of rows that are older than what the topic keeps.
func (r *Recovery) expiring(ctx context.Context) func(*decode.Event) {
	oldest, known := map[string]time.Duration{}, map[string]bool{}
	return func(ev *decode.Event) {
		age := time.Since(time.UnixMilli(ev.Timestamp))
		if ev.Poison != nil || age < time.Minute || known[ev.Topic] && age <= oldest[ev.Topic] {
			return
		}
		if !known[ev.Topic] {
			keeps, limited, err := r.cfg.Backfill.Retention(ctx, ev.Topic)
			known[ev.Topic] = true
			if oldest[ev.Topic] = keeps; err != nil || !limited { // a warning is not worth waiting for
				oldest[ev.Topic] = 1<<63 - 1
			}
		}
		if age > oldest[ev.Topic] {
			r.cfg.Log.Warn().Str("topic", ev.Topic).Time("row_time", time.UnixMilli(ev.Timestamp).UTC()).Dur("retention", oldest[ev.Topic]).
				Msg("rows are older than what the topic keeps: Kafka deletes them soon after; raise retention.ms first if they are wanted")
			oldest[ev.Topic] = 1<<63 - 1
		}
	}
}
