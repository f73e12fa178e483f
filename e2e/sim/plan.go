package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Plan is a run, laid out before it begins. Its parts can be left away one by one.
type Plan struct {
	Seed uint64
	Knobs
	Ops    []Op
	Faults []Fault
}

// Knobs are the settings of both clusters, of the network and of the relay.
type Knobs struct {
	For time.Duration // how long operations and faults go on

	// Postgres
	Version          int
	WALSenderTimeout time.Duration
	Start            uint64
	Clock            time.Duration
	CheckpointEvery  time.Duration
	SyncedStandby    bool

	// Kafka
	Brokers, Replication, MinISR, Partitions int
	Topics                                   int
	MaxBytes                                 int
	OldKafka                                 bool
	Replicate                                time.Duration

	// the network
	Latency, Jitter time.Duration
	Fragment        float64
	Window          int

	// the relay
	BufferBytes, BatchBytes int
	Compression             string
	NoCheckpoint            bool
	Save                    time.Duration // most that saving a position takes
	DeadLetters             bool
	Standby                 bool // a second relay waits for the slot

	ByItself bool // all is delivered at the end of For, before the faults are ended
}

// relayBatch is the memory at which the relay takes a batch to be full.
func (k Knobs) relayBatch() int { return min(max(k.BufferBytes/4, 64<<10), 3<<20) }

// Op is something that happens in the database.
type Op struct {
	At    time.Duration
	Kind  OpKind
	Rows  int
	Other int           // rows of other tables
	Open  time.Duration // from the first row to the commit
	Large int           // bytes of the largest payload
	Seed  uint64        // of the rows
}

// OpKind says what an operation is.
type OpKind int

const (
	Transaction OpKind = iota
	RolledBack
	Savepoint // some rows are rolled back, the transaction is not
	Other     // writes that concern no outbox
	AddColumn
	Poison // the last row asks for a topic that is not allowed
)

func (k OpKind) String() string {
	return [...]string{"transaction", "rolled back", "savepoint", "other", "add column", "poison"}[k]
}

func (o Op) String() string {
	return fmt.Sprintf("%s: %s of %d rows, %d others, open for %s, up to %d bytes", o.At, o.Kind, o.Rows, o.Other, o.Open, o.Large)
}

// stream is the random numbers of one part of a plan: leaving another part away doesn't
// change them.
func stream(seed uint64, part uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, part)) }

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// between is evenly distributed over the orders of magnitude.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	d := least
	for d*4 < most && r.IntN(3) > 0 {
		d *= 4
	}
	return d + time.Duration(r.Int64N(int64(min(3*d, most-d))+1))
}

// New makes the plan of a seed.
func New(seed uint64) Plan {
	p := Plan{Seed: seed, Knobs: newKnobs(stream(seed, 1))}
	p.Ops = newOps(stream(seed, 2), p.For)
	p.Faults = newFaults(stream(seed, 3), p.Knobs)
	return p
}

func newKnobs(r *rand.Rand) Knobs {
	k := Knobs{
		For:              pick(r, 10*time.Second, 20*time.Second, 40*time.Second),
		Version:          pick(r, 140023, 150018, 160014, 170010, 180004),
		WALSenderTimeout: pick(r, 60*time.Second, 60*time.Second, 10*time.Second, 4*time.Second, 0),
		Start:            pick[uint64](r, 0x1500000, 0xFFFFF000, 0x16_B374D848, 0x3_00000000),
		Clock:            pick(r, 0, 0, 3*time.Second, -2*time.Minute, 26*time.Hour),
		CheckpointEvery:  pick(r, 2*time.Second, 10*time.Second, 5*time.Minute),
		SyncedStandby:    r.IntN(4) == 0,
		Brokers:          pick(r, 1, 3, 3),
		Partitions:       pick(r, 1, 2, 5),
		Topics:           pick(r, 1, 2, 3),
		MaxBytes:         pick(r, 1048588, 1048588, 60<<10),
		OldKafka:         r.IntN(5) == 0,
		Replicate:        pick(r, 0, time.Millisecond, 20*time.Millisecond, 300*time.Millisecond),
		Latency:          pick(r, 20*time.Microsecond, 300*time.Microsecond, 5*time.Millisecond, 60*time.Millisecond),
		Fragment:         pick(r, 0, .1, .5),
		Window:           pick(r, 8<<10, 64<<10, 512<<10),
		BufferBytes:      pick(r, 256<<10, 256<<10, 16<<20),
		BatchBytes:       pick(r, 1<<20, 32<<10, 4<<10),
		Compression:      pick(r, "none", "none", "none", "lz4", "zstd", "gzip", "snappy"),
		NoCheckpoint:     r.IntN(10) == 0,
		Save:             pick(r, 0, 5*time.Millisecond, 100*time.Millisecond, 2*time.Second),
		DeadLetters:      r.IntN(4) == 0,
		Standby:          r.IntN(3) == 0,
	}
	k.Jitter = k.Latency * time.Duration(r.IntN(4))
	k.BatchBytes = min(k.BatchBytes, k.BufferBytes)
	k.Replication, k.MinISR = 1, 1
	if k.Brokers == 3 {
		k.Replication, k.MinISR = 3, 2
	}
	return k
}

func newOps(r *rand.Rand, last time.Duration) []Op {
	var ops []Op
	pace := pick(r, 5, 20, 80) // operations in all
	large := pick(r, 200, 200, 2000, 20_000, 90_000)
	for range pace + r.IntN(pace) {
		op := Op{At: time.Duration(r.Int64N(int64(last))), Rows: pick(r, 1, 1, 1, 2, 5, 1+r.IntN(40)), Seed: r.Uint64(), Large: 200}
		switch r.IntN(12) {
		case 0:
			op.Kind = RolledBack
		case 1:
			op.Kind = Savepoint
		case 2:
			op.Kind, op.Rows, op.Other = Other, 0, 1+r.IntN(100)
		case 3:
			op.Rows, op.Other = 0, 1+r.IntN(20) // a transaction of other tables only
		case 4:
			op.Other = r.IntN(50)
		case 5:
			if r.IntN(10) == 0 {
				op.Kind = AddColumn
			}
		case 6:
			op.Large = large
		case 7:
			if r.IntN(4) == 0 {
				op.Rows = 100 + r.IntN(1500)
			}
			if r.IntN(100) == 0 {
				op.Rows, op.Large = 2500, 2000
			}
		}
		if r.IntN(3) == 0 {
			op.Open = between(r, time.Millisecond, 5*time.Second)
		}
		ops = append(ops, op)
	}
	if r.IntN(3) == 0 { // a burst
		at := time.Duration(r.Int64N(int64(last)))
		for range 20 + r.IntN(60) {
			at += time.Duration(r.Int64N(int64(20 * time.Millisecond)))
			ops = append(ops, Op{At: at, Rows: 1 + r.IntN(3), Seed: r.Uint64(), Large: 200})
		}
	}
	slices.SortStableFunc(ops, func(a, b Op) int { return int(a.At - b.At) })
	return ops
}

// String is the plan for people: what Run would do.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d operations, %d faults\n  %+v\n", p.Seed, len(p.Ops), len(p.Faults), p.Knobs)
	for _, f := range p.Faults {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	return b.String()
}
