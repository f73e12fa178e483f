package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/walrelay/walrelay/relay"
)

func ptr[T any](v T) *T { return &v }

// fullReport has a value everywhere.
func fullReport() *relay.Report {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	return &relay.Report{
		Time: at, State: relay.Streaming, Source: "ab12cd34", Delivered: 0x1F69970,
		Server: relay.ReportServer{Version: "15.18 (Debian)", Database: "shop", SystemID: "7000000000000000001", Timeline: 1, WALEnd: 0x20081A8},
		Slot: &relay.ReportSlot{Name: "walrelay", Confirmed: 0x1F69970, Restart: 0x1F00000, WALStatus: "reserved",
			Retained: 1081768, Headroom: ptr(int64(1288490188))},
		Holder: &relay.ReportHolder{PID: 4711, Application: "walrelay", User: "relay", Address: "10.0.0.7", Since: ptr(at.Add(-9 * time.Minute)), State: "streaming"},
		Checkpoint: &relay.ReportPosition{Store: "file:walrelay.checkpoint", Safe: 0x1F69970, Commit: 0x1F69940, Committed: ptr(at.Add(-4 * time.Second)),
			OpenCommit: 0x1F80000, OpenRows: 12},
		Lag: relay.ReportLag{Bytes: ptr(int64(649272)), Events: ptr(int64(1251)), Seconds: ptr(3.2),
			Oldest: ptr("order-\x1b[2J1"), Written: ptr(at.Add(-3200 * time.Millisecond))},
		Replay: &relay.ReportWindow{Anchor: "walrelay_anchor", From: 0x1000000, To: 0x1F69970},
		Relay: &relay.Live{Address: "127.0.0.1:9464", PID: 99, Started: at.Add(-9 * time.Minute), SystemID: "7000000000000000001", Slot: "walrelay",
			Ready: true, Delivered: 0x1F69970, Saved: 0x1F69970, Oldest: 3.2, Fault: "sink: no answer", FaultTime: ptr(at.Add(-time.Minute))},
	}
}

const fullPage = `walrelay  streaming   2026-03-01 12:00:00 UTC
Postgres     15.18, database shop, system id 7000000000000000001, timeline 1
Slot         walrelay, reserved, held by pid 4711, walrelay, user relay, 10.0.0.7, since 11:51:00 (9 min)
Confirmed    0/1F69970
Checkpoint   0/1F69970  last transaction 0/1F69940, committed 11:59:56 (4.0 s ago), and 12 events of 0/1F80000
Delivered    0/1F69970
WAL end      0/20081A8
Lag          634 KiB of WAL, about 1,251 events, the oldest is 3.2 s old (order-�[2J1)
WAL kept     1.0 MiB, 1.2 GiB more until the server gives the slot up
Replay       from 0/1000000 to 0/1F69970 (anchor walrelay_anchor)
Source       ab12cd34 (header walrelay-source)
Relay        ready, pid 99 at 127.0.0.1:9464, started 11:51:00
Last error   11:59:00  sink: no answer
`

func TestStatusPage(t *testing.T) {
	var out bytes.Buffer
	if err := writeReport(&out, fullReport(), false, false); err != nil {
		t.Fatal(err)
	}
	if out.String() != fullPage {
		t.Errorf("got\n%s\nwant\n%s", out.String(), fullPage)
	}
}

// What is wrong is in the first line or in its own, in words.
func TestStatusPageNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		change func(r *relay.Report)
		want   string
	}{
		{func(r *relay.Report) { r.State = relay.Missing; r.Slot, r.Holder = nil, nil }, "walrelay setup"},
		{func(r *relay.Report) { r.State = relay.Lost; r.Slot.WALStatus = "lost" }, "gave the slot up"},
		{func(r *relay.Report) { r.State = relay.Standby }, "is a standby"},
		{func(r *relay.Report) { r.State = relay.Stopped; r.Holder = nil }, "nobody holds the slot"},
		{func(r *relay.Report) { r.Slot.WALStatus = "unreserved" }, "about to be given up"},
		{func(r *relay.Report) { r.Relay.Ready = false; r.Relay.Reason = "topic x is missing" }, "not ready: topic x is missing"},
		{func(r *relay.Report) { r.Relay, r.RelayError = nil, "nobody there" }, "Relay        nobody there"},
		{func(r *relay.Report) { r.Lag.Events, r.Lag.Unknown = nil, "no SELECT" }, "events unknown: no SELECT"},
		{func(r *relay.Report) { r.Lag.Exact, r.Lag.Events = true, ptr(int64(0)) }, "everything delivered"},
		{func(r *relay.Report) { r.Lag.Capped = true }, "more than 1,251 events"},
		{func(r *relay.Report) { r.Checkpoint.Error = "it is torn" }, "Checkpoint   it is torn"},
		{func(r *relay.Report) { r.Checkpoint.Safe = 0 }, "none at file:walrelay.checkpoint"},
		{func(r *relay.Report) { r.Slot.Headroom = nil }, "without limit"},
		{func(r *relay.Report) { r.Replay.Lost = true }, "gave the anchor walrelay_anchor up"},
	} {
		r := fullReport()
		c.change(r)
		var out bytes.Buffer
		if err := writeReport(&out, r, false, false); err != nil || !strings.Contains(out.String(), c.want) {
			t.Errorf("no %q in\n%s%v", c.want, out.String(), err)
		}
	}
}

