package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/relay"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

// checkLine is one line of `walrelay check --json`.
type checkLine struct {
	Group  string
	Check  string
	Status string
	Text   string
	Fix    string
}

// examine looks at a database as check does.
func (p *pgTest) examine(cfg replication.Config, needs replication.Needs) []replication.Finding {
	p.Helper()
	o, err := replication.NewObserver(cfg)
	p.must(err)
	defer o.Close(p.ctx)
	return o.Examine(p.ctx, needs)
}

// finds fails unless there is a finding of the name and level with the texts.
func finds(t *testing.T, found []replication.Finding, name, level, text, mend string) {
	t.Helper()
	for _, f := range found {
		if f.Name == name && f.Level == level && strings.Contains(f.Text, text) && strings.Contains(f.Mend, mend) {
			return
		}
	}
	t.Errorf("no %s %s with %q and %q in\n%+v", level, name, text, mend, found)
}

// Each thing that check looks for in Postgres is provoked on a real server, and found; mended, it is gone.
func TestCheckFindsWhatIsPlanted(t *testing.T) {
	pg, err := startPostgres(map[string]string{"max_replication_slots": "4", "max_wal_senders": "4", "max_slot_wal_keep_size": "50GB", "max_prepared_transactions": "2"})
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close()
	p := newPgTest(t, pg)
	decoder, err := decode.New(decode.Config{Schema: "public", Table: "outbox_event"})
	p.must(err)
	needs := replication.Needs{Fits: relay.Config{Decoder: decoder}.Fits}
	pub, slot := p.cfg.Publication, p.cfg.Slot
	reload := func(setting string) []string {
		return []string{"ALTER SYSTEM SET " + setting, "SELECT pg_reload_conf()"}
	}

	finds(t, p.examine(p.cfg, needs), "publication", "fail", "does not exist", "walrelay setup")
	p.setup()
	p.exec("CREATE TABLE other (id int); CREATE TABLE wide (id int)")
	plainRole := func(change string) string {
		return "CREATE ROLE checked LOGIN PASSWORD 'x' REPLICATION; " + change
	}
	const dropRole = "REASSIGN OWNED BY checked TO CURRENT_USER; DROP OWNED BY checked; DROP ROLE checked"

	for _, c := range []struct {
		plant, mend       []string
		as                string // the role that looks; "" = a superuser
		anchor            bool
		name, level, text string
		fix               string
	}{
		{plant: nil, name: "excess_privileges", level: "warn", text: "SUPERUSER", fix: "NOSUPERUSER"},
		{plant: nil, name: "slot", level: "ok", text: "free"},
		{plant: nil, name: "max_slot_wal_keep_size", level: "ok", text: "50GB"},
		{plant: []string{"ALTER PUBLICATION " + pub + " ADD TABLE other, wide"}, mend: []string{"ALTER PUBLICATION " + pub + " SET TABLE outbox_event"},
			name: "publication", level: "warn", text: "2 more tables (public.other, public.wide)", fix: "SET TABLE public.outbox_event"},
		{plant: []string{"ALTER PUBLICATION " + pub + " DROP TABLE outbox_event"}, mend: []string{"ALTER PUBLICATION " + pub + " ADD TABLE outbox_event"},
			name: "publication", level: "fail", text: "does not hold", fix: "ADD TABLE public.outbox_event"},
		{plant: []string{"ALTER PUBLICATION " + pub + " SET (publish = 'insert, update')"}, mend: []string{"ALTER PUBLICATION " + pub + " SET (publish = 'insert')"},
			name: "publish_actions", level: "warn", text: "update", fix: "SET (publish = 'insert')"},
		{plant: []string{"ALTER PUBLICATION " + pub + " SET (publish = 'delete')"}, mend: []string{"ALTER PUBLICATION " + pub + " SET (publish = 'insert')"},
			name: "publication", level: "fail", text: "does not publish inserts", fix: "SET (publish = 'insert')"},
		{plant: []string{"ALTER PUBLICATION " + pub + " SET TABLE outbox_event WHERE (event_id <> '')"}, mend: []string{"ALTER PUBLICATION " + pub + " SET TABLE outbox_event"},
			name: "publication", level: "fail", text: "row filter", fix: "SET TABLE public.outbox_event"},
		{plant: []string{"ALTER PUBLICATION " + pub + " SET TABLE outbox_event (event_id, aggregate_type, aggregate_id, payload)"}, mend: []string{"ALTER PUBLICATION " + pub + " SET TABLE outbox_event"},
			name: "column_list", level: "warn", text: "event_type", fix: "SET TABLE public.outbox_event"},
		{plant: []string{"ALTER PUBLICATION " + pub + " SET TABLE outbox_event (event_id, aggregate_id)"}, mend: []string{"ALTER PUBLICATION " + pub + " SET TABLE outbox_event"},
			name: "columns", level: "fail", text: `"payload"`, fix: "--column payload="},
		{plant: []string{"ALTER TABLE outbox_event ALTER payload TYPE int USING 0"}, mend: []string{"ALTER TABLE outbox_event ALTER payload TYPE jsonb USING 'null'"},
			name: "columns", level: "fail", text: "can't be carried", fix: "json"},
		{plant: []string{"ALTER PUBLICATION " + pub + " DROP TABLE outbox_event", "ALTER TABLE outbox_event SET UNLOGGED"},
			mend: []string{"ALTER TABLE outbox_event SET LOGGED", "ALTER PUBLICATION " + pub + " ADD TABLE outbox_event"},
			name: "publication", level: "fail", text: "unlogged", fix: "SET LOGGED"},
		{plant: reload("max_slot_wal_keep_size = -1"), mend: reload("max_slot_wal_keep_size = '50GB'"), name: "max_slot_wal_keep_size", level: "warn", text: "no limit", fix: "ALTER SYSTEM"},
		{plant: reload("max_slot_wal_keep_size = '100MB'"), mend: reload("max_slot_wal_keep_size = '50GB'"), name: "max_slot_wal_keep_size", level: "warn", text: "100MB", fix: "ALTER SYSTEM"},
		{plant: reload("wal_sender_timeout = 0"), mend: reload("wal_sender_timeout = '1min'"), name: "wal_sender_timeout", level: "warn", text: "for ever", fix: "ALTER SYSTEM"},
		{plant: []string{"SELECT pg_create_physical_replication_slot('p1'), pg_create_physical_replication_slot('p2'), pg_create_physical_replication_slot('p3')"},
			mend: []string{"SELECT pg_drop_replication_slot('p1'), pg_drop_replication_slot('p2'), pg_drop_replication_slot('p3')"},
			name: "replication_slots", level: "warn", text: "all 4", fix: "max_replication_slots"},
		{plant: []string{plainRole("")}, mend: []string{dropRole}, as: "checked", name: "excess_privileges", level: "ok", text: "none"},
		{plant: []string{plainRole("")}, mend: []string{dropRole}, as: "checked", name: "replication_connection", level: "ok", text: "accepted"},
		{plant: []string{plainRole("")}, mend: []string{dropRole}, as: "checked", name: "select", level: "ok", text: "not granted"},
		{plant: []string{plainRole("GRANT INSERT ON outbox_event TO checked")}, mend: []string{dropRole}, as: "checked", name: "excess_privileges", level: "warn", text: "INSERT", fix: "REVOKE INSERT"},
		{plant: []string{plainRole("GRANT pg_write_all_data TO checked")}, mend: []string{dropRole}, as: "checked", name: "excess_privileges", level: "warn", text: "pg_write_all_data", fix: "REVOKE"},
		{plant: []string{plainRole("ALTER ROLE checked BYPASSRLS CREATEDB")}, mend: []string{dropRole}, as: "checked", name: "excess_privileges", level: "warn", text: "BYPASSRLS, CREATEDB", fix: "NOBYPASSRLS; ALTER ROLE checked NOCREATEDB"},
		{plant: []string{plainRole("ALTER ROLE checked NOREPLICATION")}, mend: []string{dropRole}, as: "checked", name: "privileges", level: "fail", text: "may not stream", fix: "ALTER ROLE checked REPLICATION"},
		{plant: []string{plainRole("ALTER ROLE checked NOREPLICATION")}, mend: []string{dropRole}, as: "checked", name: "replication_connection", level: "fail", text: "42501", fix: "REPLICATION"},
		{plant: nil, as: "nobody", name: "reachable", level: "fail", text: "28", fix: "pg_hba.conf"},
		{plant: nil, anchor: true, name: "anchor", level: "fail", text: "does not exist", fix: "walrelay setup"},
		{plant: []string{"SELECT pg_create_logical_replication_slot('" + slot + "_anchor', 'pgoutput')"}, mend: []string{"SELECT pg_drop_replication_slot('" + slot + "_anchor')"},
			anchor: true, name: "anchor", level: "ok", text: "reserved"},
		{plant: []string{"SELECT pg_drop_replication_slot('" + slot + "')"}, mend: []string{"SELECT pg_create_logical_replication_slot('" + slot + "', 'pgoutput')"},
			name: "slot", level: "fail", text: "does not exist", fix: "walrelay setup"},
		{plant: []string{"SELECT pg_drop_replication_slot('" + slot + "')", "SELECT pg_create_logical_replication_slot('" + slot + "', 'pgoutput', false, true)"},
			mend: []string{"SELECT pg_drop_replication_slot('" + slot + "')", "SELECT pg_create_logical_replication_slot('" + slot + "', 'pgoutput')"},
			name: "slot", level: "fail", text: "two-phase", fix: "pg_drop_replication_slot"},
	} {
		for _, sql := range c.plant {
			p.exec(sql)
		}
		cfg, needs := p.cfg, needs
		if c.as != "" {
			cfg.URL = strings.Replace(cfg.URL, "postgres:postgres@", c.as+":x@", 1)
		}
		needs.Anchor = c.anchor
		finds(t, p.examine(cfg, needs), c.name, c.level, c.text, c.fix)
		for _, sql := range c.mend {
			p.exec(sql)
		}
	}
	for _, f := range p.examine(p.cfg, needs) {
		if f.Level != "ok" && f.Name != "excess_privileges" {
			t.Errorf("after all is mended: %+v", f)
		}
	}
	p.checkSenders(needs)
	p.checkIdleTimeout(needs)
	p.checkOpenTransaction()
	p.checkHBA()
	p.checkGivenUp(needs)
}

