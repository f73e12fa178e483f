package relay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/rs/zerolog"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

// ReplayConfig says which events are published again, and how.
type ReplayConfig struct {
	Postgres replication.Config
	Decoder  *decode.Decoder // its own: Run marks the events
	Producer *sink.Producer  // its own, never the live relay's; nil with List
	Store    Store           // of the live relay's position, which bounds the window; nil: the slot's own

	// Record keeps the progress. Remember has it kept when the replay is done, and the same not be done twice.
	Record   *checkpoint.ReplayFile
	Remember bool

	Asked    string        // the options that say what is replayed, as text: the same again go on with an unfinished one
	From     pglogrepl.LSN // the first commit LSN of the window
	FromTime time.Time     // or the first commit time
	To       pglogrepl.LSN // the last commit LSN; 0: all that the live relay has delivered

	Filter Filter
	Topic  string // where all events go instead; "": where they went

	// List takes the events instead of Kafka, and nothing is recorded: a dry run.
	List func([]decode.Event)

	BufferBytes  int
	Timeout      time.Duration // how long one side may be away before Run gives up; 0: for ever
	DrainTimeout time.Duration // how long a stop waits for what is in flight; 0: as long as it takes
	Log          zerolog.Logger

	live *checkpoint.Position // what Store would say
}

// Replay publishes a window of the WAL again: exactly the transactions that commit in it,
// in order, each event with the header walrelay-replay. It reads a temporary copy of the anchor, so that
// the live slot is not touched, and writes by a producer of its own.
//
// Batches, positions and what is recognised when it comes by a second time are those of the live relay;
// only that each batch is saved before the next is sent.
type Replay struct {
	cfg     ReplayConfig
	log     zerolog.Logger
	run     checkpoint.Replay // RunID "": not planned yet
	unsaved bool              // run is ahead of the record
	found   pglogrepl.LSN     // what FromTime was resolved to

	at, from, limit atomic.Uint64
	events          atomic.Uint64
}

// NewReplay returns a replay; [Replay.Run] does the work.
func NewReplay(cfg ReplayConfig) *Replay { return &Replay{cfg: cfg, log: cfg.Log} }

// ReplayProgress is how far a replay has come.
type ReplayProgress struct {
	At, From, Limit pglogrepl.LSN // read up to At of [From, Limit); all 0 before it is known
	Events          uint64        // published, by earlier attempts too
}

// Progress may be called from any goroutine.
func (p *Replay) Progress() ReplayProgress {
	return ReplayProgress{At: pglogrepl.LSN(p.at.Load()), From: pglogrepl.LSN(p.from.Load()), Limit: pglogrepl.LSN(p.limit.Load()), Events: p.events.Load()}
}

var (
	// ErrReplayUnfinished is returned when a replay ends before its window does. The same
	// command goes on with it.
	ErrReplayUnfinished = errors.New("relay: the replay is not finished; the same command goes on where it stopped, and `walrelay replay --abandon` gives it up")

	// ErrReplayRunning is returned when somebody else holds the record.
	ErrReplayRunning = errors.New("relay: the record of replays is held: another replay of this slot is running, or the relay is moving the anchor")
)

// PendingReplayError is returned where another replay than the one asked for is unfinished.
type PendingReplayError struct{ Run checkpoint.Replay }

func (e *PendingReplayError) Error() string {
	return fmt.Sprintf("relay: replay %s is unfinished (%d events published, up to %s): give its options again to go on with it (%s), or give it up by `walrelay replay --abandon`",
		e.Run.RunID, e.Run.Events, e.Run.Position.Safe, e.Run.Asked)
}

// Run replays until the window is done (nil), ctx ends, or an error. A fault of either side is
// outlived as long as Timeout allows.
func (p *Replay) Run(ctx context.Context) error {
	release, err := p.takeRecord(ctx)
	if err != nil {
		return err
	}
	defer release()
	if p.run.Done {
		p.log.Info().Str("run", p.run.RunID).Msg("replayed before; not again")
		return nil
	}
	var (
		delay  backoff
		faults outage
		stuck  time.Time // since when nothing has come of it
	)
	for {
		before := p.at.Load()
		err := outOfReach(p.session(ctx))
		switch {
		case err == nil:
			return p.finish()
		case errors.Is(err, errReopen):
			continue
		case fatal(err), errors.As(err, new(*replication.AuthError)), errors.As(err, new(*sink.AuthError)):
			return err
		case ctx.Err() != nil:
			return ErrReplayUnfinished
		case errors.Is(err, errGaveUp):
			return fmt.Errorf("%w: %w", ErrReplayUnfinished, err)
		}
		if p.at.Load() != before || stuck.IsZero() {
			stuck, delay = time.Now(), backoff{}
		} else if p.cfg.Timeout > 0 && time.Since(stuck) > p.cfg.Timeout {
			return p.gaveUp(err)
		}
		faults.begin(p.log, err).Msg("the replay is interrupted; trying again")
		select {
		case <-time.After(delay.next()):
		case <-ctx.Done():
			return ErrReplayUnfinished
		}
	}
}

