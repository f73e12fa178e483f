package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/e2e/checker"
	"github.com/walrelay/walrelay/e2e/workload"
)

// retain is --replay-retain of the tests: more than they write, where nothing else is said.
const retain = "1GiB"

// now is where the server's WAL ends: all that commits later has a commit LSN at or above it.
func (f *fixture) now() string {
	f.t.Helper()
	return query[string](f, "SELECT pg_current_wal_insert_lsn()::text")
}

func (f *fixture) parse(lsn string) pglogrepl.LSN {
	f.t.Helper()
	v, err := pglogrepl.ParseLSN(lsn)
	f.must(err)
	return v
}

// replay runs a replay to its end, which must be code.
func (f *fixture) replay(code int, args ...string) (stdout, stderr string) {
	f.t.Helper()
	r, err := f.relay.Command(f.ctx, "replay", args...)
	f.must(err)
	if r.Code != code {
		f.t.Fatalf("replay %s: exit %d, want %d\n%s%s", strings.Join(args, " "), r.Code, code, lastLines(r.Stdout, 10), r.Stderr)
	}
	return r.Stdout, r.Stderr
}

var recordedEvents = regexp.MustCompile(`"events": (\d+)`)

// recorded is how many events an unfinished replay has on record.
func (f *fixture) recorded(suffix string) int {
	doc, _ := os.ReadFile(f.relay.Checkpoint() + suffix)
	if m := recordedEvents.FindSubmatch(doc); m != nil {
		n, _ := strconv.Atoi(string(m[1]))
		return n
	}
	return 0
}

// window is what was published live in [from, to], and how often it was published again.
type window struct {
	events, again, repeats int
	runs                   map[string]bool
}

// again holds what was published again against what was published live: each event of
// [from, to] and no other, in its order and on its partition, with the same bytes but for the marker. Repeats are
// runs that begin the partition's window anew from a place that was reached.
func (f *fixture) again(from, to pglogrepl.LSN) window {
	f.t.Helper()
	observed, err := f.records().Read(f.ctx)
	f.must(err)
	live, again := observed.Split()
	w := window{runs: map[string]bool{}}
	for place, records := range live {
		type identity struct {
			commit pglogrepl.LSN
			seq    uint64
		}
		var want []checker.Record
		at := map[identity]int{}
		for _, r := range records {
			if _, known := at[identity{r.Commit, r.Seq}]; !known && r.Commit >= from && r.Commit <= to {
				at[identity{r.Commit, r.Seq}] = len(want)
				want = append(want, r)
			}
		}
		if !slices.IsSortedFunc(want, func(a, b checker.Record) int {
			return cmp.Or(cmp.Compare(a.Commit, b.Commit), cmp.Compare(a.Seq, b.Seq))
		}) {
			f.t.Errorf("G2: what was published live on %s is not in order", place)
		}
		w.events += len(want)
		reached, last := 0, -1
		for _, r := range again[place] {
			w.again++
			w.runs[r.Replay] = true
			i, ok := at[identity{r.Commit, r.Seq}]
			switch {
			case !ok:
				f.t.Errorf("replay: event %s, commit %s seq %d, at %s offset %d, is not of the window", r.ID, r.Commit, r.Seq, place, r.Offset)
				continue
			case i > reached || i != last+1 && i > last:
				f.t.Errorf("replay: on %s event %s, commit %s seq %d, follows a gap", place, r.ID, r.Commit, r.Seq)
			case r.Whole != want[i].Whole:
				f.t.Errorf("replay: event %s, commit %s seq %d, differs from what was published live", r.ID, r.Commit, r.Seq)
			}
			if i < reached {
				w.repeats++
			}
			last, reached = i, max(reached, i+1)
		}
		if reached != len(want) {
			f.t.Errorf("replay: %d of %d events on %s were published again", reached, len(want), place)
		}
	}
	if w.events == 0 {
		f.t.Error("the window is empty")
	}
	return w
}

