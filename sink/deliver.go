package sink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	retryMin = 10 * time.Millisecond
	retryMax = time.Second

	// tick is how often a delivery that waits looks around: for requests that stay
	// without an answer, and for what Healthy says.
	tick = time.Second
)

// delivery is one Deliver at work.
//
// One goroutine, the caller's, owns all of it. What takes time runs beside it: one
// request to each leader, one look at topics, one request for a producer id. Each of them ends by handing over a
// func that the owner runs; when Deliver returns, all have.
//
// Tried and rejected: a goroutine per partition (they contend for the requests, which have to be
// shared by the partitions of a leader), and rounds that wait for the slowest leader.
type delivery struct {
	p   *Producer
	pr  *Prepared
	ctx context.Context

	begun    time.Time
	landings chan func()
	aloft    int // goroutines that have not landed
	flights  map[int32]*flight

	looking   bool
	lookTries int
	lookAt    time.Time // no look before
	watchAt   time.Time // silent leaders are not looked after before
	asking    bool
	askTries  int
	askAt     time.Time // no request for a producer id before
	join      joining

	err     error // ends the delivery when all in flight has landed
	leaving bool  // what is still in flight is given up by ourselves
}

// Deliver sends what is prepared and returns like Write. It uses pr up, also on an error.
func (p *Producer) Deliver(ctx context.Context, pr *Prepared) (n int, err error) {
	d := &delivery{p: p, pr: pr, ctx: ctx, begun: time.Now(), landings: make(chan func()), flights: make(map[int32]*flight)}
	err = d.run()
	d.leave()
	d.report()
	n = pr.acked()
	if err == nil && pr.poison != nil {
		err = pr.poison
	}
	p.recycle(pr)
	return n, err
}

// run is the main loop: send what can be sent, then wait for what comes first.
func (d *delivery) run() error {
	ctx, cancel := context.WithCancel(d.ctx)
	defer func() {
		d.leaving = true
		cancel()
		for d.aloft > 0 {
			d.land(<-d.landings)
		}
	}()
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for {
		if d.pr.finished() && d.err == nil && d.pr.doubt != nil {
			// Everything before the event in doubt is delivered: now see.
			d.pr.doubt.wait(d.pr.end)
		}
		if len(d.flights) == 0 && (d.err != nil || d.pr.finished()) {
			return d.err
		}
		if d.ctx.Err() != nil {
			return fmt.Errorf("sink: delivery interrupted: %w", context.Cause(d.ctx))
		}
		wake := time.Now().Add(tick)
		if d.err == nil {
			wake = d.dispatch(ctx, time.Now())
		}
		if d.err != nil && d.aloft == 0 {
			continue
		}
		d.report()
		timer.Reset(time.Until(wake))
		select {
		case f := <-d.landings:
			d.land(f)
		case <-timer.C:
		case <-d.ctx.Done():
		}
	}
}

// start runs work beside the owner; work returns what the owner has to do about it.
func (d *delivery) start(work func() func()) {
	d.aloft++
	go func() { d.landings <- work() }()
}

func (d *delivery) land(f func()) {
	d.aloft--
	f()
}

// dispatch sends the next batch of every partition that is ready, one request to each leader
// that has none in flight, and asks for what is missing. It returns when to come back at the latest.
func (d *delivery) dispatch(ctx context.Context, now time.Time) (wake time.Time) {
	wake = now.Add(tick)
	var want []*share
	needID := d.p.id == noIdentity
	var loads []*flight
	for _, s := range d.pr.shares {
		if s.shrunk {
			d.reroute(s)
		}
	}
	d.p.mu.Lock()
	for _, s := range d.pr.shares {
		stale := s.waiting
		if stale && s.target.since.IsZero() {
			s.target.since = now
		}
		for _, r := range s.runs {
			if len(r.queue) == 0 || r.flight != nil || s.shrunk || d.pr.held(r.queue[0]) {
				continue
			}
			if r.ledger.since.IsZero() {
				r.ledger.since = now
			}
			leader := s.target.leader(r.partition)
			switch {
			case r.stale || leader < 0:
				r.stale = true
				stale = true
			case r.notBefore.After(now):
				wake = earlier(wake, r.notBefore)
			case !d.identify(r):
				needID = true
			case !d.joined(r):
			default:
				loads = d.load(loads, leader, r)
			}
		}
		if stale {
			want = append(want, s)
		}
	}
	d.p.mu.Unlock()
	for _, f := range loads {
		d.launch(ctx, f)
	}
	if needID && !d.asking {
		if d.p.txn != nil {
			d.err = errSpent // only Fence gives another identity
		} else if d.askAt.After(now) {
			wake = earlier(wake, d.askAt)
		} else {
			d.ask(ctx)
		}
	}
	return earlier(earlier(wake, d.joinWanted(ctx, now)), d.watch(ctx, now, want))
}

// identify gives the partition an identity if it has none. It reports false where a new one has to be asked for.
func (d *delivery) identify(r *run) bool {
	l := r.ledger
	if l.id != noIdentity {
		return true
	}
	if d.p.id == noIdentity || d.p.id == l.spent {
		return false
	}
	l.id, l.next = d.p.id, 0
	return true
}

// ask gets a producer id.
func (d *delivery) ask(ctx context.Context) {
	d.asking = true
	d.start(func() func() {
		id, number, err := d.p.newIdentity(ctx)
		return func() {
			d.asking = false
			c := lookup(number)
			switch {
			case err == nil && c.action == done:
				d.p.id, d.askTries, d.askAt = id, 0, time.Time{}
				return
			case err == nil && (c.action == fatal || c.action == endSession):
				d.err = &CodeError{Code: number, Doing: "get a producer id"}
				return
			}
			d.askAt = time.Now().Add(backoff(d.askTries))
			d.askTries++
			if err != nil {
				d.unnamed(d.linkFailed("producer id", err))
			} else {
				d.unnamed(d.p.codeTrouble(c, "", "producer id"))
			}
		}
	})
}

// linkFailed is for what could not be asked for.
func (d *delivery) linkFailed(what string, err error) *trouble {
	if errors.Is(err, errClientClosed) {
		d.err = err
	}
	return linkTrouble(what, err)
}

// leave makes sure that no sequence is used twice: what may have been appended and
// is given up here leaves its partition without an identity.
func (d *delivery) leave() {
	for _, s := range d.pr.shares {
		for _, r := range s.runs {
			if len(r.queue) > 0 && r.queue[0].doubtful {
				r.ledger.spend()
			}
		}
	}
}

// spend takes the partition's identity away; it gets another one, and counts from 0.
func (l *ledger) spend() {
	if l.id != noIdentity {
		l.spent, l.id = l.id, noIdentity
	}
}

// backoff is how long to wait after so many failures before: 5–10 ms, doubled each
// time up to a second, half of it at random.
func backoff(failures int) time.Duration {
	d := min(retryMin<<min(failures, 20), retryMax)
	return d/2 + rand.N(d/2+1)
}

func earlier(a, b time.Time) time.Time {
	if !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