// outOfReach makes of what breaks the continuity of a live stream what it is for a replay:
// nothing was skipped, but the window can't be shown again.
func outOfReach(err error) error {
	var gap *replication.ContinuityError
	if errors.As(err, &gap) {
		return &ReachError{Reason: gap.Reason, Remedy: gap.Remedy}
	}
	return err
}

// gaveUp is what Run returns when one side was away for too long.
func (p *Replay) gaveUp(err error) error {
	err = fmt.Errorf("relay: replay: gave up after --timeout %s: %w", p.cfg.Timeout, err)
	if p.run.RunID == "" {
		return err // nothing was begun
	}
	return fmt.Errorf("%w: %w", ErrReplayUnfinished, err)
}

// takeRecord holds the record, and reads what is on it.
func (p *Replay) takeRecord(ctx context.Context) (release func(), err error) {
	if p.cfg.List != nil {
		return func() {}, nil
	}
	waiting, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	release, err = p.cfg.Record.Lock(waiting)
	if err != nil {
		if waiting.Err() != nil {
			err = fmt.Errorf("%w (%w)", ErrReplayRunning, err)
		}
		return nil, err
	}
	on, err := p.cfg.Record.Load()
	switch {
	case errors.Is(err, checkpoint.ErrNone), err == nil && on.Done && on.Asked != p.cfg.Asked, err == nil && on.Done && !p.cfg.Remember:
		return release, nil
	case err == nil && on.Asked != p.cfg.Asked:
		err = &PendingReplayError{on}
	}
	if err != nil {
		release()
		return nil, err
	}
	p.resumed(on)
	return release, nil
}

// recordPatience is for the live relay, which holds the record while it moves the anchor.
const recordPatience = 10 * time.Second

// begin puts a new replay on record, before any of it is published: from now on the
// anchor stands still.
func (p *Replay) begin(start checkpoint.Position, limit pglogrepl.LSN) error {
	var b [2]byte
	rand.Read(b[:])
	p.resumed(checkpoint.Replay{
		RunID: time.Now().UTC().Format("20060102T150405Z-") + hex.EncodeToString(b[:]),
		Asked: p.cfg.Asked, Limit: limit, Position: start,
	})
	p.unsaved = true
	return p.save()
}

// resumed takes over what is on record.
func (p *Replay) resumed(on checkpoint.Replay) {
	p.run = on
	p.from.Store(uint64(on.Position.Trusted))
	p.at.Store(uint64(on.Position.Safe))
	p.limit.Store(uint64(on.Limit))
	p.events.Store(on.Events)
}

// save writes the progress down; it is due before the next batch is sent.
func (p *Replay) save() error {
	if !p.unsaved || p.cfg.List != nil {
		return nil
	}
	err := p.cfg.Record.Save(p.run)
	p.unsaved = err != nil
	return err
}

func (p *Replay) finish() error {
	p.at.Store(p.limit.Load())
	p.told().Str("run", p.run.RunID).Uint64("events", p.run.Events).Stringer("from", p.run.Position.Trusted).Stringer("limit", p.run.Limit).Msg("replayed")
	switch {
	case p.cfg.List != nil:
		return nil
	case p.cfg.Remember:
		p.run.Done, p.unsaved = true, true
		return p.save()
	}
	return p.cfg.Record.Remove()
}

// told is where to log what happens; a dry run tells it on stdout.
func (p *Replay) told() *zerolog.Event {
	if p.cfg.List != nil {
		return p.log.Debug()
	}
	return p.log.Info()
}

// Filter chooses events. An empty list chooses all; an event has to be chosen by each.
type Filter struct {
	Keys       []string
	EventTypes []string
	Topics     []string // globs
}
