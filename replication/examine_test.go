package replication

import (
	"strings"
	"testing"
	"time"
)

// sole is the finding of a name among what look found; the test fails unless there is one.
func sole(t *testing.T, found findings, name string) Finding {
	t.Helper()
	var got []Finding
	for _, f := range found {
		if f.Name == name {
			got = append(got, f)
		}
	}
	if len(got) != 1 {
		t.Fatalf("%d findings %s in %+v", len(got), name, found)
	}
	return got[0]
}

// healthy are facts that every check is content with.
func healthy() facts {
	return facts{
		User: "relay", Version: 180000, Release: "18.1", Database: "shop", WALLevel: "logical", MaxSlots: 10, Slots: 1, MaxSenders: 10, Senders: 1,
		KeepSize: 51200, Keep: "50GB", Timeout: 60000, Patience: "1min", Idle: "0", IdleZero: true, Streams: true, Reads: true, SeesAll: true,
		Slot: &slotSet{WALStatus: "reserved", Holder: "pid 7"},
	}
}

// Each line has its level, says what was found, and how it is mended.
func TestFindingsFollowTheFacts(t *testing.T) {
	cfg := Config{Table: Table{"public", "outbox_event"}, Publication: "walrelay", Slot: "walrelay"}
	settings := func(f *facts, found *findings) { f.settings(found) }
	role := func(f *facts, found *findings) { f.role(found, cfg) }
	txns := func(f *facts, found *findings) { f.transactions(found) }
	failover := func(f *facts, found *findings) { f.failover(found, cfg) }
	anchor := func(f *facts, found *findings) { f.anchor(found, cfg, Needs{Anchor: true}) }
	unused := func(f *facts, found *findings) { f.anchor(found, cfg, Needs{}) }
	for _, c := range []struct {
		look              func(f *facts, found *findings)
		change            func(f *facts)
		name, level, text string
		mend              string
	}{
		{settings, func(f *facts) { f.WALLevel = "replica" }, "wal_level", "fail", "replica", "ALTER SYSTEM SET wal_level = 'logical'"},
		{settings, nil, "wal_level", "ok", "logical", ""},
		{settings, nil, "replication_slots", "ok", "1 of 10", ""},
		{settings, func(f *facts) { f.Slots = 10 }, "replication_slots", "warn", "all 10", "max_replication_slots = 15"},
		{settings, func(f *facts) { f.Slots, f.Slot = 10, nil }, "replication_slots", "fail", "needs one", "max_replication_slots = 15"},
		{settings, func(f *facts) { f.Senders = 10 }, "wal_senders", "warn", "all 10", "max_wal_senders = 15"},
		{settings, func(f *facts) { f.Senders, f.Slot.Holder = 10, "" }, "wal_senders", "fail", "needs one", "max_wal_senders = 15"},
		{settings, nil, "max_slot_wal_keep_size", "ok", "50GB", ""},
		{settings, func(f *facts) { f.KeepSize = -1 }, "max_slot_wal_keep_size", "warn", "no limit", "pg_reload_conf"},
		{settings, func(f *facts) { f.KeepSize, f.Keep = 100, "100MB" }, "max_slot_wal_keep_size", "warn", "100MB", "pg_reload_conf"},
		{settings, nil, "wal_sender_timeout", "ok", "1min", ""},
		{settings, func(f *facts) { f.Timeout = 0 }, "wal_sender_timeout", "warn", "held for ever", "'1min'"},
		{settings, func(f *facts) { f.Timeout, f.Patience = 1000, "1s" }, "wal_sender_timeout", "warn", "1s", "'1min'"},
		{settings, nil, "idle_replication_slot_timeout", "ok", "off", ""},
		{settings, func(f *facts) { f.Idle, f.IdleZero = "1h", false }, "idle_replication_slot_timeout", "warn", "1h", "= 0"},
		{role, nil, "privileges", "ok", "may stream", ""},
		{role, func(f *facts) { f.Streams = false }, "privileges", "fail", "may not stream", "ALTER ROLE relay REPLICATION"},
		{role, nil, "excess_privileges", "ok", "none", ""},
		{role, func(f *facts) { f.Super = true }, "excess_privileges", "warn", "SUPERUSER", "NOSUPERUSER"},
		{role, func(f *facts) { f.Bypass = true }, "excess_privileges", "warn", "BYPASSRLS", "NOBYPASSRLS"},
		{role, func(f *facts) { f.Creates = []string{"CREATEDB"} }, "excess_privileges", "warn", "CREATEDB", "NOCREATEDB"},
		{role, func(f *facts) { f.Member = []string{"pg_write_all_data"} }, "excess_privileges", "warn", "pg_write_all_data", "REVOKE pg_write_all_data FROM relay"},
		{role, func(f *facts) { f.Owner = true }, "excess_privileges", "warn", "owner", "OWNER TO"},
		{role, func(f *facts) { f.Writes = []string{"INSERT", "DELETE"} }, "excess_privileges", "warn", "INSERT on", "REVOKE INSERT ON public.outbox_event"},
		{role, func(f *facts) { f.Writes = []string{"DELETE"} }, "excess_privileges", "ok", "none", ""},
		{role, nil, "select", "ok", "may read", ""},
		{role, func(f *facts) { f.Reads = false }, "select", "ok", "not granted", ""},
		{txns, nil, "open_transactions", "ok", "five minutes", ""},
		{txns, func(f *facts) { f.SeesAll = false }, "open_transactions", "ok", "pg_read_all_stats", ""},
		{txns, func(f *facts) { f.Open = &open{PID: 9, Who: "app", Age: 20} }, "open_transactions", "ok", "", ""},
		{txns, func(f *facts) { f.Open = &open{PID: 9, Who: "app", Age: 3600} }, "open_transactions", "warn", "pid 9 (app) is open for 1h0m0s", "pg_terminate_backend(9)"},
		{txns, func(f *facts) { f.Open = &open{PID: 9, Txns: 2_000_000} }, "open_transactions", "warn", "2000000 younger", "pg_terminate_backend(9)"},
		{txns, func(f *facts) { f.Prepared = &open{Who: "gid'1", Age: 3600} }, "open_transactions", "warn", "prepared", "COMMIT PREPARED 'gid''1'"},
		{failover, nil, "failover", "ok", "no standby", ""},
		{failover, func(f *facts) { f.Standbys = 1 }, "failover", "warn", "does not outlive", "ALTER_REPLICATION_SLOT walrelay (FAILOVER true)"},
		{failover, func(f *facts) { f.Standbys, f.Version = 1, 160000 }, "failover", "warn", "before Postgres 17", "17 or later"},
		{failover, func(f *facts) { f.Version = 160000 }, "failover", "ok", "no standby", ""},
		{failover, func(f *facts) { f.Standbys, f.Slot.Failover = 1, true }, "failover", "warn", "synchronized_standby_slots is empty", "synchronized_standby_slots"},
		{failover, func(f *facts) { f.Standbys, f.Slot.Failover, f.Sync = 1, true, "s" }, "failover", "ok", "failover slot", ""},
		{anchor, nil, "anchor", "fail", `"walrelay_anchor" does not exist`, "walrelay setup"},
		{anchor, func(f *facts) { f.Anchor = &slotSet{WALStatus: "reserved"} }, "anchor", "ok", "reserved", ""},
		{anchor, func(f *facts) { f.Anchor = &slotSet{WALStatus: "lost"} }, "anchor", "fail", "gave slot", "pg_drop_replication_slot('walrelay_anchor')"},
		{unused, func(f *facts) { f.Anchor = &slotSet{WALStatus: "reserved"} }, "anchor", "warn", "nobody advances it", "pg_drop_replication_slot('walrelay_anchor')"},
	} {
		f, found := healthy(), findings{}
		if c.change != nil {
			c.change(&f)
		}
		c.look(&f, &found)
		got := sole(t, found, c.name)
		if got.Level != c.level || !strings.Contains(got.Text, c.text) || !strings.Contains(got.Mend, c.mend) || (got.Level != "ok" && got.Mend == "") {
			t.Errorf("%s: got %+v, want %s with %q and %q", c.name, got, c.level, c.text, c.mend)
		}
	}
}

