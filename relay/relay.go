// Package relay is the pipe from Postgres to Kafka: read, batch, produce, save
// the position, confirm.
//
// Per session with Postgres six goroutines run, started and awaited by
// [Relay.session]:
//
//	read     owns the connection: stream → decode → the open batch → hand over
//	deliver  owns the batch in flight: sink → acknowledged position
//	save     position → checkpoint → the LSN to confirm
//	watch    catalog checks, idle positions, lags
//	probe    are the brokers there?
//	anchor   the slot that replays start from is kept behind
//
// Positions ride with the batches, so one that comes out at the far end proves
// that all before it is delivered:
//
//	confirmed ≤ saved ≤ delivered     (at every moment, in every path)
//
// Any error ends the session; the next one starts from the saved position. The
// start path is the recovery path. Only what [fatal] names ends the process.
package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

// Store keeps the position of the slot that For names. Own is called at the start of each session, once the
// slot is ours; Load answers [checkpoint.ErrNone] where none was saved yet; Replace saves a position whatever
// is there: only an operator's word allows that.
type Store interface {
	For(systemID, slot string)
	Own(context.Context) error
	Load(context.Context) (checkpoint.Position, error)
	Save(context.Context, checkpoint.Position) error
	Replace(context.Context, checkpoint.Position) error
}

// Config says what is carried from where to where.
type Config struct {
	Postgres replication.Config
	Decoder  *decode.Decoder
	Producer *sink.Producer
	Store    Store // nil: the slot's own position is the only one

	// From, if it is set, is the store that was used before, and Place how --checkpoint names
	// the present one.
	From  Predecessor
	Place string

	// Once, if it is set, is the Store, in the hands of Producer: each batch and the position behind
	// it are one transaction (exactly once).
	Once *checkpoint.Kafka

	// IdleEvery is how often idle positions are proven, saved and confirmed at most; 0: once a second.
	IdleEvery time.Duration

	// BufferBytes bounds the memory of all events held, but for a row that is
	// larger by itself.
	BufferBytes int

	// Until ends the run when all that was committed below it is delivered and
	// confirmed; UntilNow sets it to the WAL's end as of the first session.
	Until    pglogrepl.LSN
	UntilNow bool

	// Replays is the record of replays, for which the anchor stands still; needed with
	// Postgres.ReplayRetain. ReplayFirst is replayed before the live stream goes on; nil: nothing.
	Replays     *checkpoint.ReplayFile
	ReplayFirst *ReplayConfig

	// Backfill publishes what the table holds before the first start; nil: no row from before the
	// slot. It is idempotent, not transactional.
	Backfill *sink.Producer

	// DrainTimeout bounds how long a stop waits for what is in flight; 0: as long as it takes.
	DrainTimeout time.Duration

	Log     zerolog.Logger
	Metrics prometheus.Registerer // nil: not registered
}

// Relay carries one outbox to Kafka.
type Relay struct {
	cfg     Config
	log     zerolog.Logger
	track   *tracker
	state   state
	started time.Time
	metrics metrics

	until   pglogrepl.LSN // cfg.Until, or the marker's end once it is emitted
	reached bool          // everything up to until is delivered and confirmed
	known   bool          // track holds a position: an earlier session's, or a saved one

	replayed bool // ReplayFirst is done
	filled   bool // Backfill is done
	anchor   anchor

	outage outage   // of the session with Postgres
	warned []string // what was said of the catalog already

	kafkaSeen    bool     // the brokers have answered; the probe goroutine's, like the next one
	kafkaRefused patience // they refuse our credentials
}

// What a stop that was asked for can leave undone.
var (
	// ErrDrainTimeout is returned when events were left in flight.
	ErrDrainTimeout = errors.New("relay: events were still unacknowledged when the drain timeout ended; they will be published again at the next start")

	// ErrUnsaved is returned when the last position could not be saved: the session with
	// Postgres was lost, or the checkpoint could not be written.
	ErrUnsaved = errors.New("relay: stopped before the last position could be saved; what came after the saved one will be published again at the next start")

	// ErrBeforeGoal is returned when the until-position was not reached.
	ErrBeforeGoal = errors.New("relay: stopped before everything up to --until was delivered and confirmed; run it again")
)

// New returns a relay; [Relay.Run] does the work.
func New(cfg Config) *Relay {
	r := &Relay{cfg: cfg, log: cfg.Log, track: newTracker(), started: time.Now().UTC(), until: cfg.Until}
	if r.cfg.IdleEvery == 0 {
		r.cfg.IdleEvery = idleEvery
	}
	if cfg.Metrics == nil {
		cfg.Metrics = prometheus.NewRegistry()
	}
	r.register(cfg.Metrics)
	if cfg.Postgres.ReplayRetain > 0 {
		r.anchor.register(cfg.Metrics)
	}
	return r
}

