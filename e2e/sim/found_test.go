package sim

import (
	"fmt"
	"testing"
	"time"
)

// plain are settings without surprises; each scenario changes what it is about.
func plain() Knobs {
	return Knobs{
		For: 10 * time.Second, Version: 170010, WALSenderTimeout: 10 * time.Second, Start: 0x1500000, CheckpointEvery: time.Minute,
		Brokers: 3, Replication: 3, MinISR: 2, Partitions: 2, Topics: 2, MaxBytes: 1048588, Replicate: time.Millisecond,
		Latency: 300 * time.Microsecond, Jitter: 100 * time.Microsecond, Window: 64 << 10, BufferBytes: 256 << 10, BatchBytes: 1 << 20,
		Compression: "none",
	}
}

// traffic is n transactions of so many rows, evenly over the time.
func traffic(n, rows, large int, over time.Duration) (ops []Op) {
	for i := range n {
		ops = append(ops, Op{At: over * time.Duration(i) / time.Duration(n), Rows: rows, Large: large, Seed: uint64(i + 1)})
	}
	return ops
}

// TestFound repeats what the simulation found in the relay, each with the least that showed it.
func TestFound(t *testing.T) {
	for _, s := range []struct {
		name string // the guarantee, and what was wrong
		set  func(*Plan)
	}{
		{"G3 confirmed from memory before it was saved", func(p *Plan) {
			p.Save = 2 * time.Second
			p.Ops = traffic(40, 2, 200, p.For)
			p.Faults = []Fault{{At: 2 * time.Second, Kind: "walsender terminated"}, {At: 5 * time.Second, Kind: "walsender terminated"}}
		}},
		{"G8 a link that falls silent before the stream", func(p *Plan) {
			p.WALSenderTimeout = 0
			p.Ops = traffic(10, 1, 200, p.For)
			p.Faults = []Fault{{At: 2 * time.Second, Kind: "lose next", A: 1, B: int(p.Seed)}}
		}},
		{"G8 a stream that falls silent", func(p *Plan) {
			p.For, p.ByItself = 2*time.Minute, true
			p.Ops = traffic(40, 1, 200, 30*time.Second)
			p.Faults = []Fault{{At: 5 * time.Second, Kind: "lose", B: int(p.Seed)}}
		}},
		{"G1 ready although the WAL ends before the position", func(p *Plan) {
			p.Ops = traffic(30, 1, 200, 5*time.Second)
			p.Faults = []Fault{{At: time.Second, Kind: "copy restored", A: 4, D: time.Millisecond, E: 5 * time.Second}}
		}},
		{"G1 the gap that a refusal names begins too late", func(p *Plan) {
			p.Ops = traffic(40, 1, 200, p.For)
			p.Faults = []Fault{{At: 2100 * time.Millisecond, Kind: "publication left", E: 200 * time.Millisecond}, {At: 2600 * time.Millisecond, Kind: "walsender terminated"}}
		}},
		{"G8 a saver that gave up, and a deliverer that waited for it", func(p *Plan) {
			p.Save = 2 * time.Second
			p.Ops = traffic(100, 20, 2000, 5*time.Second)
			for i := range 9 {
				p.Faults = append(p.Faults, Fault{At: time.Duration(i+1) * time.Second, Kind: "overtaken"})
			}
		}},
		{"G8 a stop while nothing can be saved", func(p *Plan) {
			p.Ops = traffic(100, 20, 2000, 5*time.Second)
			p.For = 90 * time.Second
			p.Faults = []Fault{{At: 3 * time.Second, Kind: "disk full", D: 2 * time.Minute}, {At: 5 * time.Second, Kind: "restart"}}
		}},
		{"G8 a slot that fell back behind what it was trusted for", func(p *Plan) {
			p.NoCheckpoint = true
			p.Ops = traffic(10, 1, 200, 2*time.Second)
			p.Faults = []Fault{{At: 3 * time.Second, Kind: "restart"}, {At: 6 * time.Second, Kind: "postgres crashes"}}
		}},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(6) {
				plan := Plan{Seed: seed, Knobs: plain()}
				s.set(&plan)
				if res := Run(t, plan); res.Failure != nil {
					caught(res.Failure, fmt.Sprintf("scenario “%s”", s.name))
					t.Fatal(fmt.Sprintf("run %d: ", seed) + report(res, 0))
				}
			}
		})
	}
}
