package e2e

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// G1: what was changed and changed back while the relay was stopped hid rows from the
// stream, and left every name as it was. The position remembers enough to refuse.
func TestG1ChangedWhileStopped(t *testing.T) {
	for name, change := range map[string][2]string{
		"publish":     {"ALTER PUBLICATION %s SET (publish = 'update')", "ALTER PUBLICATION %s SET (publish = 'insert')"},
		"membership":  {"ALTER PUBLICATION %s DROP TABLE outbox_event", "ALTER PUBLICATION %s ADD TABLE outbox_event"},
		"publication": {"DROP PUBLICATION %s", "CREATE PUBLICATION %s FOR TABLE outbox_event WITH (publish = 'insert')"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, option{})
			f.up()
			f.insert("before")
			f.drain()
			f.stop()
			f.sampler.Stop()
			f.exec(f.name, strings.ReplaceAll(change[0], "%s", f.name))
			f.insert("hidden")
			f.exec(f.name, strings.ReplaceAll(change[1], "%s", f.name))
			f.insert("after")
			f.must(f.relay.Start())
			f.exits(10)
			t.Log(lastLines(f.relay.Log(), 1))
		})
	}
}

// G1: the same while it runs, faster than the catalog is looked at.
func TestG1ChangedWhileRunning(t *testing.T) {
	f := newFixture(t, option{})
	f.up()
	f.insert("before")
	f.drain()
	f.sampler.Stop()
	f.exec(f.name, "ALTER PUBLICATION "+f.name+" SET (publish = 'update')")
	f.insert("hidden")
	f.exec(f.name, "ALTER PUBLICATION "+f.name+" SET (publish = 'insert')")
	f.insert("after")
	f.exits(10)
	t.Log(lastLines(f.relay.Log(), 1))
}

// G1: rows that were written while the table had another name are its rows all the same.
func TestG1RenamedWhileStopped(t *testing.T) {
	f := newFixture(t, option{})
	f.up()
	f.insert("before")
	f.drain()
	f.stop()
	f.exec(f.name, "ALTER TABLE outbox_event RENAME TO elsewhere")
	f.exec(f.name, "INSERT INTO elsewhere (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES ('renamed', $1, 'key', 'test', '{}')", f.types[0])
	f.exec(f.name, "ALTER TABLE elsewhere RENAME TO outbox_event")
	f.insert("after")
	f.up()
	f.drain()
	f.stop()
	if n := f.published(); n != 3 {
		t.Errorf("%d events published, want 3", n)
	}
}

// G8: the checkpoint's lock is held by a process that doesn't move; the relay waits, says
// so, and goes on when the lock is free.
func TestG8CheckpointLockedElsewhere(t *testing.T) {
	f := newFixture(t, option{})
	lock, err := os.OpenFile(f.relay.Checkpoint()+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	f.must(err)
	defer lock.Close()
	f.must(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	f.must(f.relay.Start())
	f.insert("waits")
	deadline := time.Now().Add(30 * time.Second)
	for !strings.Contains(f.relay.Log(), "position not saved") {
		if time.Now().After(deadline) || !f.relay.Running() {
			t.Fatalf("the relay does not say that it waits:\n%s", lastLines(f.relay.Log(), 10))
		}
		f.pass(100 * time.Millisecond)
	}
	f.must(lock.Close())
	f.must(f.relay.AwaitReady(f.ctx))
	f.drain()
	f.stop()
	f.noRepeats()
}
