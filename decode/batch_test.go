package decode

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
	"weak"
)

// G7: an event costs no allocation once the batch has its memory.
func TestG7NoAllocations(t *testing.T) {
	rows := [][]byte{
		benchRow(),
		wireInsert(testOID, values(nil)...),
		wireInsert(testOID, values(map[string]any{"aggregate_type": "other", "headers": `{"b\u0041":"x\ny","event-id":"f"}`, "created_at": "2026-01-02 03:04:05+05:30"})...),
		wireInsert(testOID, values(map[string]any{"topic": "outbox.event.special"})...),
	}
	begin, relation := wireBegin(1<<32), wireRelation(99, "public", "other")
	s := newStream(t, Config{})
	s.begin()
	s.commit()
	commit := wireCommit(1<<32, 1<<32+1)
	fill := func() {
		s.decode(begin)
		for s.b.Bytes() < 1<<20 {
			for _, row := range rows {
				s.decode(row)
			}
		}
		s.decode(relation)
		s.decode(commit)
		s.b.Reset()
	}
	fill()
	if n := testing.AllocsPerRun(20, fill); n != 0 {
		t.Errorf("%v allocations for a batch", n)
	}
}

// G7: Bytes is what the events take, near enough to bound memory by it.
func TestG7BytesIsHonest(t *testing.T) {
	for name, size := range map[string]int{"small": 300, "middle": 40 << 10, "large": 200 << 10, "very large": 3 << 20} {
		t.Run(name, func(t *testing.T) {
			const total = 24 << 20
			s := newStream(t, Config{})
			s.begin()
			row := wireInsert(testOID, values(map[string]any{"payload": strings.Repeat("x", size)})...)
			heap := heapInUse()
			for s.b.Bytes() < total {
				s.decode(row)
			}
			held := heapInUse() - heap
			// Slices of events grow by a quarter at a time, and chunks are whole.
			if got := s.b.Bytes(); held > got*5/4+2*chunkSize || held < got*9/10 {
				t.Errorf("%d bytes by account, %d by the runtime", got, held)
			}
			runtime.KeepAlive(s)
			runtime.KeepAlive(row)
		})
	}
}

func heapInUse() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// G7: DropLast takes back exactly what the newest event took, whatever it was.
func TestG7DropLast(t *testing.T) {
	many := "{" + strings.Repeat(`"a":"\u0041",`, 2000) + `"a":1}`
	rows := map[string]map[string]any{
		"small":        nil,
		"escapes":      {"headers": `{"a\n":"\u0041"}`},
		"poison":       {"event_id": nil},
		"many headers": {"headers": many},
		"large":        {"payload": strings.Repeat("y", largeBytes), "headers": many},
		"long name":    {"headers": `{"` + strings.Repeat("n", 1000) + `":1}`},
	}
	for name, change := range rows {
		t.Run(name, func(t *testing.T) {
			s := newStream(t, Config{})
			s.begin()
			var sizes []int
			var want []string
			for i := range 40 {
				s.decode(wireInsert(testOID, values(map[string]any{"event_id": strings.Repeat("k", i+1), "payload": strings.Repeat("p", i*2000)})...))
				want = append(want, render(&s.b.Events[i]))
				sizes = append(sizes, s.b.Bytes())
				for range 3 {
					s.decode(wireInsert(testOID, values(change)...))
					if s.b.Bytes() <= sizes[i] {
						t.Fatalf("an event takes %d bytes", s.b.Bytes()-sizes[i])
					}
				}
				for range 3 {
					s.b.DropLast()
				}
				if s.b.Bytes() != sizes[i] {
					t.Fatalf("%d bytes, %d before the dropped events", s.b.Bytes(), sizes[i])
				}
			}
			for i := range s.b.Events {
				if got := render(&s.b.Events[i]); got != want[i] {
					t.Fatalf("event %d is %s\nwas %s", i, got, want[i])
				}
			}
			for i := 39; i >= 0; i-- {
				if s.b.Bytes() != sizes[i] {
					t.Fatalf("%d events take %d bytes, were %d", i+1, s.b.Bytes(), sizes[i])
				}
				s.b.DropLast()
			}
			if s.b.Bytes() != 0 || len(s.b.Events) != 0 {
				t.Errorf("an empty batch has %d bytes", s.b.Bytes())
			}
		})
	}
}

// G7: a large row's memory goes when its event goes, and a batch that was large
// once does not stay so.
func TestG7LargeRowsAreReleased(t *testing.T) {
	for name, drop := range map[string]func(b *Batch){
		"reset":     (*Batch).Reset,
		"drop last": (*Batch).DropLast,
	} {
		t.Run(name, func(t *testing.T) {
			s := newStream(t, Config{})
			s.begin()
			s.decode(wireInsert(testOID, values(map[string]any{"payload": strings.Repeat("x", 1<<20), "headers": `{"a":"b"}`})...))
			row := weak.Make(&s.b.Events[0].Value[0])
			drop(s.b)
			runtime.GC()
			if row.Value() != nil {
				t.Error("the row is still there")
			}
			runtime.KeepAlive(s)
		})
	}
	s := newStream(t, Config{})
	s.begin()
	row := wireInsert(testOID, values(map[string]any{"payload": strings.Repeat("x", 10000)})...)
	for s.b.Bytes() < 10<<20 {
		s.decode(row)
	}
	s.b.Reset()
	if n := len(s.b.chunks); n != 4 || s.b.Bytes() != 0 {
		t.Errorf("an empty batch of 1 MiB keeps %d chunks, %d bytes", n, s.b.Bytes())
	}
}

// G6: events stay as they are while their batch fills, and when another does.
func TestG6EventsAreStable(t *testing.T) {
	s := newStream(t, Config{})
	s.begin()
	other := NewBatch(1 << 20)
	var want []string
	for i := range 3000 {
		row := wireInsert(testOID, values(map[string]any{"payload": strings.Repeat("x", i*7%2000), "headers": `{"a":"\u0041"}`, "idempotency_key": strings.Repeat("i", i%10)})...)
		s.decode(row)
		want = append(want, render(&s.b.Events[i]))
		if _, err := s.d.Decode(row, other); err != nil {
			t.Fatal(err)
		}
		if other.Events[0].Seq != uint64(2*i+1) || !bytes.HasSuffix(other.Events[0].Headers.List()[0].Value, []byte("e1")) {
			t.Fatal("the other batch holds something else")
		}
		other.Reset()
	}
	for i := range s.b.Events {
		if got := render(&s.b.Events[i]); got != want[i] {
			t.Fatalf("event %d is %s\nwas %s", i, got, want[i])
		}
	}
}
