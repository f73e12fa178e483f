package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/replication"
)

// Recovery is the way out of a position that does not continue. What is done is an operator's
// decision: each is a method, and changes nothing but the slot and the saved position.
//
// Each can be killed at any moment: the position is replaced last, so that the relay refuses as
// before until all is done, and the same command can be given again.
type Recovery struct {
	// Refusal is why the relay would not go on; nil: it would.
	Refusal error

	cfg    Config
	survey *replication.Survey
	pos    checkpoint.Position
	loaded error // why pos is none
}

// Examine finds out what a relay with this configuration would refuse. It takes
// the slot for a moment, and moves nothing. Its error means that it could not find out.
func Examine(ctx context.Context, cfg Config) (*Recovery, error) {
	r := &Recovery{cfg: cfg, loaded: checkpoint.ErrNone}
	var err error
	if r.survey, err = replication.LookAround(ctx, cfg.Postgres); err != nil {
		return nil, err
	}
	if errors.Is(r.survey.SlotFault, replication.ErrSlotInUse) {
		return nil, fmt.Errorf("%w; stop the relay that holds it first", r.survey.SlotFault)
	}
	if cfg.Store != nil {
		cfg.Store.For(r.survey.Server.SystemID, cfg.Postgres.Slot)
		r.pos, r.loaded = cfg.Store.Load(ctx)
	}
	r.Refusal = examine(ctx, cfg.Postgres, r.pos, r.loaded, r.survey)
	if r.Refusal == nil && r.loaded == nil {
		r.Refusal = recognise(ctx, cfg, r.pos, 0)
		locate(r.Refusal, r.pos, r.survey)
	}
	if r.Refusal != nil && !fatal(r.Refusal) {
		return nil, r.Refusal
	}
	r.tell(ctx, r.Refusal)
	return r, nil
}

// AcceptGap goes on without what is in the gap that begins at from, as the refusal named it.
func (r *Recovery) AcceptGap(ctx context.Context, from pglogrepl.LSN) error {
	gap, err := r.gap(replication.AcceptGap)
	if gap == nil {
		return err
	}
	if gap.From != from {
		return fmt.Errorf("recover: --accept-gap %s is not where the gap begins: %w", from, gap)
	}
	pos, fresh, err := r.ground(ctx, gap)
	if err != nil {
		return err
	}
	to := gap.To
	if fresh != nil {
		fresh.Release(ctx)
		to = max(to, fresh.Confirmed)
	}
	if err := r.replace(ctx, pos); err != nil {
		return err
	}
	r.cfg.Log.Warn().Stringer("from", from).Stringer("to", to).Stringer("position", pos.Safe).Str("reason", gap.Reason).
		Msg("gap accepted: what was committed in it and not delivered stays undelivered")
	return nil
}

// Adopt takes the position over to the new system id that pg_upgrade gave to the cluster. From
// Postgres 17 on it keeps the slot, and only if nothing was left to be streamed from it.
func (r *Recovery) Adopt(ctx context.Context) error {
	gap, err := r.gap(replication.Adopt)
	if gap == nil {
		return err
	}
	refuse := func(format string, a ...any) error {
		return fmt.Errorf("recover: --adopt is not possible: "+format+": %w", append(a, gap)...)
	}
	old, slot := r.pos, r.survey.Slot.Confirmed
	switch {
	case r.survey.SlotFault != nil:
		return refuse("pg_upgrade has not kept the slot, as it does from Postgres 17 on")
	case old.Open.Commit != 0:
		return refuse("%d rows of the transaction at %s were delivered, and not the rest", old.Open.Rows, old.Open.Commit)
	case old.Catalog.Table != 0 && old.Catalog.Table != r.survey.Catalog.Table:
		return refuse("the table has another oid than before, which pg_upgrade would have kept")
	case slot < old.Safe:
		return refuse("the slot stands at %s, and pg_upgrade goes on behind the old WAL, which was delivered up to %s", slot, old.Safe)
	}
	pos := r.fresh(slot)
	pos.Last, pos.Rooted, pos.Snapshot = old.Last, old.Rooted, old.Snapshot // transaction ids and LSNs go on
	if err := r.replace(ctx, pos); err != nil {
		return err
	}
	r.cfg.Log.Warn().Str("system_id", pos.SystemID).Str("before", old.SystemID).Stringer("position", pos.Safe).Msg("position adopted by the upgraded cluster")
	return nil
}

