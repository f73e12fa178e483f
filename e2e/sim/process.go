package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/e2e/sim/simnet"
	"github.com/walrelay/walrelay/relay"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

// process is one life of the relay: what `walrelay run` builds, with its dials and its
// checkpoint in our hands.
type process struct {
	w      *world
	name   string
	relay  *relay.Relay
	cancel context.CancelFunc
	ended  chan struct{} // Run has returned, and nothing of it is left
	err    error         // what Run returned; after ended

	again time.Duration // the main goroutine's: after a stop, another one starts so much later; -1: none
	holds bool          // the slot, when it was asked to stop

	mu      sync.Mutex
	dead    bool // killed: nothing that it does has an effect any more
	stopped bool // asked to stop
}

var errDead = errors.New("sim: this process is dead")

// start begins a life.
func (w *world) start() {
	w.lives++
	p := &process{w: w, name: fmt.Sprintf("relay-%d", w.lives), ended: make(chan struct{}), again: -1}
	w.live = append(w.live, p)
	log := zerolog.New(p).Level(zerolog.DebugLevel)
	table := replication.Table{Schema: schema, Name: table}
	decoder, err := decode.New(decode.Config{Schema: schema, Table: table.Name})
	if err != nil {
		panic(err)
	}
	client, err := sink.NewClient(sink.ClientConfig{Brokers: w.kafka.Addrs(), Dial: p.dial, Log: log})
	if err != nil {
		panic(err)
	}
	policy := sink.PoisonStop
	if w.plan.DeadLetters {
		policy = sink.PoisonDeadLetter
	}
	producer, err := sink.NewProducer(sink.Config{
		Client: client, Compression: w.plan.Compression, BatchBytes: w.plan.BatchBytes, Poison: policy,
		Allowed:      decoder.Allows,
		CreateTopics: &sink.CreateTopics{Partitions: int32(w.plan.Partitions), Replication: int16(w.plan.Replication)},
		Log:          log,
	})
	if err != nil {
		panic(err)
	}
	cfg := relay.Config{
		Postgres: replication.Config{
			URL:   "host=" + pgHost + " port=5432 user=relay dbname=app sslmode=disable",
			Table: table, Publication: publication, Slot: slot, Dial: p.dial, Log: log,
		},
		Decoder: decoder, Producer: producer, BufferBytes: w.plan.BufferBytes, DrainTimeout: drainTimeout, Log: log,
	}
	if !w.plan.NoCheckpoint {
		cfg.Store = p
	}
	p.relay = relay.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	w.note("%s starts", p.name)
	go func() {
		p.err = p.relay.Run(ctx)
		client.Close()
		close(p.ended)
		if !p.isDead() {
			w.note("%s ends: %v", p.name, p.err)
			w.truth.over(p.name, p.err == nil && p.holds)
			w.exits <- p
		}
	}()
}

const drainTimeout = 30 * time.Second

// dial is both of the relay's dials.
func (p *process) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	if p.isDead() {
		return nil, errDead
	}
	c, err := p.w.net.Dial(ctx, p.name, addr)
	if err != nil {
		return nil, err
	}
	if p.isDead() {
		c.Close()
		return nil, errDead
	}
	return c, nil
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// kill is kill -9, or with host the loss of the machine. Bytes that were written may
// still arrive.
func (p *process) kill(host bool) {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.w.note("%s is killed, host lost: %t", p.name, host)
	p.w.truth.over(p.name, false)
	for _, l := range p.w.net.Links(func(l *simnet.Link) bool { return l.From == p.name }) {
		l.Orphan(host)
	}
	p.cancel()
}

// stop asks for a stop in good order; again is when another one starts after it, -1: never.
func (p *process) stop(again time.Duration) {
	p.holds = p.w.pg.Holder() == p.name
	p.w.note("%s is asked to stop, holds the slot: %t", p.name, p.holds)
	p.again = again
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	p.cancel()
	p.w.later(2*drainTimeout, func() {
		select {
		case <-p.ended:
		default:
			if !p.isDead() {
				p.w.fail("G8", "%s does not stop", p.name)
			}
		}
	})
}

// Write takes the log.
func (p *process) Write(line []byte) (int, error) {
	if !p.isDead() {
		p.w.note("%s: %s", p.name, string(line[:len(line)-1]))
	}
	return len(line), nil
}

// For and Own have nothing to do: there is one slot, and the file is shared.
func (p *process) For(string, string)        {}
func (p *process) Own(context.Context) error { return nil }

// Load is the checkpoint as this process sees it.
func (p *process) Load(ctx context.Context) (checkpoint.Position, error) {
	pos, err := checkpoint.OpenFile(p.w.path).Load(ctx)
	if err == nil {
		p.w.truth.loaded(p.name, &pos)
	} else {
		p.w.truth.loaded(p.name, nil)
	}
	return pos, err
}

// Save saves for real, some time after it was asked to, and returns some time later:
// a kill can come on either side.
func (p *process) Save(ctx context.Context, pos checkpoint.Position) error {
	p.w.truth.saving(p.name, pos)
	p.pause()
	if err := p.save(ctx, pos); err != nil {
		return err
	}
	p.w.note("%s has saved %s, last %s, %d rows of %s", p.name, pos.Safe, pos.Last.Commit, pos.Open.Rows, pos.Open.Commit)
	p.pause()
	return nil
}

func (p *process) save(ctx context.Context, pos checkpoint.Position) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.dead:
		return errDead
	case p.w.diskFull():
		return errors.New("sim: no space left on device")
	}
	err := checkpoint.OpenFile(p.w.path).Save(ctx, pos)
	if err == nil {
		p.w.truth.isSaved(p.name, pos)
	}
	return err
}

// Replace is for operators; there is none here.
func (p *process) Replace(context.Context, checkpoint.Position) error { return errDead }

// pause is how long a disk takes; like one, it can't be interrupted.
func (p *process) pause() { time.Sleep(p.w.saveDelay()) }
