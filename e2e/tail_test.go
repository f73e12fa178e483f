package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/harness"
)

// tailing is a running `walrelay tail --json`.
type tailing struct {
	f     *fixture
	cmd   *exec.Cmd
	lines chan tailedEvent
}

type tailedEvent struct {
	ID      string  `json:"event_id"`
	Topic   string  `json:"topic"`
	Key     *string `json:"key"`
	Payload *string `json:"payload"`
	LSN     string  `json:"lsn"`
	Poison  string  `json:"poison"`
}

// tail starts the command, and returns when it shows what is committed.
func (f *fixture) tail(args ...string) *tailing {
	f.t.Helper()
	path, err := harness.Binary()
	f.must(err)
	cmd := exec.CommandContext(f.ctx, path, append([]string{"tail", "--json", "--slot", f.name, "--publication", f.name}, args...)...)
	cmd.Dir, cmd.Env = f.t.TempDir(), append(os.Environ(), "WALRELAY_POSTGRES_URL="+f.relay.Postgres)
	log, err := cmd.StderrPipe()
	f.must(err)
	out, err := cmd.StdoutPipe()
	f.must(err)
	f.must(cmd.Start())
	t := &tailing{f: f, cmd: cmd, lines: make(chan tailedEvent, 1000)}
	go func() {
		defer close(t.lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			var e tailedEvent
			if json.Unmarshal(scan.Bytes(), &e) == nil {
				t.lines <- e
			}
		}
	}()
	scan := bufio.NewScanner(log)
	for scan.Scan() && !strings.Contains(scan.Text(), "showing what is committed") {
		f.t.Log(scan.Text())
	}
	go func() {
		for scan.Scan() {
			f.t.Log(scan.Text())
		}
	}()
	return t
}

// next waits for an event.
func (t *tailing) next() tailedEvent {
	t.f.t.Helper()
	select {
	case e := <-t.lines:
		return e
	case <-time.After(20 * time.Second):
		t.f.t.Fatal("nothing is shown")
		return tailedEvent{}
	}
}

// interrupt is Ctrl-C: the command ends with 0.
func (t *tailing) interrupt() {
	t.f.t.Helper()
	t.f.must(t.cmd.Process.Signal(syscall.SIGINT))
	for range t.lines {
		// what is left
	}
	if err := t.cmd.Wait(); err != nil {
		t.f.t.Errorf("after SIGINT: %v", err)
	}
}

// Tail shows what is committed, by filter, beside a relay that it does not disturb, and leaves no slot behind.
func TestTailShowsWhatIsCommitted(t *testing.T) {
	f := newFixture(t, option{direct: true})
	f.up()
	f.insert("before")
	all := f.tail()
	keyed := f.tail("--filter-key", "other", "--payload", "none")
	f.insert("first")
	f.exec(f.name, "INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, payload) VALUES ('second', $1, 'other', '{\"a\": 1}')", f.types[1])
	f.exec(f.name, "INSERT INTO outbox_event (event_id, topic, aggregate_id, payload) VALUES ('forbidden', '_schemas', 'key', '{}'); DELETE FROM outbox_event")
	for _, want := range []string{"first", "second", "forbidden"} {
		e := all.next()
		if e.ID != want || e.LSN == "" || e.Payload == nil || (e.Poison != "") != (want == "forbidden") {
			t.Errorf("%s: %+v", want, e)
		}
	}
	if e := keyed.next(); e.ID != "second" || *e.Key != "other" || e.Payload != nil || e.Topic != f.topics()[1] {
		t.Errorf("by key: %+v", e)
	}
	all.interrupt()
	keyed.interrupt()
	f.await(10*time.Second, "the temporary slots are gone", func() bool {
		return query[int](f, "SELECT count(*) FROM pg_replication_slots WHERE temporary AND database = $1", f.name) == 0
	})
	f.exits(11) // the relay met the row that can't be published, and had delivered what came before
	if n := f.published(); n != 3 {
		t.Errorf("%d events arrived", n)
	}

	counted := f.tail("--count", "1", "--filter-event-type", "te?t,test")
	f.insert("last")
	if e := counted.next(); e.ID != "last" {
		t.Errorf("counted: %+v", e)
	}
	if err := counted.cmd.Wait(); err != nil {
		t.Errorf("after --count 1: %v", err)
	}
}
