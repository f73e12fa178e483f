package relay

import (
	"context"
	"errors"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/replication"
)

// Continues says why a relay would refuse to go on from the saved position, as far as
// can be seen without the stream: an error of [Relay.Run]. nil: nothing is seen, or
// nothing is to be seen: there is no position, a relay holds the slot and looks itself, or server, slot or
// publication have a fault of their own, which [replication.Observer.Examine] tells.
func (from Sources) Continues(ctx context.Context) error {
	if from.Config.Store == nil {
		return nil
	}
	survey, err := replication.LookAround(ctx, from.Config.Postgres)
	if err != nil || survey.SlotFault != nil || survey.CatalogFault != nil {
		return nil
	}
	from.Config.Store.For(survey.Server.SystemID, from.Config.Postgres.Slot)
	pos, loaded := from.load(ctx)
	if errors.Is(loaded, checkpoint.ErrNone) {
		return nil
	}
	return examine(ctx, from.Config.Postgres, pos, loaded, survey)
}