// gap is the refusal if the way leads out of it. Neither a gap nor an error: there is
// nothing to get out of.
func (r *Recovery) gap(way replication.Way) (*replication.ContinuityError, error) {
	if r.Refusal == nil {
		r.cfg.Log.Info().Stringer("position", r.pos.Safe).Msg("nothing to recover: the position is proven to continue")
		return nil, nil
	}
	var gap *replication.ContinuityError
	if !errors.As(r.Refusal, &gap) || gap.Fault.Ways()&way == 0 {
		return nil, fmt.Errorf("recover: this is not a way out of it: %w", r.Refusal)
	}
	if r.survey.CatalogFault != nil || gap.Fault == replication.SlotForeign {
		return nil, fmt.Errorf("recover: that has to be mended first: %w", r.Refusal)
	}
	if err := r.cfg.Fits(r.survey.Columns); err != nil {
		return nil, fmt.Errorf("recover: that has to be mended first: %w", err)
	}
	return gap, nil
}

// ground returns the position to go on from, on a slot that can be streamed: the one that is
// there, or else a new one, which is the caller's to release.
func (r *Recovery) ground(ctx context.Context, gap *replication.ContinuityError) (pos checkpoint.Position, fresh *replication.FreshSlot, err error) {
	need, drop := r.needsSlot(gap)
	if !need {
		pos = r.keep(gap)
		// Rows are decoded by the catalog of their time. Where that doesn't do, as for rows
		// written behind a column list, or without a publication, there is no way past them.
		err := recognise(ctx, r.cfg, pos, r.survey.Server.WALEnd)
		switch {
		case err == nil, errors.Is(err, errSlow):
			return pos, nil, nil
		case !fatal(err):
			return pos, nil, err
		}
		r.cfg.Log.Warn().Err(err).Msg("the slot can't be streamed past the gap")
		drop = true
	}
	if fresh, err = r.createSlot(ctx, drop); err != nil {
		return pos, nil, err
	}
	return r.fresh(fresh.Confirmed), fresh, nil
}

// needsSlot says whether the slot has to be created, and whether one is there to be dropped
// first.
func (r *Recovery) needsSlot(gap *replication.ContinuityError) (need, drop bool) {
	var fault *replication.ContinuityError
	switch {
	case errors.As(r.survey.SlotFault, &fault) && fault.Fault == replication.SlotMissing:
		return true, false
	case fault != nil, gap.Fault == replication.SlotLost, gap.Fault == replication.PublicationMissing:
		return true, true
	}
	return false, false
}

func (r *Recovery) createSlot(ctx context.Context, drop bool) (*replication.FreshSlot, error) {
	fresh, err := replication.CreateSlot(ctx, r.cfg.Postgres, drop)
	if err == nil {
		r.cfg.Log.Warn().Str("slot", r.cfg.Postgres.Slot).Bool("dropped_before", drop).Stringer("confirmed_lsn", fresh.Confirmed).Msg("slot created")
	}
	return fresh, err
}

// keep is the position on the slot that is there: the saved one, where only the catalog
// stood against it, else the slot's own.
func (r *Recovery) keep(gap *replication.ContinuityError) checkpoint.Position {
	switch gap.Fault {
	case replication.TableLeft, replication.TableReplaced, replication.PublicationChanged:
		pos := r.pos
		pos.Timeline, pos.Catalog, pos.Verified = r.survey.Server.Timeline, checkpoint.Catalog(r.survey.Catalog), pos.Safe
		return pos
	}
	return r.fresh(r.survey.Slot.Confirmed)
}

// fresh is the position of a slot that is trusted.
func (r *Recovery) fresh(at pglogrepl.LSN) checkpoint.Position {
	return checkpoint.Position{
		SystemID: r.survey.Server.SystemID, Timeline: r.survey.Server.Timeline,
		Slot: r.cfg.Postgres.Slot, Publication: r.cfg.Postgres.Publication,
		Safe: at, Trusted: at, Verified: at, Catalog: checkpoint.Catalog(r.survey.Catalog),
	}
}

func (r *Recovery) replace(ctx context.Context, pos checkpoint.Position) error {
	if r.cfg.Store == nil {
		return nil
	}
	return r.cfg.Store.Replace(ctx, pos)
}
