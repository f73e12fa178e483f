package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/e2e/sim/simkafka"
	"github.com/walrelay/walrelay/e2e/sim/simnet"
)

// Fault is something that goes wrong at a moment of the run.
type Fault struct {
	At   time.Duration
	Kind string // a name in faults
	A, B int    // which one, or how many, if it matters
	D, E time.Duration
}

func (f Fault) String() string {
	return fmt.Sprintf("%9.4f  %s (%d, %d, %s, %s)", f.At.Seconds(), f.Kind, f.A, f.B, f.D, f.E)
}

// fault is a kind of fault: how often a plan has it, and what it does.
type fault struct {
	name   string
	weight int
	do     func(w *world, f Fault)
}

// faults are those that the relay has to outlive without help.
var faults = []fault{
	{"kill", 6, func(w *world, f Fault) { w.kill(f, false) }},
	{"lose host", 1, func(w *world, f Fault) { w.kill(f, true) }},
	{"restart", 2, func(w *world, f Fault) { w.restart(f) }},
	{"freeze", 2, (*world).freeze},
	{"disk full", 1, func(w *world, f Fault) { w.fillDisk(2 * f.D) }},

	{"overtaken", 1, (*world).overtake},

	{"cut", 6, func(w *world, f Fault) { w.onLink(f, (*simnet.Link).Reset) }},
	{"cut late", 3, func(w *world, f Fault) { w.onLink(f, (*simnet.Link).ResetAfterDelivery) }},
	{"lose", 3, func(w *world, f Fault) {
		w.onLink(f, func(l *simnet.Link) {
			l.Lose(pick(stream(uint64(f.B), 5), simnet.ToServer, simnet.ToClient, simnet.Both))
		})
	}},
	{"stall", 3, func(w *world, f Fault) {
		w.onLink(f, func(l *simnet.Link) {
			l.Stall(pick(stream(uint64(f.B), 5), simnet.ToServer, simnet.ToClient, simnet.Both), f.D)
		})
	}},
	{"cut next", 2, func(w *world, f Fault) { w.onNext(f, (*simnet.Link).Reset) }},
	{"lose next", 2, func(w *world, f Fault) { w.onNext(f, func(l *simnet.Link) { l.Lose(direction(f)) }) }},
	{"postgres unreachable", 1, func(w *world, f Fault) { w.unreachable(f, w.pgAddr()) }},
	{"kafka unreachable", 1, func(w *world, f Fault) { w.unreachable(f, w.kafka.Addrs()...) }},

	{"lose answer", 5, func(w *world, f Fault) { w.kafka.Befall(simkafka.Mishap{Kind: simkafka.LoseAnswer}, 1+f.A%3) }},
	{"lose request", 2, func(w *world, f Fault) { w.kafka.Befall(simkafka.Mishap{Kind: simkafka.LoseRequest}, 1+f.A%3) }},
	{"refuse", 3, func(w *world, f Fault) {
		w.kafka.Befall(simkafka.Mishap{Kind: simkafka.Refuse, Code: refusals[f.B%len(refusals)].Code}, 1+f.A%5)
	}},
	{"fail after append", 3, func(w *world, f Fault) {
		w.kafka.Befall(simkafka.Mishap{Kind: simkafka.FailAfterAppend, Code: afterAppend[f.B%len(afterAppend)].Code}, 1+f.A%3)
	}},
	{"late", 2, func(w *world, f Fault) { w.kafka.Befall(simkafka.Mishap{Kind: simkafka.Late, Delay: f.D}, 1+f.A%2) }},
	{"throttle", 1, func(w *world, f Fault) { w.kafka.Befall(simkafka.Mishap{Kind: simkafka.Throttle, Delay: f.E}, 1+f.A%3) }},
	{"broker down", 3, func(w *world, f Fault) { w.kafka.Crash(f.A%w.plan.Brokers, f.D) }},
	{"all brokers down", 1, func(w *world, f Fault) {
		for i := range w.plan.Brokers {
			w.kafka.Crash(i, f.D+time.Duration(i)*f.E)
		}
	}},
	{"broker mute", 2, func(w *world, f Fault) { w.kafka.Mute(f.A%w.plan.Brokers, f.D) }},
	{"out of sync", 2, func(w *world, f Fault) { w.kafka.Shrink(f.A%w.plan.Brokers, f.D) }},
	{"min isr lost", 1, func(w *world, f Fault) {
		for i := range w.plan.Brokers {
			w.kafka.Shrink((f.A+i)%w.plan.Brokers, f.D)
		}
	}},
	{"leaders move", 3, func(w *world, f Fault) { w.kafka.MoveLeaders() }},

	{"postgres crashes", 4, func(w *world, f Fault) { w.pg.Crash(f.D, f.E) }},
	{"fast shutdown", 3, func(w *world, f Fault) { w.pg.FastShutdown(f.D, f.E, f.A%3 == 0) }},
	{"walsender terminated", 3, func(w *world, f Fault) { w.pg.TerminateWalsender() }},
	{"side terminated", 1, func(w *world, f Fault) { w.pg.TerminateSide() }},
	{"slot occupied", 2, func(w *world, f Fault) { w.pg.Occupy(f.D) }},
	{"walsender busy", 1, func(w *world, f Fault) { w.pg.Busy(f.D) }},

	{"topic deleted", 1, func(w *world, f Fault) { w.kafka.Delete(f.A, f.E) }},
	{"max bytes", 1, (*world).maxBytes},
	{"producer ids expire", 1, (*world).expire},
}

