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

// TailConfig says what to show.
type TailConfig struct {
	Config                 // Postgres and Decoder
	Filter   Filter        // of what is shown
	Patience time.Duration // how long making the temporary slot may take

	// Show gets each event, in commit order, before its transaction is known to be whole; it keeps
	// nothing of it. ErrEnough ends the tail.
	Show func(ev *decode.Event, eventType []byte) error
	// Rest is called when there is nothing more to show for the moment.
	Rest func() error
}

// ErrEnough is returned by Show to end a tail without an error.
var ErrEnough = errors.New("relay: enough")

// Tail shows the events that are committed from now on, as they would be published, until ctx
// ends, on a temporary slot: neither the relay's slot nor Kafka is touched. What it has shown it lets the server forget.
// A session that is lost ends it, for what was committed meanwhile could not be shown.
func Tail(ctx context.Context, cfg TailConfig) error {
	opening, cancel := context.WithTimeout(ctx, cfg.Patience)
	defer cancel()
	pg, err := replication.OpenTemporary(opening, cfg.Postgres)
	if err != nil {
		return err
	}
	defer func() {
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		pg.Close(leaving)
	}()
	if err := cfg.Fits(pg.Columns); err != nil {
		return err
	}
	cfg.Decoder.Table = pg.Catalog.Table
	cfg.Decoder.Start(checkpoint.Position{SystemID: pg.Server.SystemID, Timeline: pg.Server.Timeline, Slot: cfg.Postgres.Slot}.Source())
	cfg.Log.Info().Stringer("from", pg.Slot.Confirmed).Msg("showing what is committed from now on")
	defer context.AfterFunc(ctx, pg.Wake)()
	b := decode.NewBatch(1 << 20)
	for {
		m, err := pg.Next()
		if err != nil {
			return fmt.Errorf("tail: %w; what is committed until it is started again is not shown", err)
		}
		switch m.Kind {
		case replication.Data:
			err = cfg.show(pg, m.WAL, b)
		case replication.Keepalive:
			if _, open := cfg.Decoder.Txn(); !open {
				pg.Confirm(m.WALEnd)
			}
		default: // Drained, Woken
			if ctx.Err() != nil {
				return cfg.Rest()
			}
			err = cfg.Rest()
		}
		switch {
		case errors.Is(err, ErrEnough):
			return cfg.Rest()
		case err != nil:
			return err
		}
	}
}

func (cfg *TailConfig) show(pg *replication.Session, wal []byte, b *decode.Batch) error {
	kind, err := cfg.Decoder.Decode(wal, b)
	if err != nil {
		return err
	}
	switch kind {
	case decode.Row:
		defer b.Reset()
		if ev, eventType := &b.Events[0], cfg.Decoder.EventType(wal); cfg.Filter.keeps(ev, eventType) {
			return cfg.Show(ev, eventType)
		}
	case decode.Commit:
		t, _ := cfg.Decoder.Txn()
		pg.Confirm(t.End)
	}
	return nil
}