func TestRefusalsShowTheirLineOfHBA(t *testing.T) {
	for refusal, want := range map[string]string{
		`no pg_hba.conf entry for host "10.0.0.7", user "relay", database "shop", no encryption`:         "host  shop  relay  10.0.0.7/32  scram-sha-256",
		`no pg_hba.conf entry for host "fd00::7", user "relay", database "shop", SSL encryption`:         "hostssl  shop  relay  fd00::7/128  scram-sha-256",
		`no pg_hba.conf entry for replication connection from host "10.0.0.7", user "r", SSL encryption`: "hostssl  replication  r  10.0.0.7/32  scram-sha-256",
		`no pg_hba.conf entry for host "[local]", user "relay", database "shop", no encryption`:          "local  shop  relay  scram-sha-256",
		`password authentication failed for user "relay"`:                                                "",
	} {
		if got := hbaLine(refusal); got != want {
			t.Errorf("%s: %q, want %q", refusal, got, want)
		}
	}
}

// A server that is not there, or does not let us in, is one line.
func TestExamineWithoutAServer(t *testing.T) {
	srv := newServer(t)
	srv.setAnswer("startup", pgErr("28000", `no pg_hba.conf entry for host "10.0.0.7", user "relay", database "appdb", no encryption`))
	o, err := NewObserver(srv.config())
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close(t.Context())
	found := o.Examine(t.Context(), Needs{})
	if len(found) != 1 || found[0].Name != "reachable" || found[0].Level != "fail" || !strings.Contains(found[0].Mend, "host  appdb  relay  10.0.0.7/32") {
		t.Errorf("%+v", found)
	}
}