const fullJSON = `{"time":"2026-03-01T12:00:00Z","state":"streaming","server":{"version":"15.18 (Debian)","database":"shop","system_id":"7000000000000000001","timeline":1,"wal_end_lsn":"0/20081A8"},` +
	`"source":"ab12cd34","slot":{"name":"walrelay","confirmed_lsn":"0/1F69970","restart_lsn":"0/1F00000","wal_status":"reserved","invalidation_reason":"","retained_bytes":1081768,"headroom_bytes":1288490188},` +
	`"holder":{"pid":4711,"application":"walrelay","user":"relay","address":"10.0.0.7","since":"2026-03-01T11:51:00Z","state":"streaming"},` +
	`"checkpoint":{"store":"file:walrelay.checkpoint","safe_lsn":"0/1F69970","last_commit_lsn":"0/1F69940","last_commit_time":"2026-03-01T11:59:56Z","open_commit_lsn":"0/1F80000","open_rows":12,"error":""},` +
	`"delivered_lsn":"0/1F69970","lag":{"bytes":649272,"events":1251,"events_exact":false,"events_capped":false,"seconds":3.2,"oldest_event_id":"order-\u001b[2J1","oldest_event_time":"2026-03-01T11:59:56.8Z","events_unknown":""},` +
	`"replay":{"anchor":"walrelay_anchor","from_lsn":"0/1000000","to_lsn":"0/1F69970","lost":false},` +
	`"relay":{"address":"127.0.0.1:9464","pid":99,"started":"2026-03-01T11:51:00Z","system_id":"7000000000000000001","slot":"walrelay","ready":true,"reason":"","delivered_lsn":"0/1F69970","saved_lsn":"0/1F69970","oldest_unpublished_seconds":3.2,"last_error":"sink: no answer","last_error_time":"2026-03-01T11:59:00Z"},` +
	`"relay_error":""}` + "\n"

// Scripts read this: a name that changes breaks them.
func TestStatusJSON(t *testing.T) {
	var out bytes.Buffer
	if err := writeReport(&out, fullReport(), true, true); err != nil {
		t.Fatal(err)
	}
	if out.String() != fullJSON {
		t.Errorf("got\n%s\nwant\n%s", out.String(), fullJSON)
	}
	out.Reset()
	if err := writeReport(&out, new(relay.Report), true, true); err != nil {
		t.Fatal(err)
	}
	for _, null := range []string{`"slot":null`, `"checkpoint":null`, `"delivered_lsn":null`, `"bytes":null`, `"relay":null`} {
		if !strings.Contains(out.String(), null) {
			t.Errorf("no %s in %s", null, out.String())
		}
	}
}

func TestAskRelay(t *testing.T) {
	answer := http.Handler(routes(false, prometheus.NewRegistry(), func() relay.Live { return *fullReport().Relay }))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer.ServeHTTP(w, r) }))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	for _, addr := range []string{"127.0.0.1:" + port, ":" + port, "0.0.0.0:" + port, "[::]:" + port} {
		live, err := askRelay(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		want := *fullReport().Relay
		want.Address = "127.0.0.1:" + port
		got, _ := json.Marshal(live)
		if wanted, _ := json.Marshal(want); !bytes.Equal(got, wanted) {
			t.Errorf("%s: got %s, want %s", addr, got, wanted)
		}
	}
	answer = http.NotFoundHandler()
	if _, err := askRelay(t.Context(), ":"+port); err == nil || !strings.Contains(err.Error(), "something else") {
		t.Errorf("another server: %v", err)
	}
	server.Close()
	if _, err := askRelay(t.Context(), ":"+port); err == nil || !strings.Contains(err.Error(), "no relay answers") {
		t.Errorf("nobody: %v", err)
	}
}

func TestTextForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 649272: "634 KiB", 3 << 40: "3.0 TiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := countText(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-1: "0 s", 1500 * time.Millisecond: "1.5 s", 90 * time.Second: "90 s", 5 * time.Minute: "5 min", 3 * time.Hour: "3 h", 72 * time.Hour: "3 days"} {
		if got := ageText(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}

// Colour is for terminals that want it.
func TestColour(t *testing.T) {
	s := screen{colour: true}
	if got := s.paint(red, "x"); got != "\x1b[31mx\x1b[0m" {
		t.Errorf("%q", got)
	}
	if newScreen(new(bytes.Buffer), true).colour {
		t.Error("colour where there is no terminal")
	}
}