// G1 G2 G5 G6: a window is replayed under load, and the replay killed twice in its middle: each
// event of the window again and no other, as it was; the live stream does not notice.
func TestReplayKilledUnderLoad(t *testing.T) {
	// Batches of 64 KiB, so that kills come in the middle.
	f := newFixture(t, option{direct: true, args: []string{"--replay-retain", retain, "--buffer-bytes", "256KiB", "--batch-bytes", "64KiB"}})
	f.up()
	w := f.load(workload.Options{Every: 100 * time.Millisecond, Writers: 2, Large: 10_000})
	f.pass(300 * time.Millisecond)
	from := f.now()
	rows := size(30_000, 300_000)
	f.must(workload.Bulk(f.ctx, f.url(), table, f.types[0], "bulk-", rows, 250))
	f.must(workload.Copy(f.ctx, f.url(), table, f.types[1], "copy-", rows/4, 100))
	f.pass(300 * time.Millisecond)
	to := f.now()
	f.pass(300 * time.Millisecond)
	f.drain()
	f.await(30*time.Second, "the checkpoint passes the window", func() bool {
		return query[bool](f, "SELECT confirmed_flush_lsn >= '"+to+"' FROM pg_replication_slots WHERE slot_name = '"+f.name+"'")
	})
	pid := f.relay.Pid()

	args := []string{"--from-lsn", from, "--to-lsn", to}
	for kill := range 2 {
		p, err := f.relay.Beside("replay", args...)
		f.must(err)
		f.await(time.Minute, "a part replayed", func() bool { return f.recorded(".replay") > (kill+1)*rows/4 || !p.Running() })
		p.Signal(syscall.SIGKILL)
		f.must(p.Wait(f.ctx))
		if p.ExitCode() == 0 {
			t.Fatal("the replay was done before it could be killed")
		}
		t.Logf("killed after %d events", f.recorded(".replay"))
	}
	if _, errs := f.replay(2, "--from-lsn", from); !strings.Contains(errs, "--to-lsn "+to) || !strings.Contains(errs, "--abandon") {
		t.Errorf("an unfinished replay and another one: %s", errs)
	}
	f.replay(0, args...)
	t.Logf("%+v", f.end(w))
	f.drain()
	if f.relay.Pid() != pid {
		t.Error("the live relay is another process")
	}
	f.stop()
	f.noRepeats()
	got := f.again(f.parse(from), f.parse(to))
	t.Logf("%+v", got)
	// A batch is 64 KiB of rows of more than 100 bytes; one is in flight at each kill.
	if limit := 2 * (64 << 10) / 100; got.repeats > limit || len(got.runs) != 1 {
		t.Errorf("G5: %d events were replayed twice in %d runs, at most %d are the batches in flight", got.repeats, len(got.runs), limit)
	}
}