// disasters are faults after which the relay may have to say that continuity can't be
// proven. A plan has one at most.
var disasters = []fault{
	{"failover", 3, (*world).failover},
	{"copy restored", 2, (*world).restore},
	{"publication left", 2, (*world).leave},
	{"slot advanced", 2, (*world).advance},
	{"checkpoint torn", 1, (*world).tear},
	{"poison", 2, (*world).poison},
}

var refusals = []*kerr.Error{
	kerr.LeaderNotAvailable, kerr.NotLeaderForPartition, kerr.RequestTimedOut, kerr.UnknownTopicOrPartition, kerr.NotEnoughReplicas,
	kerr.TopicAuthorizationFailed, kerr.KafkaStorageError, kerr.UnknownServerError, kerr.CorruptMessage, kerr.FencedLeaderEpoch,
}

// afterAppend are answers that leave open whether the records are there.
var afterAppend = []*kerr.Error{
	kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, kerr.UnknownServerError, kerr.NetworkException, kerr.NotLeaderForPartition,
}

// faultNamed finds a kind.
func faultNamed(name string) fault {
	for _, f := range slices.Concat(faults, disasters) {
		if f.name == name {
			return f
		}
	}
	panic("no fault " + name)
}

func newFaults(r *rand.Rand, k Knobs) []Fault {
	bag := bagOf(faults)
	var all []Fault
	n := pick(r, 0, 1, 2, 4, 8, 15)
	favourite := pick(r, bag...)
	for range n {
		f := Fault{At: time.Duration(r.Int64N(int64(k.For))), Kind: pick(r, bag...), A: r.IntN(64), B: r.IntN(64),
			D: between(r, time.Millisecond, 30*time.Second), E: between(r, time.Millisecond, 5*time.Second)}
		if r.IntN(4) == 0 {
			f.Kind = favourite // the same again and again
		}
		if r.IntN(4) == 0 && len(all) > 0 {
			f.At = all[len(all)-1].At + between(r, time.Microsecond, time.Second) // in the middle of another's recovery
		}
		all = append(all, f)
	}
	if r.IntN(6) == 0 {
		all = append(all, Fault{At: time.Duration(r.Int64N(int64(k.For))), Kind: pick(r, bagOf(disasters)...), A: r.IntN(64), B: r.IntN(64),
			D: between(r, time.Millisecond, 30*time.Second), E: between(r, time.Millisecond, 10*time.Second)})
	}
	slices.SortStableFunc(all, func(a, b Fault) int { return int(a.At - b.At) })
	return all
}