// Run relays until ctx ends, the until-position is reached (both nil), or an error
// that waiting cannot mend. It outlives every other fault of either side.
func (r *Relay) Run(ctx context.Context) error {
	var (
		delay   backoff
		refused patience // of our credentials, by the server
	)
	for {
		began, before := time.Now(), r.track.count()
		err := r.session(ctx)
		r.state.lost(err)
		switch {
		case err == nil && ctx.Err() == nil, fatal(err):
			return r.refusal(ctx, err)
		case ctx.Err() != nil:
			return r.stopped()
		case refused.ended(errors.As(err, new(*replication.AuthError))):
			return err
		}
		if r.lived(began, before) {
			delay = backoff{}
		}
		r.outage.begin(r.log, err).Msg("not streaming; trying again")
		if errors.Is(err, replication.ErrSlotInUse) {
			// Another relay may own the stream now: nothing of ours must land behind
			// its back. What this process saw acknowledged stays true all the same.
			r.cfg.Producer.Reset()
		}
		select {
		case <-time.After(delay.next()):
		case <-ctx.Done():
			return r.stopped()
		}
	}
}

// lived tells a session that did something from a knock at the door.
func (r *Relay) lived(began time.Time, batches uint64) bool {
	return time.Since(began) > longestBackoff || r.track.count() > batches
}

// stopped says what a stop leaves undone.
func (r *Relay) stopped() error {
	delivered, saved := r.track.positions()
	switch {
	case delivered.Compare(saved) > 0:
		return ErrUnsaved
	case (r.cfg.UntilNow || r.cfg.Until != 0) && !r.reached:
		return ErrBeforeGoal
	}
	return nil
}

// outage has a fault logged once when it begins and once when it is over. Reasons
// change while a server restarts; only one that is new after a while is told too.
type outage struct {
	since, told time.Time
	text        string
}

const newReasonAfter = 30 * time.Second

// begin returns where to log err.
func (o *outage) begin(log zerolog.Logger, err error) *zerolog.Event {
	now := time.Now()
	if o.since.IsZero() {
		o.since = now
	}
	if text := err.Error(); text != o.text && (o.told.IsZero() || now.Sub(o.told) > newReasonAfter) {
		o.text, o.told = text, now
		return log.Warn().Err(err)
	}
	return log.Debug().Err(err)
}

// length adds how long the outage was, if there was one, to the line that tells of
// the recovery.
func (o *outage) length(line *zerolog.Event) *zerolog.Event {
	if o.since.IsZero() {
		return line
	}
	return line.Int64("outage_ms", time.Since(o.since).Milliseconds())
}

// over ends the outage and returns where to tell so; nil, which logs nothing, where
// there was none.
func (o *outage) over(log zerolog.Logger) *zerolog.Event {
	if o.since.IsZero() {
		return nil
	}
	line := o.length(log.Info())
	*o = outage{}
	return line
}

const longestBackoff = 5 * time.Second

// backoff is bounded and jittered: 0.1 s, doubling, at most longestBackoff.
type backoff struct{ n int }

func (b *backoff) next() time.Duration {
	d := min(100*time.Millisecond<<min(b.n, 10), longestBackoff)
	b.n++
	return d/2 + rand.N(d/2)
}

// position is the newest position that is known: the saved one, or one that this
// process saw acknowledged when the session before was lost already; that is saved now. It is asked for
// only while the slot is ours.
func (r *Relay) position(ctx context.Context, s *replication.Session) (checkpoint.Position, error) {
	fresh := checkpoint.Position{
		SystemID: s.Server.SystemID, Timeline: s.Server.Timeline,
		Slot: r.cfg.Postgres.Slot, Publication: r.cfg.Postgres.Publication,
		Safe: s.Slot.Confirmed, Trusted: s.Slot.Confirmed,
	}
	pos, err := fresh, checkpoint.ErrNone
	if r.cfg.Store != nil {
		r.cfg.Store.For(fresh.SystemID, fresh.Slot)
		// In this order: what is loaded before others are shut out may not be the last word.
		if err = r.cfg.Store.Own(ctx); err != nil {
			return pos, err
		}
		pos, err = r.cfg.Store.Load(ctx)
		if r.cfg.From != nil {
			pos, err = r.takeOver(ctx, fresh.SystemID, pos, err)
		}
		err = damaged(err, &s.Ground)
	}
	if err != nil && !errors.Is(err, checkpoint.ErrNone) {
		return pos, err
	}
	saved := err == nil
	delivered, _ := r.track.positions()
	// Where nothing is saved, another relay may have confirmed more than is known here; but
	// with a store it would have saved that first.
	overtaken := r.cfg.Store == nil && delivered.SystemID == fresh.SystemID && delivered.Safe < fresh.Safe
	switch {
	case r.known && saved && delivered.Compare(pos) > 0, r.known && !saved && !overtaken:
		pos, saved = delivered, r.cfg.Store == nil
	case !saved:
		r.log.Info().Stringer("confirmed_lsn", fresh.Safe).Msg("no saved position: the slot's own is trusted")
		return fresh, nil
	}
	if err := continues(ctx, r.cfg.Postgres, pos, &s.Ground); err != nil || saved {
		return pos, err
	}
	return pos, r.cfg.Store.Save(ctx, pos)
}
