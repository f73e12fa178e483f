package e2e

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/walrelay/walrelay/e2e/harness"
	"github.com/walrelay/walrelay/e2e/stack"
)

// up starts the relay and waits until it is ready.
func (f *fixture) up(args ...string) {
	f.t.Helper()
	if err := f.relay.Up(f.ctx, args...); err != nil {
		f.t.Fatalf("%v\n%s", err, f.relay.Log())
	}
}

// stop is a graceful stop: exit code 0.
func (f *fixture) stop() {
	f.t.Helper()
	code, err := f.relay.Stop(f.ctx)
	f.must(err)
	if code != 0 {
		f.t.Fatalf("SIGTERM: exit %d\n%s", code, lastLines(f.relay.Log(), 10))
	}
}

// copyCluster takes a file copy of the stopped cluster, and starts it again.
func (f *fixture) copyCluster() (folder string) {
	f.t.Helper()
	f.must(f.pg.Stop(f.ctx, stack.Fast))
	folder, err := f.pg.Copy(f.ctx)
	f.must(err)
	f.must(f.pg.Start(f.ctx))
	return folder
}

// restoreCluster puts a file copy in the cluster's place.
func (f *fixture) restoreCluster(folder string) {
	f.t.Helper()
	f.must(f.pg.Stop(f.ctx, stack.Fast))
	f.must(f.pg.Restore(f.ctx, folder))
	f.must(f.pg.Start(f.ctx))
}

// exits waits until the relay has ended, at most until a minute of retries is over.
func (f *fixture) exits(code int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, 100*time.Second)
	defer cancel()
	got, err := f.relay.Wait(ctx)
	f.must(err)
	if got != code {
		f.t.Fatalf("exit %d, want %d\n%s", got, code, lastLines(f.relay.Log(), 10))
	}
}

// await polls until ok; what is said where ctx or patience ends first.
func (f *fixture) await(patience time.Duration, what string, ok func() bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.t.Fatalf("%s: not within %s\n%s", what, patience, lastLines(f.relay.Log(), 15))
		}
	}
}

// pass lets time go by; the relay must not end meanwhile.
func (f *fixture) pass(d time.Duration) {
	f.t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.ctx.Done():
	}
	if !f.relay.Running() {
		f.t.Fatalf("the relay has ended\n%s", lastLines(f.relay.Log(), 10))
	}
}

const confirmedPast = "SELECT coalesce(confirmed_flush_lsn >= $2::pg_lsn, false) FROM pg_replication_slots WHERE slot_name = $1"

// drain returns when the slot confirms everything committed so far.
func (f *fixture) drain() {
	f.t.Helper()
	var mark string
	if f.relay.Topic == "" {
		mark = query[string](f, "SELECT pg_logical_emit_message(true, 'walrelay-e2e', '')::text")
	} else { // an idle position would only be saved every ten seconds
		mark = query[string](f, "SELECT pg_current_wal_insert_lsn()::text")
		f.insert("drain-" + mark)
	}
	f.await(size(90*time.Second, 10*time.Minute), "drain", func() bool {
		return query[bool](f, confirmedPast, f.name, mark)
	})
}

// removeFile is os.Remove, content where there is nothing.
func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// noise is n characters that don't compress.
func noise(n int) string {
	rng, b := newRand(5), make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte(rng.IntN(26))
	}
	return string(b)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// recover runs `walrelay recover` to its end.
func (f *fixture) recover(args ...string) harness.Result {
	f.t.Helper()
	r, err := f.relay.Command(f.ctx, "recover", args...)
	f.must(err)
	return r
}

// ids are the event ids that the topics hold, and how often.
func (f *fixture) ids() map[string]int {
	ids, _ := f.marked()
	return ids
}

// marked is ids, and how many records of each bear the mark of a recovery.
func (f *fixture) marked() (ids, marked map[string]int) {
	f.t.Helper()
	observed, err := f.records().Read(f.ctx)
	f.must(err)
	ids, marked = map[string]int{}, map[string]int{}
	for _, records := range observed {
		for _, r := range records {
			ids[r.ID]++
			if r.Recover != "" {
				marked[r.ID]++
				if r.Positioned {
					f.t.Errorf("%s was read from the table and has a place in the WAL", r.ID)
				}
			}
		}
	}
	return ids, marked
}
