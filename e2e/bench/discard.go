package bench

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"time"

	"github.com/rs/zerolog"

	"github.com/walrelay/walrelay/replication"
)

// Discard reads a slot up to the end of its backlog as walrelay does, and throws away
// what it reads: as fast as any relay could be that reads like this. It prints how many
// rows it saw, for how long, and where the last transaction ended. events is how many
// to expect.
func Discard(ctx context.Context, url, slot string, events int) error {
	s, err := replication.Open(ctx, replication.Config{
		URL: url, Table: replication.Table{Schema: "public", Name: "outbox_event"}, Publication: publication, Slot: slot,
		Log: zerolog.New(os.Stderr),
	})
	if err != nil {
		return err
	}
	if path := os.Getenv("BENCH_PROFILE"); path != "" {
		stop, err := startProfile(path)
		if err != nil {
			return err
		}
		defer stop()
	}
	fmt.Println("streaming")
	begun := time.Now()
	var end uint64
	for rows, open := 0, false; rows < events || open; {
		m, err := s.Next()
		if err != nil {
			return err
		}
		if m.Kind != replication.Data {
			continue
		}
		switch m.WAL[0] {
		case 'B':
			open = true
		case 'I':
			rows++
		case 'C':
			open = false
			end = be64(m.WAL[10:])
		}
	}
	fmt.Printf("read %d rows in %d ns up to %d\n", events, time.Since(begun).Nanoseconds(), end)
	return s.Close(ctx)
}

func startProfile(path string) (stop func(), err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); f.Close() }, pprof.StartCPUProfile(f)
}

func be64(b []byte) (v uint64) {
	for _, c := range b[:8] {
		v = v<<8 | uint64(c)
	}
	return v
}