// bagOf has every name as often as its weight says.
func bagOf(faults []fault) (bag []string) {
	for _, f := range faults {
		for range f.weight {
			bag = append(bag, f.name)
		}
	}
	return bag
}

func (w *world) pgAddr() string { return pgHost + ":5432" }

// onLink picks a living link, with a preference for the stream.
func (w *world) onLink(f Fault, do func(*simnet.Link)) {
	label := []string{"stream", "stream", "kafka", "kafka", "side", ""}[f.A%6]
	links := w.net.Links(func(l *simnet.Link) bool { return label == "" || l.Label() == label })
	if len(links) > 0 {
		l := links[f.B%len(links)]
		w.note("link %d, %s to %s", l.ID, l.From, l.To)
		do(l)
	}
}

func direction(f Fault) simnet.Direction {
	return []simnet.Direction{simnet.ToServer, simnet.ToClient, simnet.Both}[f.B%3]
}

// onNext has the link that is there now cut, and another fault await the one that comes in
// its place.
func (w *world) onNext(f Fault, do func(*simnet.Link)) {
	addr := w.pgAddr()
	if f.A%4 == 0 {
		addr = w.kafka.Addrs()[f.B%w.plan.Brokers]
	}
	for range 1 + f.A%3 {
		w.net.Doom(addr, 3*w.plan.Latency*time.Duration(f.B%16), do)
	}
	for _, l := range w.net.Links(func(l *simnet.Link) bool { return l.To == addr }) {
		l.Reset()
	}
}

// overtake saves the highest position that can be proven, as another relay would that has
// taken over and is gone again.
func (w *world) overtake(Fault) {
	file := checkpoint.OpenFile(w.path)
	p, err := file.Load(context.Background())
	if err != nil || w.truth.mayRefuse(0) != "" {
		return
	}
	if p = w.truth.provable(p); file.Save(context.Background(), p) == nil {
		w.note("somebody saves %s, %d rows of %s", p.Safe, p.Open.Rows, p.Open.Commit)
		w.truth.isSaved("somebody", p)
	}
}

// unreachable has nobody answer at these addresses; the links that there are fall
// silent for as long.
func (w *world) unreachable(f Fault, addrs ...string) {
	for _, addr := range addrs {
		for _, l := range w.net.Links(func(l *simnet.Link) bool { return l.To == addr }) {
			l.Stall(simnet.Both, f.D)
		}
		w.net.SetReach(addr, simnet.Silent)
		w.later(f.D, func() { w.net.SetReach(addr, simnet.Up) })
	}
}

// kill ends a relay without a warning, and starts another one later.
func (w *world) kill(f Fault, host bool) {
	if len(w.live) == 0 {
		return
	}
	p := w.live[f.A%len(w.live)]
	p.kill(host)
	w.bury(p)
	w.later(f.E, w.start)
}

// restart stops a relay in good order, as far as other faults allow.
func (w *world) restart(f Fault) {
	if len(w.live) > 0 {
		w.live[f.A%len(w.live)].stop(f.E)
	}
}

func (w *world) fillDisk(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noSpace = time.Now().Add(d)
}

// freeze is as near to SIGSTOP as links can come: nothing reaches a relay, and nothing
// leaves it, for a while.
func (w *world) freeze(f Fault) {
	if len(w.live) == 0 {
		return
	}
	p := w.live[f.A%len(w.live)]
	w.note("%s is cut off for %s", p.name, f.D)
	for _, l := range w.net.Links(func(l *simnet.Link) bool { return l.From == p.name }) {
		l.Stall(simnet.Both, f.D)
	}
}

// failover promotes the standby, which may be behind.
func (w *world) failover(f Fault) {
	if f.B%2 == 0 {
		w.pg.CutStandby()
	}
	w.later(f.E/4, func() {
		w.truth.diverge()
		w.switched = w.pg.Failover(f.D/4, f.E)
	})
}