// until polls.
func (p *pgTest) until(what string, ok func() bool) {
	p.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			p.Fatal("not within 20 s: " + what)
		}
	}
}

// checkSenders takes all walsenders.
func (p *pgTest) checkSenders(needs replication.Needs) {
	p.Helper()
	cfg, err := pgconn.ParseConfig(p.cfg.URL)
	p.must(err)
	cfg.RuntimeParams["replication"] = "database"
	for range 4 {
		conn, err := pgconn.ConnectConfig(p.ctx, cfg)
		p.must(err)
		defer conn.Close(p.ctx)
	}
	found := p.examine(p.cfg, needs)
	finds(p.T, found, "wal_senders", "fail", "all 4", "max_wal_senders")
	finds(p.T, found, "replication_connection", "fail", "max_wal_senders", "")
}

// checkIdleTimeout: only Postgres 18 has it, and others say nothing of it.
func (p *pgTest) checkIdleTimeout(needs replication.Needs) {
	p.Helper()
	if p.value("SELECT (current_setting('server_version_num')::int >= 180000)::text") != "true" {
		for _, f := range p.examine(p.cfg, needs) {
			if f.Name == "idle_replication_slot_timeout" {
				p.Errorf("%+v", f)
			}
		}
		return
	}
	p.exec("ALTER SYSTEM SET idle_replication_slot_timeout = '1h'")
	p.exec("SELECT pg_reload_conf()")
	finds(p.T, p.examine(p.cfg, needs), "idle_replication_slot_timeout", "warn", "loses the slot", "idle_replication_slot_timeout = 0")
}

