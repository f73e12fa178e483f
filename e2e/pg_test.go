package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/replication"
)

// pgTest is a database for package replication alone.
type pgTest struct {
	*testing.T
	ctx context.Context
	pg  *stack.Postgres
	cfg replication.Config
	db  *pgx.Conn // the superuser's
}

var pgTests atomic.Int32

func newPgTest(t *testing.T, pg *stack.Postgres) *pgTest {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	name := fmt.Sprintf("repl_%d", pgTests.Add(1))
	p := &pgTest{T: t, ctx: ctx, pg: pg, cfg: replication.Config{
		URL: pg.Direct(name), Table: replication.Table{Schema: "public", Name: "outbox_event"},
		Publication: name, Slot: name, Log: zerolog.Nop(),
	}}
	admin, err := pgx.Connect(ctx, pg.Direct("postgres"))
	p.must(err)
	defer admin.Close(ctx)
	_, err = admin.Exec(ctx, "CREATE DATABASE "+name)
	p.must(err)
	p.db, err = pgx.Connect(ctx, p.cfg.URL)
	p.must(err)
	t.Cleanup(func() {
		p.db.Close(ctx)
		admin, err := pgx.Connect(ctx, pg.Direct("postgres"))
		if err != nil {
			return // the test has stopped it
		}
		defer admin.Close(ctx)
		admin.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1", name)
		admin.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
	})
	return p
}

func (p *pgTest) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *pgTest) exec(sql string) {
	p.Helper()
	if _, err := p.db.Exec(p.ctx, sql); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
}

func (p *pgTest) value(sql string) (v string) {
	p.Helper()
	p.must(p.db.QueryRow(p.ctx, sql).Scan(&v))
	return v
}

func (p *pgTest) setup() {
	p.Helper()
	_, err := replication.Setup(p.ctx, p.cfg, replication.SetupOptions{CreateTable: true})
	p.must(err)
}

func (p *pgTest) open() *replication.Session {
	p.Helper()
	s, err := replication.Open(p.ctx, p.cfg)
	p.must(err)
	p.Cleanup(func() { s.Close(p.ctx) })
	return s
}

// row reads until an Insert comes.
func (p *pgTest) row(s *replication.Session) {
	p.Helper()
	for {
		m, err := s.Next()
		p.must(err)
		if m.Kind == replication.Data && m.WAL[0] == 'I' {
			return
		}
	}
}

// past reads, confirms nothing, until the stream has gone by an LSN of now.
func (p *pgTest) past(s *replication.Session) {
	p.Helper()
	end, err := s.Marker(p.ctx)
	p.must(err)
	for {
		m, err := s.Next()
		p.must(err)
		if m.Kind == replication.Keepalive && m.WALEnd >= end {
			return
		}
	}
}

// What setup makes is enough for the role that it makes; doing it again changes nothing.
func TestPgSetup(t *testing.T) {
	pg, err := sharedPostgres()
	if err != nil {
		t.Fatal(err)
	}
	p := newPgTest(t, pg)
	role := p.cfg.Slot + " role"
	t.Cleanup(func() { p.db.Exec(p.ctx, `DROP OWNED BY "`+role+`"; DROP ROLE "`+role+`"`) })
	opts := replication.SetupOptions{CreateTable: true, Role: role}
	for round := range 2 {
		steps, err := replication.Setup(p.ctx, p.cfg, opts)
		p.must(err)
		if len(steps) != 6 {
			t.Errorf("%d steps", len(steps))
		}
		for _, step := range steps {
			inherent := strings.HasPrefix(step.Name, "CONNECT") || strings.HasPrefix(step.Name, "USAGE") // PUBLIC may have it
			if step.Done != (round == 1) && !inherent || step.Done == step.Made {
				t.Errorf("round %d: %+v", round, step)
			}
		}
	}
	p.exec(`ALTER ROLE "` + role + `" PASSWORD 'pass'`)
	p.cfg.URL = pg.UserURL(role, "pass", p.cfg.Slot)
	s := p.open()
	p.exec("INSERT INTO outbox_event (aggregate_type, aggregate_id) VALUES ('order', '1')")
	p.row(s)
	p.must(s.Verify(p.ctx))
	p.must(s.HoldsSlot(p.ctx))
	p.past(s)
	if _, err := s.WALPosition(p.ctx); err != nil {
		t.Error(err)
	}
	if _, _, err := s.Headroom(p.ctx); err != nil {
		t.Error(err)
	}
}

