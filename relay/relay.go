// Package relay is the pipe from Postgres to Kafka: read, batch, produce, save
// the position, confirm.
//
// Per session with Postgres four goroutines run, each with one owner, which is
// [Relay.session]:
//
//	read     owns the connection: stream → decode → the open batch → hand over
//	deliver  owns the batch in flight: sink → acknowledged position
//	save     position → checkpoint → the LSN to confirm
//	watch    catalog checks, idle positions, lags
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
	"fmt"
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

// Store keeps the position. Load answers [checkpoint.ErrNone] where none was saved yet.
type Store interface {
	Load(context.Context) (checkpoint.Position, error)
	Save(context.Context, checkpoint.Position) error
}

// Config says what is carried from where to where.
type Config struct {
	Postgres replication.Config
	Decoder  *decode.Decoder
	Producer *sink.Producer
	Store    Store // nil: the slot's own position is the only one

	// BufferBytes bounds the memory of all events held, but for a row that is
	// larger by itself.
	BufferBytes int

	// Until ends the run when all that was committed below it is delivered and
	// confirmed; UntilNow sets it to the WAL's end as of the first session.
	Until    pglogrepl.LSN
	UntilNow bool

	// DrainTimeout bounds how long a stop waits for what is in flight; 0: as long as it takes.
	DrainTimeout time.Duration

	Log     zerolog.Logger
	Metrics prometheus.Registerer // nil: not registered
}

// Relay carries one outbox to Kafka.
type Relay struct {
	cfg      Config
	log      zerolog.Logger
	track    *tracker
	until    pglogrepl.LSN // cfg.Until, or the marker's end once it is emitted
	known    bool          // track holds a position: an earlier session's, or a saved one
	verified pglogrepl.LSN // what was delivered when the catalog was last seen to publish the outbox
	state    state
	metrics  metrics
}

// ErrDrainTimeout is returned when a stop had to leave events in flight. They are
// not confirmed and will be published again.
var ErrDrainTimeout = errors.New("relay: events were still unacknowledged when the drain timeout ended; they will be published again at the next start")

// New returns a relay; [Relay.Run] does the work.
func New(cfg Config) *Relay {
	r := &Relay{cfg: cfg, log: cfg.Log, track: newTracker(), until: cfg.Until}
	if cfg.Metrics == nil {
		cfg.Metrics = prometheus.NewRegistry()
	}
	r.register(cfg.Metrics)
	return r
}

// Run relays until ctx ends, the until-position is reached (both nil), or an error
// that waiting cannot mend. It outlives every other fault of either side.
func (r *Relay) Run(ctx context.Context) error {
	var (
		delay   backoff
		refused time.Time // since when the server refuses our credentials
		outage  outage
	)
	for {
		began := time.Now()
		err := r.session(ctx, func() {
			delay, refused = backoff{}, time.Time{}
			outage.over(r.log)
		})
		r.state.lost(err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil && !fatal(err):
			return nil
		case errors.As(err, new(*replication.AuthError)) && refused.IsZero():
			refused = began
		}
		if fatal(err) || !refused.IsZero() && time.Since(refused) > authPatience {
			return err
		}
		outage.begin(r.log, err)
		if errors.Is(err, replication.ErrSlotInUse) {
			// Another relay owns the stream now. What was delivered is its to say, and
			// a batch of ours must not land behind its back.
			r.cfg.Producer.Reset()
			r.known = false
		}
		select {
		case <-time.After(delay.next()):
		case <-ctx.Done():
			return nil
		}
	}
}

// outage logs a fault once when it begins and once when it is over.
type outage struct {
	since time.Time
	text  string
}

func (o *outage) begin(log zerolog.Logger, err error) {
	if o.since.IsZero() {
		o.since = time.Now()
	}
	if text := err.Error(); text != o.text {
		o.text = text
		log.Warn().Err(err).Msg("not streaming; trying again")
		return
	}
	log.Debug().Err(err).Msg("still not streaming")
}

func (o *outage) over(log zerolog.Logger) {
	if !o.since.IsZero() {
		log.Info().Dur("outage", time.Since(o.since)).Msg("streaming again")
	}
	*o = outage{}
}

// backoff is bounded and jittered: 0.1 s, doubling, at most 5 s.
type backoff struct{ n int }

func (b *backoff) next() time.Duration {
	d := min(100*time.Millisecond<<min(b.n, 10), 5*time.Second)
	b.n++
	return d/2 + rand.N(d/2)
}

// position is the newest position that is known: the saved one, or the one that
// this process saw acknowledged. It is asked for only while the slot is ours.
func (r *Relay) position(ctx context.Context, s *replication.Session) (checkpoint.Position, error) {
	fresh := checkpoint.Position{
		SystemID: s.Server.SystemID, Timeline: s.Server.Timeline,
		Slot: r.cfg.Postgres.Slot, Publication: r.cfg.Postgres.Publication,
		Safe: s.Slot.Confirmed,
	}
	pos, err := fresh, checkpoint.ErrNone
	if r.cfg.Store != nil {
		pos, err = r.cfg.Store.Load(ctx)
	}
	none := errors.Is(err, checkpoint.ErrNone)
	switch {
	case none && !r.known:
		r.log.Info().Stringer("confirmed_lsn", fresh.Safe).Msg("no saved position; the slot's own is trusted")
		return fresh, nil
	case none:
		pos, err = checkpoint.Position{}, nil
	case err != nil:
		return pos, err
	}
	if delivered, _ := r.track.positions(); r.known && delivered.SystemID == s.Server.SystemID && delivered.Compare(pos) > 0 {
		pos = delivered
	}
	return pos, r.continues(pos, s)
}

// continues checks that a position speaks of this server's WAL and catalog.
func (r *Relay) continues(pos checkpoint.Position, s *replication.Session) error {
	refuse := func(remedy, format string, args ...any) error {
		return &replication.ContinuityError{
			Reason: fmt.Sprintf(format, args...), From: pos.Safe, To: s.Server.WALEnd, Remedy: remedy,
		}
	}
	const startOver = "if that is intended, move the checkpoint away and start again: the slot is then trusted"
	switch {
	case pos.SystemID != s.Server.SystemID:
		return refuse(startOver, "the saved position is of another database cluster (system id %s, here %s)", pos.SystemID, s.Server.SystemID)
	case pos.Slot != r.cfg.Postgres.Slot:
		return refuse("use one checkpoint for each slot (--checkpoint)", "the saved position is of slot %q, not %q", pos.Slot, r.cfg.Postgres.Slot)
	case pos.Timeline > s.Server.Timeline:
		return refuse(startOver, "the server is on timeline %d, the saved position on the later timeline %d", s.Server.Timeline, pos.Timeline)
	}
	return nil
}