// checkOpenTransaction: the oldest transaction that has written is seen, by everybody. That it
// is open for long enough to be reported can't be waited for.
func (p *pgTest) checkOpenTransaction() {
	p.Helper()
	conn, err := pgx.Connect(p.ctx, p.cfg.URL)
	p.must(err)
	defer conn.Close(p.ctx)
	_, err = conn.Exec(p.ctx, "BEGIN; INSERT INTO other VALUES (1); SAVEPOINT s; INSERT INTO other VALUES (2)")
	p.must(err)
	finds(p.T, p.examine(p.cfg, replication.Needs{}), "open_transactions", "ok", "", "")
}

// checkHBA: the refusal shows the line that lets the role in.
func (p *pgTest) checkHBA() {
	p.Helper()
	p.exec("CREATE ROLE locked_out LOGIN REPLICATION PASSWORD 'x'")
	p.exec("CREATE TABLE hba (line text)")
	hba := p.value("SHOW hba_file")
	p.exec("COPY (SELECT 'host all postgres all trust') TO '" + hba + "'")
	p.exec("SELECT pg_reload_conf()")
	cfg := p.cfg
	cfg.URL = strings.Replace(cfg.URL, "postgres:postgres@", "locked_out:x@", 1)
	want := fmt.Sprintf("host  %s  locked_out  127.0.0.1/32  scram-sha-256", p.cfg.Slot)
	p.until("the server has read pg_hba.conf", func() bool {
		return slices.ContainsFunc(p.examine(cfg, replication.Needs{}), func(f replication.Finding) bool {
			return f.Name == "reachable" && f.Level == "fail" && strings.Contains(f.Mend, want)
		})
	})
}