// What setup may not do it names, with SQL that does it.
func TestPgSetupWithoutPrivileges(t *testing.T) {
	pg, err := sharedPostgres()
	if err != nil {
		t.Fatal(err)
	}
	p := newPgTest(t, pg)
	role := p.cfg.Slot + "_nobody"
	p.exec("CREATE ROLE " + role + " LOGIN PASSWORD 'pass'")
	p.exec("REVOKE CREATE ON SCHEMA public FROM PUBLIC") // as from 15 on
	t.Cleanup(func() { p.db.Exec(p.ctx, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	cfg := p.cfg
	cfg.URL = pg.UserURL(role, "pass", p.cfg.Slot)
	opts := replication.SetupOptions{CreateTable: true, Role: p.cfg.Slot + "_relay"}
	t.Cleanup(func() { p.db.Exec(p.ctx, "DROP OWNED BY "+opts.Role+"; DROP ROLE "+opts.Role) })
	_, err = replication.Setup(p.ctx, cfg, opts)
	var denied *replication.AuthError
	if !errors.As(err, &denied) {
		t.Fatalf("got %v", err)
	}
	_, script, _ := strings.Cut(denied.Remedy, "\n")
	for sql := range strings.SplitSeq(script, ";\n") {
		if !strings.Contains(sql, "$$") {
			p.exec(sql)
		}
	}
	steps, err := replication.Setup(p.ctx, cfg, opts)
	if err != nil {
		t.Errorf("after the SQL was run: %+v, %v", steps, err)
	}
}

// A slot that can't be created yet says what it waits for, and giving up leaves none
// behind.
func TestPgSetupWaitsForTransactions(t *testing.T) {
	pg, err := sharedPostgres()
	if err != nil {
		t.Fatal(err)
	}
	p := newPgTest(t, pg)
	other, err := pgx.Connect(p.ctx, p.cfg.URL+"&application_name=long-batch")
	p.must(err)
	defer other.Close(p.ctx)
	_, err = other.Exec(p.ctx, "BEGIN; CREATE TABLE t(); ")
	p.must(err)
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	_, err = replication.Setup(ctx, p.cfg, replication.SetupOptions{CreateTable: true})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", other.PgConn().PID())) || !strings.Contains(err.Error(), "long-batch") {
		t.Errorf("got %v", err)
	}
	_, err = other.Exec(p.ctx, "ROLLBACK")
	p.must(err)
	if n := p.value("SELECT count(*)::text FROM pg_replication_slots WHERE database = current_database()"); n != "0" {
		t.Errorf("%s slots are left behind", n)
	}
	p.setup()
}

// G1: every state of the catalog in which rows would be skipped is refused at the
// start, as the real catalog shows it.
func TestPgRefusals(t *testing.T) {
	pg, err := sharedPostgres()
	if err != nil {
		t.Fatal(err)
	}
	p := newPgTest(t, pg)
	p.setup()
	pub := p.cfg.Publication
	for _, tt := range []struct{ break_, mend, text string }{
		{"ALTER PUBLICATION " + pub + " DROP TABLE outbox_event", "ALTER PUBLICATION " + pub + " ADD TABLE outbox_event", "ADD TABLE"},
		{"ALTER PUBLICATION " + pub + " SET (publish = 'update')", "ALTER PUBLICATION " + pub + " SET (publish = 'insert')", "inserts"},
		{"ALTER PUBLICATION " + pub + " RENAME TO elsewhere", "ALTER PUBLICATION elsewhere RENAME TO " + pub, "does not exist"},
		{"ALTER TABLE outbox_event RENAME TO elsewhere", "ALTER TABLE elsewhere RENAME TO outbox_event", "does not exist"},
		{"ALTER PUBLICATION " + pub + " SET TABLE outbox_event WHERE (event_type = 'x')", "ALTER PUBLICATION " + pub + " SET TABLE outbox_event", "row filter"},
	} {
		if pg.Version < "15" && strings.Contains(tt.break_, "WHERE") {
			continue
		}
		p.exec(tt.break_)
		_, err := replication.Open(p.ctx, p.cfg)
		if !errors.As(err, new(*replication.ContinuityError)) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v", tt.break_, err)
		}
		p.exec(tt.mend)
	}

	// Partitioned, and under the names of the partitions at first.
	p.exec("CREATE TABLE parts (event_id text, created_at timestamptz) PARTITION BY RANGE (created_at);" +
		" CREATE TABLE parts_1 PARTITION OF parts DEFAULT;" +
		" CREATE PUBLICATION " + pub + "_parts FOR TABLE parts WITH (publish = 'insert')")
	parts := p.cfg
	parts.Table.Name, parts.Publication = "parts", pub+"_parts"
	if _, err := replication.Open(p.ctx, parts); err == nil || !strings.Contains(err.Error(), "publish_via_partition_root = true") {
		t.Errorf("partitions: %v", err)
	}
	p.exec("ALTER PUBLICATION " + pub + "_parts SET (publish_via_partition_root = true)")

	// What is wider than need be works, with a warning.
	p.exec("CREATE PUBLICATION " + pub + "_all FOR ALL TABLES")
	wide := []string{pub + "_all"}
	if pg.Version >= "15" {
		p.exec("CREATE PUBLICATION " + pub + "_schema FOR TABLES IN SCHEMA public; CREATE PUBLICATION " + pub + "_list FOR TABLE outbox_event (event_id, payload)")
		wide = append(wide, pub+"_schema", pub+"_list")
	}
	for _, name := range wide {
		cfg := p.cfg
		cfg.Publication = name
		s, err := replication.Open(p.ctx, cfg)
		p.must(err)
		if len(s.Warnings) == 0 || (len(s.Columns) == 2) != strings.HasSuffix(name, "_list") {
			t.Errorf("%s: warnings %q, columns %v", name, s.Warnings, s.Columns)
		}
		p.must(s.Verify(p.ctx))
		p.must(s.Close(p.ctx))
	}

	for sql, text := range map[string]string{
		"SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)": "two-phase",
		"SELECT pg_create_physical_replication_slot($1)":                         "physical",
	} {
		cfg := p.cfg
		cfg.Slot += "_" + text[:3]
		_, err := p.db.Exec(p.ctx, sql, cfg.Slot)
		p.must(err)
		if _, err := replication.Open(p.ctx, cfg); !errors.As(err, new(*replication.ContinuityError)) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
		p.exec("SELECT pg_drop_replication_slot('" + cfg.Slot + "')")
	}
}

// G1: what changes under a running stream is found by Verify, although the stream is
// silent about it.
func TestPgVerify(t *testing.T) {
	pg, err := sharedPostgres()
	if err != nil {
		t.Fatal(err)
	}
	p := newPgTest(t, pg)
	p.setup()
	pub := p.cfg.Publication
	for _, tt := range []struct{ sql, text string }{
		{"ALTER TABLE outbox_event ADD COLUMN more text", ""},
		{"ALTER TABLE outbox_event DROP COLUMN more", ""},
		{"ALTER PUBLICATION " + pub + " DROP TABLE outbox_event; ALTER PUBLICATION " + pub + " ADD TABLE outbox_event", "came back"},
		{"DROP PUBLICATION " + pub + "; CREATE PUBLICATION " + pub + " FOR TABLE outbox_event WITH (publish = 'insert')", "replaced"},
		{"DROP TABLE outbox_event; CREATE TABLE outbox_event (event_id text)", "does not hold"},
	} {
		s, err := replication.Open(p.ctx, p.cfg)
		p.must(err)
		p.exec(tt.sql)
		switch err := s.Verify(p.ctx); {
		case tt.text == "":
			p.must(err)
		case !errors.As(err, new(*replication.ContinuityError)) || !strings.Contains(err.Error(), tt.text):
			t.Errorf("%s: %v", tt.sql, err)
		}
		p.must(s.Close(p.ctx))
	}
}

// G1: a publication that is dropped under the stream ends it, whether the server calls
// that an error (until 17) or a notice, with which it would skip our rows (18).
func TestPgPublicationDropped(t *testing.T) {
	pg, err := sharedPostgres()
	if err != nil {
		t.Fatal(err)
	}
	p := newPgTest(t, pg)
	p.setup()
	s := p.open()
	p.exec("INSERT INTO outbox_event (aggregate_id) VALUES ('1')")
	p.row(s)
	p.exec("DROP PUBLICATION " + p.cfg.Publication)
	p.exec("INSERT INTO outbox_event (aggregate_id) VALUES ('2')")
	defer time.AfterFunc(20*time.Second, s.Wake).Stop()
	for err == nil {
		var m replication.Message
		if m, err = s.Next(); m.Kind == replication.Woken {
			t.Fatal("the stream goes on")
		}
	}
	if !errors.As(err, new(*replication.ContinuityError)) {
		t.Errorf("got %v", err)
	}
}

// A walsender that is terminated is an ordinary fault; a slot that the server gave up
// is none.
func TestPgTerminatedAndLost(t *testing.T) {
	pg := ownPostgres(t, map[string]string{"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"})
	p := newPgTest(t, pg)
	p.setup()
	s := p.open()
	p.exec(fmt.Sprintf("SELECT pg_terminate_backend(%d)", s.PID))
	var err error
	for err == nil {
		_, err = s.Next()
	}
	if errors.As(err, new(*replication.ContinuityError)) || !strings.Contains(err.Error(), "terminat") {
		t.Errorf("terminated: %v", err)
	}
	s.Close(p.ctx)
	p.must(p.open().Close(p.ctx))
	for range 4 {
		p.exec("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
		p.exec("CHECKPOINT")
	}
	_, err = replication.Open(p.ctx, p.cfg)
	if !errors.As(err, new(*replication.ContinuityError)) || !strings.Contains(err.Error(), "invalidated") {
		t.Errorf("lost: %v", err)
	}
}

// G3: only what is confirmed is freed, and a graceful end leaves nothing to repeat. A
// second session waits, and is told for whom.
func TestPgConfirm(t *testing.T) {
	pg, err := sharedPostgres()
	if err != nil {
		t.Fatal(err)
	}
	p := newPgTest(t, pg)
	p.setup()
	confirmed := func() string {
		return p.value("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '" + p.cfg.Slot + "'")
	}
	s := p.open()
	before := confirmed()
	p.exec("INSERT INTO outbox_event (aggregate_id) VALUES ('1')")
	p.row(s)
	p.past(s)
	if now := confirmed(); now != before || s.Slot.Confirmed.String() != before {
		t.Errorf("confirmed moved from %s (%s) to %s", before, s.Slot.Confirmed, now)
	}
	_, err = replication.Open(p.ctx, p.cfg)
	if !errors.Is(err, replication.ErrSlotInUse) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", s.PID)) {
		t.Errorf("a second session: %v", err)
	}
	end, err := s.WALPosition(p.ctx)
	p.must(err)
	s.Confirm(end)
	p.must(s.Close(p.ctx))
	if now := confirmed(); now != end.String() {
		t.Errorf("confirmed %s, the slot is at %s", end, now)
	}
	p.must(p.open().Verify(p.ctx)) // the slot is free at once
}

// G8: a server that shuts down is not held up by what is still undelivered.
func TestPgFastShutdown(t *testing.T) {
	pg := ownPostgres(t, nil)
	p := newPgTest(t, pg)
	p.setup()
	s := p.open()
	p.exec("INSERT INTO outbox_event (aggregate_id) VALUES ('1')")
	p.row(s)
	stopped := make(chan error, 1)
	began := time.Now()
	go func() { stopped <- pg.Stop(p.ctx, stack.Fast) }()
	for {
		if _, err := s.Next(); err != nil {
			if !errors.Is(err, replication.ErrShutdown) {
				t.Errorf("got %v", err)
			}
			break
		}
	}
	s.Close(p.ctx)
	p.must(<-stopped)
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("the server needed %s", d)
	}
	p.must(pg.Start(p.ctx))
	var err error
	p.db, err = pgx.Connect(p.ctx, p.cfg.URL)
	p.must(err)
	p.row(p.open()) // it comes again
}