// G8: an observer lives through a lost connection, and tells what it can't look at.
func TestObserverConnectsAgain(t *testing.T) {
	srv := newServer(t)
	srv.setAnswer("look", answer{row: []any{`{"version":"15.18","wal_end":"0/2000000","now":"2026-03-01T12:00:00+00:00","slots":{"walrelay":{"wal_status":"reserved","confirmed_flush_lsn":"0/1000100","catalog_xmin":"700"}}}`}})
	o, err := NewObserver(srv.config())
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close(t.Context())
	for range 2 {
		v, err := o.Look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if v.Slot == nil || v.Slot.Confirmed != 0x1000100 || v.Anchor != nil || v.Holder != nil || !v.Now.Equal(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)) {
			t.Errorf("%+v", v)
		}
		for _, c := range srv.conns {
			c.Close()
		}
	}
	v := &View{Slot: &SlotView{CatalogXID: "700"}}
	if _, err := o.Backlog(t.Context(), v, 0, "id", "at"); err == nil || !strings.Contains(err.Error(), "no table") {
		t.Errorf("no table: %v", err)
	}
	v.table, v.readable = "public.outbox_event", true
	srv.setAnswer("backlog", pgErr("57014", "canceling statement due to statement timeout"))
	if _, err := o.Backlog(t.Context(), v, 0, "id", "at"); err == nil || !strings.Contains(err.Error(), "takes longer than 3s") {
		t.Errorf("slow: %v", err)
	}
	v.Slot.CatalogXID = "1; DROP"
	if _, err := o.Backlog(t.Context(), v, 0, "id", "at"); err == nil || !strings.Contains(err.Error(), "nothing says") {
		t.Errorf("no xid: %v", err)
	}
}