// checkGivenUp lets the server write more WAL than a slot may keep.
func (p *pgTest) checkGivenUp(needs replication.Needs) {
	p.Helper()
	p.exec("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
	p.exec("SELECT pg_reload_conf()")
	p.exec("SELECT pg_create_logical_replication_slot('" + p.cfg.Slot + "_anchor', 'pgoutput')")
	for range 4 {
		p.exec("INSERT INTO other VALUES (3)")
		p.exec("SELECT pg_switch_wal()")
	}
	p.until("the slot is to be given up", func() bool {
		return p.value("SELECT wal_status FROM pg_replication_slots WHERE slot_name = '"+p.cfg.Slot+"'") == "unreserved"
	})
	finds(p.T, p.examine(p.cfg, needs), "slot", "fail", "about to be given up", "max_slot_wal_keep_size")
	p.exec("CHECKPOINT")
	needs.Anchor = true
	found := p.examine(p.cfg, needs)
	finds(p.T, found, "slot", "fail", "invalidated", "walrelay recover")
	finds(p.T, found, "anchor", "fail", "nothing can be replayed", "walrelay setup")
}

// Check as a command: fine beside a relay that runs, which it does not disturb, and 1 when something is wrong.
func TestCheckBesideARunningRelay(t *testing.T) {
	f := newFixture(t, option{direct: true, args: []string{"--allow-weak-topics"}})
	f.up()
	f.insert("first")
	check := func(code int, args ...string) (lines []checkLine) {
		t.Helper()
		res, err := f.relay.Command(f.ctx, "check", append([]string{"--json"}, args...)...)
		f.must(err)
		var doc struct {
			OK     bool
			Checks []checkLine
		}
		f.must(json.Unmarshal([]byte(res.Stdout), &doc))
		if res.Code != code || doc.OK != (code == 0) {
			t.Errorf("exit %d, ok %v\n%s%s", res.Code, doc.OK, res.Stdout, res.Stderr)
		}
		return doc.Checks
	}
	has := func(lines []checkLine, name, status, text, fix string) {
		t.Helper()
		if !slices.ContainsFunc(lines, func(l checkLine) bool {
			return l.Check == name && l.Status == status && strings.Contains(l.Text, text) && strings.Contains(l.Fix, fix)
		}) {
			t.Errorf("no %s %s with %q in %+v", status, name, text, lines)
		}
	}
	lines := check(0)
	has(lines, "slot", "ok", "in use by pid", "")
	has(lines, "rows", "ok", "largest payload", "")
	has(lines, "idempotent_write", "ok", "allowed", "")

	// The names are what scripts look for.
	var names []string
	for _, l := range lines {
		if name := l.Group + "." + l.Check; !slices.Contains(names, name) && l.Check != "idle_replication_slot_timeout" {
			names = append(names, name)
		}
	}
	const want = "postgres.reachable postgres.version postgres.wal_level postgres.replication_slots postgres.wal_senders postgres.max_slot_wal_keep_size" +
		" postgres.wal_sender_timeout postgres.privileges postgres.excess_privileges postgres.select postgres.replication_connection" +
		" postgres.publication postgres.publish_actions postgres.column_list postgres.columns postgres.slot postgres.open_transactions postgres.failover" +
		" postgres.checkpoint postgres.rows kafka.broker kafka.cluster kafka.durability kafka.idempotent_write"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("checks\n%s\nwant\n%s", got, want)
	}

	f.exec(f.name, "INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, payload) VALUES ('last', $1, 'k', '{}')", f.types[1])
	f.exec(f.name, "INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, payload) VALUES ('big', $1, 'k', to_jsonb(repeat('x', 700000)))", f.types[0])
	has(check(1, "--topic-allow", "missing.one,outbox.event.*"), "topic", "fail", "missing.one does not exist", "kafka-topics.sh --bootstrap-server")
	has(check(0), "max_message_bytes", "warn", "more than half", "max.message.bytes")
	has(check(0, "--topic-allow", "missing.one,outbox.event.*", "--create-topics", "2:1"), "topic", "ok", "will create it", "")
	has(check(0, "--topic-allow", f.topics()[0]), "rows", "warn", "not on the allow-list", "--topic-allow")
	has(check(1, "--kafka-brokers", "127.0.0.1:1"), "broker", "fail", "connection refused", "--kafka-brokers")
	has(check(1, "--postgres-url", "postgres://127.0.0.1:1/x"), "reachable", "fail", "connection refused", "")
	f.drain()
	f.stop()
	f.noRepeats()

	// Somebody moves the slot while the relay is away: the gap, and the way out.
	has(check(0), "checkpoint", "ok", "file:", "")
	f.insert("skipped")
	f.exec(f.name, "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", f.name)
	has(check(1), "checkpoint", "fail", "in doubt: (", "walrelay recover --accept-gap 0/")
}

