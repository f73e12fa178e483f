package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/walrelay/walrelay/checkpoint"
)

// Predecessor is the store that kept the position before: its position is taken over, once, and
// Retire leaves word of that.
type Predecessor interface {
	Store
	Retire(ctx context.Context, p checkpoint.Position, to string) error
}

// takeOver returns the position to go on from where the store has changed: the higher one of both,
// which is in the new store by then. found and loaded are what that holds.
//
// The old store is retired last: killed before, we come here again, and find the same. Nobody else writes to either,
// for the slot is ours; a relay that uses the old one is told where the position is when it has the slot again.
func (r *Relay) takeOver(ctx context.Context, systemID string, found checkpoint.Position, loaded error) (checkpoint.Position, error) {
	from := r.cfg.From
	from.For(systemID, r.cfg.Postgres.Slot)
	if err := from.Own(ctx); err != nil {
		return found, err
	}
	old, err := from.Load(ctx)
	switch {
	case errors.Is(err, checkpoint.ErrNone), errors.As(err, new(*checkpoint.MovedError)):
		return found, loaded
	case err == nil:
		err = old.Belongs(systemID, r.cfg.Postgres.Slot)
	}
	if err != nil {
		return found, fmt.Errorf("relay: take the position over: %w", err)
	}
	var back *checkpoint.MovedError // it was here before
	none := errors.Is(loaded, checkpoint.ErrNone)
	if errors.As(loaded, &back) {
		found = back.Position
	} else if loaded != nil && !none {
		return found, loaded
	}
	higher := none || old.Compare(found) > 0
	if higher {
		found = old
	}
	if higher || back != nil {
		if err := r.cfg.Store.Replace(ctx, found); err != nil {
			return found, err
		}
		r.log.Info().Stringer("position", found.Safe).Str("to", r.cfg.Place).Msg("position taken over from another store")
	}
	return found, from.Retire(ctx, old, r.cfg.Place)
}