// Over TLS, over a unix socket, and with a server that never asks.
func TestPgTransports(t *testing.T) {
	pg := ownPostgres(t, map[string]string{"wal_sender_timeout": "0"})
	p := newPgTest(t, pg)
	p.setup()
	p.must(pg.Stop(p.ctx, stack.Fast))
	writeCertificate(p, pg.DataDir())
	p.must(pg.Configure(map[string]string{"ssl": "on", "unix_socket_directories": pg.DataDir()}))
	p.must(pg.Start(p.ctx))
	var err error
	p.db, err = pgx.Connect(p.ctx, p.cfg.URL)
	p.must(err)
	config, err := pgx.ParseConfig(p.cfg.URL)
	p.must(err)
	for name, url := range map[string]string{
		"tls":  strings.Replace(p.cfg.URL, "sslmode=disable", "sslmode=require", 1),
		"unix": fmt.Sprintf("host=%s port=%d user=postgres password=postgres dbname=%s", pg.DataDir(), config.Port, p.cfg.Slot),
	} {
		p.cfg.URL = url
		s := p.open()
		if s.Server.WALSenderTimeout != 0 {
			t.Errorf("%s: wal_sender_timeout is %s", name, s.Server.WALSenderTimeout)
		}
		if got := p.value(fmt.Sprintf("SELECT ssl::text FROM pg_stat_ssl WHERE pid = %d", s.PID)); got != fmt.Sprint(name == "tls") {
			t.Errorf("%s: TLS is %s", name, got)
		}
		const rows = 20000
		p.exec(fmt.Sprintf("INSERT INTO outbox_event (aggregate_id, payload) SELECT g::text, to_jsonb(repeat('x', 1 + g %% 3000)) FROM generate_series(1, %d) g", rows))
		for range rows {
			p.row(s)
		}
		end, err := s.WALPosition(p.ctx)
		p.must(err)
		s.Confirm(end)
		p.must(s.Close(p.ctx))
	}
}

// writeCertificate puts a key and a certificate where the server looks for them, as
// the owner of the folder.
func writeCertificate(p *pgTest, dir string) {
	p.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p.must(err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	p.must(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	p.must(err)
	info, err := os.Stat(dir)
	p.must(err)
	owner := info.Sys().(*syscall.Stat_t)
	for name, block := range map[string]*pem.Block{
		"server.crt": {Type: "CERTIFICATE", Bytes: cert}, "server.key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		path := filepath.Join(dir, name)
		p.must(os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
		p.must(os.Chown(path, int(owner.Uid), int(owner.Gid)))
	}
}