// A principal without rights is told which command grants them.
func TestCheckFindsWhatMayNotBeDone(t *testing.T) {
	if !long {
		t.Skip("a broker of its own")
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	const guard = "listener.name.guarded."
	k, err := stack.StartKafka(ctx, stack.KafkaOptions{
		Listeners:  map[string]string{"GUARDED": "SASL_PLAINTEXT"},
		FormatArgs: []string{"--add-scram", "SCRAM-SHA-512=[name=relay,password=" + relayPassword + "]"},
		Config: map[string]string{
			guard + "sasl.enabled.mechanisms":        "SCRAM-SHA-512",
			guard + "scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
			"authorizer.class.name":                  "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": "User:ANONYMOUS",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	compact := "compact"
	if err := k.CreateTopics(ctx, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	if err := k.CreateTopics(ctx, 1, map[string]*string{"cleanup.policy": &compact}, "compacted"); err != nil {
		t.Fatal(err)
	}
	password := t.TempDir() + "/password"
	if err := os.WriteFile(password, []byte(relayPassword), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := sink.NewClient(sink.ClientConfig{Brokers: []string{k.BootstrapOf("GUARDED")},
		SASL: &sink.SASLConfig{Mechanism: "scram-sha-512", Username: "relay", PasswordFile: password}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	producer, err := sink.NewProducer(sink.Config{Client: client, Allowed: func(topic string) bool { return topic == "orders" || topic == "compacted" }})
	if err != nil {
		t.Fatal(err)
	}
	direct, err := k.Client() // a super user: the brokers' own listener is plain
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	grant := func(topic string, operation kadm.ACLOperation) {
		t.Helper()
		rule := kadm.NewACLs().Topics(topic).ResourcePatternType(kadm.ACLPatternLiteral).Operations(operation).Allow("User:relay").AllowHosts("*")
		if _, err := kadm.NewClient(direct).CreateACLs(ctx, rule); err != nil {
			t.Fatal(err)
		}
	}
	look := func(name, level, text, mend string) {
		t.Helper()
		var found []sink.Finding
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); { // a broker learns of a rule a moment later
			found = producer.Examine(ctx, sink.Known{Topics: []string{"orders"}, NullKeys: true})
			if slices.ContainsFunc(found, func(f sink.Finding) bool {
				return f.Name == name && f.Level == level && strings.Contains(f.Text, text) && strings.Contains(f.Mend, mend)
			}) {
				return
			}
		}
		t.Errorf("no %s %s with %q and %q in %+v", level, name, text, mend, found)
	}
	look("acl", "fail", "may not see", "--allow-principal User:relay --operation Describe --topic orders")
	look("idempotent_write", "fail", "CLUSTER_AUTHORIZATION_FAILED", "--operation IdempotentWrite --cluster")
	grant("orders", kadm.OpDescribe)
	look("acl", "fail", "may not write", "--operation Write --topic orders")
	grant("orders", kadm.OpWrite)
	look("acl", "warn", "may not read its configuration", "--operation DescribeConfigs --topic orders")
	look("idempotent_write", "ok", "allowed", "")
	grant("compacted", kadm.OpWrite)
	grant("compacted", kadm.OpDescribeConfigs)
	look("cleanup_policy", "fail", "compacted is compacted", "cleanup.policy=delete")
}