// What can't be replayed is refused with what can; a dry run tells the same, and touches nothing.
func TestReplayReach(t *testing.T) {
	f := newFixture(t, option{direct: true, args: []string{"--replay-retain", retain}})
	f.up()
	f.insert("one")
	f.drain()
	second := f.now()
	f.insert("two")
	f.drain()
	f.insert("three")
	f.drain()

	anchor := query[string](f, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", f.name+"_anchor")
	for _, c := range []struct {
		code int
		args string
		text string
	}{
		{10, "--from-lsn 0/10", "reachable: " + anchor},
		{10, "--from-lsn FF/0", "beyond what is delivered"},
		{10, "--from-lsn " + second + " --to-lsn FF/0", "beyond what is delivered"},
		{10, "--from-time 2020-01-01T00:00:00Z", "reachable: " + anchor},
		{2, "--from-lsn FF/1 --to-lsn FF/0", "is behind --to-lsn"},
		{2, "", "--from-lsn, or --from-time"},
	} {
		if _, errs := f.replay(c.code, strings.Fields(c.args)...); !strings.Contains(errs, c.text) {
			t.Errorf("replay %s: %s", c.args, errs)
		}
	}
	before := f.published()
	out, _ := f.replay(0, "--from-lsn", second, "--dry-run", "--kafka-brokers", "127.0.0.1:1")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var sum struct{ Events int }
	f.must(json.Unmarshal([]byte(lines[len(lines)-1]), &sum))
	if sum.Events != 2 || len(lines) != 3 || !strings.Contains(lines[0], `"event_id":"two"`) || f.published() != before {
		t.Errorf("dry run: %s", out)
	}
	stamp := query[string](f, `SELECT to_char(min(created_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM outbox_event WHERE event_id = 'three'`)
	if out, _ = f.replay(0, "--from-time", stamp, "--dry-run"); strings.Count(out, "\n") != 2 || !strings.Contains(out, `"three"`) {
		t.Errorf("from the time of the third: %s", out)
	}
	if out, _ = f.replay(0, "--from-lsn", anchor, "--filter-key", "none", "--dry-run"); strings.Count(out, "\n") != 1 {
		t.Errorf("no key: %s", out)
	}
	if _, errs := f.replay(1, "--from-lsn", second, "--postgres-url", "postgres://127.0.0.1:1/x", "--timeout", "1s"); !strings.Contains(errs, "gave up after --timeout 1s") {
		t.Errorf("without Postgres: %s", errs)
	}
	if _, errs := f.replay(1, "--from-lsn", second, "--topic-override", "nowhere", "--timeout", "1s"); !strings.Contains(errs, "gave up after --timeout 1s") || !strings.Contains(errs, "--abandon") {
		t.Errorf("to a topic that does not exist: %s", errs)
	}
	f.replay(0, "--abandon")
	f.replay(0, "--from-lsn", second, "--topic-override", f.topics()[1])
	f.stop()
	observed, err := f.records().Read(f.ctx)
	f.must(err)
	var ids []string
	for place, records := range observed {
		for _, r := range records {
			if place.Topic == f.topics()[1] {
				ids = append(ids, r.ID)
			}
		}
	}
	if slices.Sort(ids); !slices.Equal(ids, []string{"three", "two"}) {
		t.Errorf("on the other topic: %q", ids)
	}
	r, err := f.relay.Command(context.Background(), "setup", "--drop-anchor", "--replay-retain", "0")
	f.must(err)
	if r.Code != 0 || !strings.Contains(r.Stdout, "dropped") {
		t.Errorf("setup --drop-anchor: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if _, errs := f.replay(10, "--from-lsn", second); !strings.Contains(errs, "walrelay setup --replay-retain") {
		t.Errorf("without an anchor: %s", errs)
	}
	f.up()
	f.logged("no replay is possible")
}

// logged waits until the relay has logged text.
func (f *fixture) logged(text string) {
	f.t.Helper()
	f.await(20*time.Second, "the log says: "+text, func() bool { return strings.Contains(f.relay.Log(), text) })
}

// G2 G5: run --from-lsn replays once, then goes live.
func TestRunFromLSN(t *testing.T) {
	f := newFixture(t, option{direct: true, args: []string{"--replay-retain", retain}})
	f.up()
	f.insert("before")
	f.drain()
	from := f.now()
	w := f.load(workload.Options{Transactions: 20, Large: 1000})
	_, err := w.Wait()
	f.must(err)
	f.drain()
	f.stop()
	to := f.now()
	f.insert("undelivered")
	for range 2 {
		f.up("--from-lsn", from)
		f.insert("live")
		f.exec(f.name, "DELETE FROM outbox_event WHERE event_id = 'live'")
		f.drain()
		f.stop()
	}
	f.noRepeats()
	got := f.again(f.parse(from), f.parse(to))
	if got.repeats != 0 || got.again != got.events || len(got.runs) != 1 {
		t.Errorf("%+v", got)
	}
}
