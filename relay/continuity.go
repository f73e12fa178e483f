package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/replication"
)

// continues checks that a position speaks of this server's WAL and catalog. What only the
// stream can show is resume's matter.
func continues(ctx context.Context, cfg replication.Config, pos checkpoint.Position, g *replication.Ground) error {
	refuse := func(fault replication.Fault, from, to pglogrepl.LSN, format string, args ...any) error {
		return &replication.ContinuityError{Fault: fault, Reason: fmt.Sprintf(format, args...), From: from, To: to}
	}
	if pos.Slot == cfg.Slot && pos.SystemID != g.Server.SystemID {
		return refuse(replication.SystemChanged, pos.Safe, g.Server.WALEnd, "the server has the system id %s, the saved position is of %s: LSNs of the one mean nothing to the other", g.Server.SystemID, pos.SystemID)
	}
	if err := pos.Belongs(g.Server.SystemID, cfg.Slot); err != nil {
		return err
	}
	if pos.Backfill.Runs > 0 {
		return &replication.ContinuityError{Fault: replication.BackfillUnfinished, To: g.Server.WALEnd, Remedy: "start `walrelay run --backfill` again, which starts over",
			Reason: fmt.Sprintf("the rows from before the slot are not all published: a backfill was interrupted after at most %d events", pos.Backfill.Events)}
	}
	delivered := max(pos.Safe, pos.Open.Commit)
	switch {
	case pos.Timeline > g.Server.Timeline:
		return refuse(replication.TimelineForked, pos.Safe, g.Server.WALEnd, "the server is on timeline %d, the saved position on the later timeline %d", g.Server.Timeline, pos.Timeline)
	case pos.Timeline < g.Server.Timeline:
		// A promotion. What was delivered from the old timeline must lie below the switch.
		at, err := replication.SwitchPoint(ctx, cfg, pos.Timeline, g.Server.Timeline)
		if gap := (*replication.ContinuityError)(nil); errors.As(err, &gap) {
			gap.From, gap.To = pos.Safe, g.Server.WALEnd
		}
		if err != nil {
			return err
		}
		if delivered > at {
			return refuse(replication.TimelineForked, at, delivered, "the server was promoted to timeline %d at %s, but events up to %s were delivered from timeline %d: the promoted server lost them", g.Server.Timeline, at, delivered, pos.Timeline)
		}
	}
	if delivered > g.Server.WALEnd {
		return refuse(replication.Restored, g.Slot.Confirmed, delivered, "the server's WAL ends at %s, but events up to %s were delivered: the cluster was restored to an earlier state", g.Server.WALEnd, delivered)
	}
	if was := replication.Catalog(pos.Catalog); was != (replication.Catalog{}) && g.Catalog != (replication.Catalog{}) {
		err := was.Differs(g.Catalog, cfg)
		if gap := (*replication.ContinuityError)(nil); errors.As(err, &gap) {
			gap.From, gap.To = pos.Verified, g.Server.WALEnd
		}
		return err
	}
	return nil
}

// damaged makes of a checkpoint that can't be read any more a refusal with a way out: the
// slot is never ahead of what was saved.
func damaged(err error, g *replication.Ground) error {
	if state := (*checkpoint.StateError)(nil); errors.As(err, &state) && state.Damaged {
		return &replication.ContinuityError{Fault: replication.CheckpointDamaged, Reason: err.Error(), From: g.Slot.Confirmed, To: g.Server.WALEnd}
	}
	return err
}

// examine says, as far as can be seen without the stream, why the position that was
// loaded (or why it was not) does not continue on the server; nil: it does. It is what
// a run refuses by, with the same lower end of the gap at any time.
func examine(ctx context.Context, cfg replication.Config, pos checkpoint.Position, loaded error, s *replication.Survey) error {
	if err := damaged(loaded, &s.Ground); err != nil && !errors.Is(err, checkpoint.ErrNone) {
		return err
	}
	var err error
	from := pos.Verified // where the catalog can't be seen to be unchanged, only what was verified is sure
	if loaded == nil {
		if err = continues(ctx, cfg, pos, &s.Ground); err == nil && s.CatalogFault == nil {
			from = pos.Safe
		}
	}
	var gap *replication.ContinuityError
	switch {
	case err != nil && s.SlotFault == nil:
		return err
	case errors.As(err, &gap) && (gap.Fault == replication.SystemChanged || gap.Fault == replication.TimelineForked):
		gap.Reason += "; " + s.SlotFault.Error()
		return gap
	case s.SlotFault == nil && s.CatalogFault == nil && loaded == nil:
		_, err = newResume(pos, s.Slot.Confirmed)
		return err
	}
	for _, fault := range []error{s.SlotFault, s.CatalogFault} {
		if errors.As(fault, &gap) && gap.From == 0 {
			gap.From, gap.To = from, max(from, s.Server.WALEnd)
			if gap.Fault == replication.SlotMissing && loaded == nil {
				gap.Remedy = "" // it did exist
			}
		}
		if fault != nil {
			return fault
		}
	}
	return nil
}

// locate gives a refusal that came from within the stream, and knows no gap, the widest there is.
func locate(err error, pos checkpoint.Position, s *replication.Survey) {
	if gap := (*replication.ContinuityError)(nil); errors.As(err, &gap) && gap.From == 0 && gap.To == 0 && pos.Verified != 0 {
		gap.From, gap.To = pos.Verified, max(pos.Verified, s.Server.WALEnd)
	}
}

// refusalTimeout bounds how long a run that can't go on looks for the gap, and as long again for
// what the outbox holds of it.
const refusalTimeout = 2 * time.Second

// refusal completes the error that ends a run, if rows may be missing, by the gap and by
// what the outbox still holds of it.
func (r *Relay) refusal(ctx context.Context, err error) error {
	var gap *replication.ContinuityError
	if !errors.As(err, &gap) {
		return err
	}
	see, cancel := context.WithTimeout(ctx, refusalTimeout)
	defer cancel()
	s, unseen := replication.LookAround(see, r.cfg.Postgres)
	if unseen != nil {
		return err
	}
	c := &Recovery{cfg: r.cfg, survey: s, loaded: checkpoint.ErrNone}
	if r.cfg.Store != nil {
		r.cfg.Store.For(s.Server.SystemID, r.cfg.Postgres.Slot)
		c.pos, c.loaded = r.cfg.Store.Load(see)
	}
	if gap.From == 0 && gap.To == 0 {
		if found := examine(see, r.cfg.Postgres, c.pos, c.loaded, s); found != nil && !errors.Is(found, replication.ErrSlotInUse) {
			err = found
		}
		locate(err, c.pos, s)
	}
	c.tell(ctx, err)
	return err
}