// restore takes a copy of the cluster and puts it in its place later. Its WAL may have
// grown past the saved position before the relay sees it.
func (w *world) restore(f Fault) {
	if !w.pg.Running() {
		return
	}
	c := w.pg.Copy()
	w.note("a copy of the cluster is taken at %s", c.End)
	w.later(f.E, func() {
		w.truth.diverge()
		w.pg.Restore(c, time.Millisecond, time.Millisecond)
		w.switched = c.End
		if f.A%4 > 0 {
			w.behindItsBack(f, func() {})
		}
	})
}

// behindItsBack lets transactions go on while Postgres can't be reached, and does something
// in the middle.
func (w *world) behindItsBack(f Fault, do func()) {
	w.unreachable(Fault{D: 2 * time.Second}, w.pgAddr())
	for i := range 40 {
		w.later(time.Duration(50+i*20)*time.Millisecond, func() {
			w.do(Op{Rows: 1 + i%20, Other: f.B, Seed: w.plan.Seed ^ uint64(0xbac0+i), Large: 200})
		})
	}
	w.later(900*time.Millisecond, do)
}

// leave takes the table out of the publication, for a while or for good.
func (w *world) leave(f Fault) {
	if !w.pg.Running() {
		return
	}
	w.truth.excuse("the table has left the publication")
	w.pg.LeavePublication()
	w.later(f.E/2, func() { w.do(Op{Rows: 2, Seed: w.plan.Seed ^ 0x1ea7e, Large: 200}) })
	if f.B%2 == 0 {
		w.later(f.E, w.pg.JoinPublication)
	}
}

// advance moves the slot to the end of the WAL, over transactions that the relay has not seen.
func (w *world) advance(f Fault) {
	if !w.truth.hasSaved() {
		return // nothing but the slot says what is delivered: it is trusted
	}
	w.behindItsBack(f, func() {
		if w.pg.Running() {
			w.truth.excuse("somebody has advanced the slot")
			w.pg.Advance()
		}
	})
}

// tear puts something else in the place of the checkpoint, while much is on its way.
func (w *world) tear(f Fault) {
	if !w.truth.hasSaved() {
		return
	}
	for i := range 60 {
		w.later(time.Duration(i)*20*time.Millisecond, func() {
			w.do(Op{Rows: 40, Seed: w.plan.Seed ^ uint64(0x7ea0+i), Large: 3000})
		})
	}
	w.later(time.Duration(f.B%16)*100*time.Millisecond, func() { w.destroy(f) })
}

func (w *world) destroy(f Fault) {
	w.truth.excuse("the checkpoint is destroyed")
	content := "{\n  \"walrelay_checkpoint\": 1,\n"
	if f.A%2 == 0 {
		content = "127.0.0.1 localhost\n"
	}
	if err := os.WriteFile(w.path, []byte(content), 0o600); err != nil {
		w.fail("test", "%v", err)
	}
	w.note("the checkpoint is destroyed")
}

// poison writes a row that no topic may take.
func (w *world) poison(f Fault) {
	w.do(Op{Kind: Poison, Rows: 1 + f.A%5, Seed: w.plan.Seed ^ 0x9015, Large: 200})
}

// maxBytes lowers the limit of all topics for a while, not below what a lone event needs.
func (w *world) maxBytes(f Fault) {
	least := 3000
	for _, op := range w.plan.Ops {
		least = max(least, op.Large+3000)
	}
	// What is appended, not acknowledged and too large now has to be sent again in smaller
	// batches, which nobody can recognise.
	w.truth.forget()
	w.kafka.SetMaxBytes(min(least, w.plan.MaxBytes))
	w.later(f.D, func() { w.kafka.SetMaxBytes(w.plan.MaxBytes) })
}

func (w *world) expire(Fault) {
	w.truth.forget()
	w.kafka.Expire()
}
