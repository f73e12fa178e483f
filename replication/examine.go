package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
)

// Needs is what a relay needs of Postgres beyond what Config says.
type Needs struct {
	Fits   func([]Column) error // says whether the published columns fit the mapping
	Anchor bool                 // replays are wanted
}

// facts is what one look at the server brings for Examine.
type facts struct {
	User       string   `json:"user"`
	Address    string   `json:"address"`
	Version    int      `json:"version"`
	Release    string   `json:"release"`
	Database   string   `json:"database"`
	Standby    bool     `json:"standby"`
	WALLevel   string   `json:"wal_level"`
	MaxSlots   int      `json:"max_slots"`
	Slots      int      `json:"slots"`
	MaxSenders int      `json:"max_senders"`
	Senders    int      `json:"senders"`
	KeepSize   int64    `json:"keep_size"` // max_slot_wal_keep_size in MB; -1: no limit
	Keep       string   `json:"keep"`      // the same as Postgres prints it
	Timeout    int64    `json:"timeout"`   // wal_sender_timeout in ms; 0: never
	Patience   string   `json:"patience"`  // the same as Postgres prints it
	Idle       string   `json:"idle"`      // idle_replication_slot_timeout; "": older than 18
	IdleZero   bool     `json:"idle_zero"`
	Sync       string   `json:"sync"`     // synchronized_standby_slots; from 17 on
	Standbys   int      `json:"standbys"` // walsenders that serve no logical slot
	Super      bool     `json:"super"`
	Streams    bool     `json:"streams"` // REPLICATION, or what a provider has instead
	Bypass     bool     `json:"bypass"`
	Creates    []string `json:"creates"` // CREATEROLE, CREATEDB
	Member     []string `json:"member"`  // of predefined roles with power
	Owner      bool     `json:"owner"`
	Writes     []string `json:"writes"` // privileges on the table that change it
	Reads      bool     `json:"reads"`
	Others     []string `json:"others"` // other tables in the publication, the first of them
	OtherCount int      `json:"other_count"`
	Actions    []string `json:"actions"` // what the publication publishes beside inserts
	AllTables  bool     `json:"all_tables"`
	SeesAll    bool     `json:"sees_all"` // other roles' sessions
	Prepared   *open    `json:"prepared"`
	Open       *open    `json:"open"`
	Slot       *slotSet `json:"slot"`
	Anchor     *slotSet `json:"anchor"`
}

// open is a transaction that has written and not ended.
type open struct {
	PID  int32   `json:"pid"`
	Who  string  `json:"who"`
	Age  float64 `json:"age"`  // seconds; 0: not told
	Txns int64   `json:"txns"` // begun since
}

// slotSet is what of a slot matters to its fate.
type slotSet struct {
	WALStatus string `json:"wal_status"`
	Invalid   string `json:"invalidation_reason"`
	Headroom  *int64 `json:"safe_wal_size"`
	Failover  bool   `json:"failover"`
	Holder    string `json:"holder"`
}

const examineSQL = `/* walrelay: examine */ SELECT json_build_object('user', current_user, 'address', coalesce(host(inet_client_addr()), ''),
 'version', current_setting('server_version_num')::int, 'release', current_setting('server_version'),
 'database', current_database(), 'standby', pg_is_in_recovery(), 'wal_level', current_setting('wal_level'),
 'max_slots', current_setting('max_replication_slots')::int, 'slots', (SELECT count(*) FROM pg_replication_slots),
 'max_senders', current_setting('max_wal_senders')::int, 'senders', (SELECT count(*) FROM pg_stat_replication),
 'keep_size', (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'), 'keep', current_setting('max_slot_wal_keep_size'),
 'timeout', (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'),
 'patience', current_setting('wal_sender_timeout'), 'idle', coalesce(current_setting('idle_replication_slot_timeout', true), ''),
 'idle_zero', (SELECT setting = '0' FROM pg_settings WHERE name = 'idle_replication_slot_timeout'),
 'sync', coalesce(current_setting('synchronized_standby_slots', true), ''),
 'standbys', (SELECT count(*) FROM pg_stat_replication r WHERE NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND slot_type = 'logical')
   AND r.application_name IS DISTINCT FROM 'pg_basebackup'),
 'super', r.rolsuper, 'bypass', r.rolbypassrls,
 'streams', r.rolsuper OR r.rolreplication OR EXISTS (SELECT FROM pg_roles p WHERE p.rolname = 'rds_replication' AND pg_has_role(p.oid, 'MEMBER')),
 'creates', (SELECT json_agg(c) FROM unnest(ARRAY[CASE WHEN r.rolcreaterole THEN 'CREATEROLE' END, CASE WHEN r.rolcreatedb THEN 'CREATEDB' END]) c WHERE c IS NOT NULL),
 'member', (SELECT json_agg(p.rolname ORDER BY p.rolname) FROM pg_roles p WHERE p.rolname IN ('pg_write_all_data', 'pg_read_all_data', 'pg_execute_server_program',
   'pg_write_server_files', 'pg_read_server_files') AND pg_has_role(p.oid, 'MEMBER')),
 'owner', t.oid IS NOT NULL AND pg_has_role(t.relowner, 'MEMBER'),
 'writes', (SELECT json_agg(p) FROM unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER', 'REFERENCES']) p WHERE has_table_privilege(t.oid, p)),
 'reads', coalesce(has_table_privilege(t.oid, 'SELECT'), false),
 'others', (SELECT json_agg(x) FROM (SELECT format('%%I.%%I', schemaname, tablename) AS x FROM pg_publication_tables
   WHERE pubname = %[1]s AND NOT (schemaname = %[2]s AND tablename = %[3]s) ORDER BY 1 LIMIT 3) x),
 'other_count', (SELECT count(*) FROM pg_publication_tables WHERE pubname = %[1]s AND NOT (schemaname = %[2]s AND tablename = %[3]s)),
 'all_tables', coalesce(p.puballtables, false),
 'actions', (SELECT json_agg(a) FROM unnest(ARRAY[CASE WHEN p.pubupdate THEN 'update' END, CASE WHEN p.pubdelete THEN 'delete' END, CASE WHEN p.pubtruncate THEN 'truncate' END]) a WHERE a IS NOT NULL),
 'sees_all', pg_has_role('pg_read_all_stats', 'MEMBER'),
 'prepared', (SELECT json_build_object('who', gid, 'age', extract(epoch FROM now() - prepared)) FROM pg_prepared_xacts ORDER BY prepared LIMIT 1),
 'open', (SELECT json_build_object('pid', l.pid, 'who', concat_ws(', ', a.usename, nullif(a.application_name, ''), a.state),
   'age', coalesce(extract(epoch FROM now() - a.xact_start), 0), 'txns', age(l.transactionid))
   FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid IS NOT NULL
   ORDER BY age(l.transactionid) DESC LIMIT 1),
 'slot', (SELECT to_jsonb(s) || jsonb_build_object('holder', (SELECT concat_ws(', ', 'pid ' || s.active_pid, nullif(application_name, ''), host(client_addr),
   'since ' || date_trunc('second', backend_start)) FROM pg_stat_activity WHERE pid = s.active_pid)) FROM pg_replication_slots s WHERE slot_name = %[4]s),
 'anchor', (SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = %[5]s))
 FROM pg_roles r LEFT JOIN pg_publication p ON p.pubname = %[1]s
 LEFT JOIN (pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace) ON n.nspname = %[2]s AND t.relname = %[3]s
 WHERE r.rolname = current_user`

// Examine looks at everything that a relay needs of Postgres, over the observer's
// connection and a replication connection that starts nothing. A relay that runs is not disturbed.
func (o *Observer) Examine(ctx context.Context, needs Needs) []Finding {
	var found findings
	var f facts
	cfg := o.cfg
	err := o.document(ctx, &f, examineSQL, quoteLiteral(cfg.Publication), quoteLiteral(cfg.Table.Schema), quoteLiteral(cfg.Table.Name),
		quoteLiteral(cfg.Slot), quoteLiteral(AnchorSlot(cfg.Slot)))
	if err != nil {
		found.failed("reachable", err)
		return found
	}
	release, _, _ := strings.Cut(f.Release, " ")
	found.ok("reachable", "database %s as %s", f.Database, f.User)
	if f.Version < minVersion {
		found.fail("version", "walrelay needs 14 or later", "Postgres %s", release)
		return found
	}
	found.ok("version", "Postgres %s", release)
	if f.Standby {
		found.fail("primary", "name the primary in --postgres-url, or promote this server: SELECT pg_promote()", "the server is a standby")
		return found
	}
	f.settings(&found)
	f.role(&found, cfg)
	o.stream(ctx, &found)
	o.published(ctx, &found, &f, needs)
	o.slot(ctx, &found, &f)
	f.anchor(&found, cfg, needs)
	f.transactions(&found)
	f.failover(&found, cfg)
	return found
}

// settings are the server's.
func (f *facts) settings(found *findings) {
	if f.WALLevel != "logical" {
		found.fail("wal_level", "ALTER SYSTEM SET wal_level = 'logical'; then restart Postgres", "wal_level = %s", f.WALLevel)
	} else {
		found.ok("wal_level", "logical")
	}
	used := func(name, setting string, used, most int, held bool) {
		mend := fmt.Sprintf("ALTER SYSTEM SET %s = %d; then restart Postgres", setting, max(most+5, 10))
		switch {
		case used < most:
			found.ok(name, "%d of %d in use", used, most)
		case held:
			found.warn(name, mend, "all %d are in use, one of them by the relay: none is free for a replay, tail or a standby", most)
		default:
			found.fail(name, mend, "all %d are in use, and the relay needs one", most)
		}
	}
	used("replication_slots", "max_replication_slots", f.Slots, f.MaxSlots, f.Slot != nil)
	used("wal_senders", "max_wal_senders", f.Senders, f.MaxSenders, f.Slot != nil && f.Slot.Holder != "")
	switch {
	case f.KeepSize < 0:
		found.warn("max_slot_wal_keep_size", "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; then SELECT pg_reload_conf() (more than the WAL of the longest outage to outlive)",
			"no limit: a relay that is away for good fills the disk and stops the database")
	case f.KeepSize < 1024:
		found.warn("max_slot_wal_keep_size", "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; then SELECT pg_reload_conf()",
			"%s: after that much WAL without delivery the server gives the slot up, and rows are lost to it", f.Keep)
	default:
		found.ok("max_slot_wal_keep_size", "%s", f.Keep)
	}
	if f.Idle != "" {
		if f.IdleZero {
			found.ok("idle_replication_slot_timeout", "off")
		} else {
			found.warn("idle_replication_slot_timeout", "ALTER SYSTEM SET idle_replication_slot_timeout = 0; then SELECT pg_reload_conf()",
				"%s: a relay that is away for longer loses the slot, and rows with it", f.Idle)
		}
	}
	switch t := time.Duration(f.Timeout) * time.Millisecond; {
	case t == 0:
		found.warn("wal_sender_timeout", "ALTER SYSTEM SET wal_sender_timeout = '1min'; then SELECT pg_reload_conf()",
			"off: the slot of a relay whose host or network is gone stays held for ever, and no other can take over")
	case t < 5*time.Second:
		found.warn("wal_sender_timeout", "ALTER SYSTEM SET wal_sender_timeout = '1min'; then SELECT pg_reload_conf()",
			"%s: a short pause of the network ends the session", f.Patience)
	default:
		found.ok("wal_sender_timeout", "%s: a relay that is gone without a word is replaced after that time", f.Patience)
	}
}

// role looks for what is missing and for what is too much.
func (f *facts) role(found *findings, cfg Config) {
	user := quoteIdent(f.User)
	if f.Streams {
		found.ok("privileges", "%s may stream", f.User)
	} else {
		found.fail("privileges", "ALTER ROLE "+user+" REPLICATION", "%s may not stream", f.User)
	}
	table := cfg.Table.String()
	var excess, mend []string
	add := func(what, sql string) { excess, mend = append(excess, what), append(mend, sql) }
	const other = "walrelay setup --role walrelay creates a role with what is needed"
	switch {
	case f.Super: // which has all the rest
		add("SUPERUSER", other+", or ALTER ROLE "+user+" NOSUPERUSER")
	default:
		if f.Bypass {
			add("BYPASSRLS", "ALTER ROLE "+user+" NOBYPASSRLS")
		}
		for _, c := range f.Creates {
			add(c, "ALTER ROLE "+user+" NO"+c)
		}
		for _, m := range f.Member {
			add("member of "+m, "REVOKE "+m+" FROM "+user)
		}
		if f.Owner {
			add("owner of "+table, "ALTER TABLE "+table+" OWNER TO …")
		} else if writes := slices.DeleteFunc(f.Writes, func(p string) bool { return p == "DELETE" }); len(writes) > 0 { // DELETE is for prune
			list := strings.Join(writes, ", ")
			add(list+" on "+table, "REVOKE "+list+" ON "+table+" FROM "+user+" (and from PUBLIC)")
		}
	}
	if excess == nil {
		found.ok("excess_privileges", "none")
	} else {
		found.warn("excess_privileges", strings.Join(mend, "; "), "%s has more than it needs: %s", f.User, strings.Join(excess, ", "))
	}
	if f.Reads {
		found.ok("select", "%s may read the table: events can be counted, and published from it", f.User)
	} else {
		found.ok("select", "not granted; only to count events and to publish from the table it is needed (GRANT SELECT ON %s TO %s)", table, user)
	}
}

// stream opens a replication connection, and starts nothing on it.
func (o *Observer) stream(ctx context.Context, found *findings) {
	pc, err := o.cfg.parse()
	if err == nil {
		conn, _, connectErr := connectStream(ctx, o.cfg, pc)
		if err = connectErr; err == nil {
			defer hangUp(context.WithoutCancel(ctx), conn)
			if _, err = pglogrepl.IdentifySystem(ctx, conn); err != nil {
				err = classify("identify the system", err)
			}
		}
	}
	if err != nil {
		found.failed("replication_connection", err)
		return
	}
	found.ok("replication_connection", "accepted")
}

// published looks at publication and table with the eyes of the start of a stream.
func (o *Observer) published(ctx context.Context, found *findings, f *facts, needs Needs) {
	cat, err := readCatalog(ctx, o.side.row, o.cfg, f.Version)
	if err != nil {
		found.failed("publication", err)
		return
	}
	alter := "ALTER PUBLICATION " + quoteIdent(o.cfg.Publication)
	const cost = "the server decodes and sends it all, and it is thrown away here"
	narrow := alter + " SET TABLE " + o.cfg.Table.String()
	switch {
	case f.AllTables:
		found.warn("publication", "create one FOR TABLE "+o.cfg.Table.String()+" under another name, and give it by --publication to a new slot",
			"it is FOR ALL TABLES (%d others): %s", f.OtherCount, cost)
	case f.OtherCount > 0:
		found.warn("publication", narrow, "it holds %d more tables (%s): %s", f.OtherCount, strings.Join(f.Others, ", "), cost)
	case cat.oids.Membership == 0:
		found.warn("publication", narrow, "it publishes the table by more than its name: %s", cost)
	default:
		found.ok("publication", "%s holds %s", o.cfg.Publication, o.cfg.Table)
	}
	if len(f.Actions) > 0 {
		found.warn("publish_actions", alter+" SET (publish = 'insert'), with the relay stopped; then "+restartMend,
			"it publishes %s besides insert: deletes and updates in the outbox cost as much as events", strings.Join(f.Actions, ", "))
	} else {
		found.ok("publish_actions", "insert only")
	}
	if len(cat.hidden) > 0 {
		found.warn("column_list", narrow, "a column list hides %s; what is mapped must not be among them", strings.Join(cat.hidden, ", "))
	} else {
		found.ok("column_list", "none: all columns are published")
	}
	if needs.Fits == nil {
		return
	}
	if err := needs.Fits(cat.columns); err != nil {
		text, mend, _ := strings.Cut(strings.TrimPrefix(err.Error(), "decode: "), "; ")
		found.fail("columns", mend, "%s", text)
		return
	}
	found.ok("columns", "%d published columns fit the mapping", len(cat.columns))
}

// restartMend: every ALTER PUBLICATION … SET (…) is a change that a relay with a saved position refuses.
const restartMend = "the relay will ask for proof that nothing was missed (README, “it stopped with 10”)"

// slot looks at it with the eyes of the start of a stream. That a relay holds it is fine.
func (o *Observer) slot(ctx context.Context, found *findings, f *facts) {
	slot, err := readSlot(ctx, o.side.row, o.cfg.Slot, f.Database, 0)
	inUse := errors.Is(err, ErrSlotInUse)
	switch {
	case err != nil && !inUse:
		found.failed("slot", err)
		return
	case f.Slot == nil: // made between the two looks
		return
	case f.Slot.WALStatus == "unreserved":
		found.fail("slot", "deliver what is waiting before the next checkpoint of the server, or ALTER SYSTEM SET max_slot_wal_keep_size = … to more; then SELECT pg_reload_conf()",
			"it is about to be given up (wal_status unreserved): it keeps more WAL than max_slot_wal_keep_size = %s", f.Keep)
		return
	case inUse:
		found.ok("slot", "%s, in use by %s", f.Slot.WALStatus, f.Slot.Holder)
	default:
		found.ok("slot", "%s, free, confirmed up to %s", f.Slot.WALStatus, slot.Confirmed)
	}
	if h := f.Slot.Headroom; h != nil && f.KeepSize > 0 && *h < f.KeepSize<<20/4 {
		found.warn("slot_headroom", "see why events are not delivered (walrelay status); ALTER SYSTEM SET max_slot_wal_keep_size = … to more",
			"%d MiB of WAL may still be written before the server gives the slot up: less than a quarter of %s", *h>>20, f.Keep)
	}
}

// anchor is the slot that replays start from.
func (f *facts) anchor(found *findings, cfg Config, needs Needs) {
	name := AnchorSlot(cfg.Slot)
	drop := "SELECT pg_drop_replication_slot(" + quoteLiteral(name) + ")"
	switch {
	case f.Anchor == nil && needs.Anchor:
		found.fail("anchor", "walrelay setup, with the same --replay-retain", "slot %q does not exist: nothing can be replayed", name)
	case f.Anchor == nil:
	case f.Anchor.WALStatus == "lost" || f.Anchor.Invalid != "":
		found.fail("anchor", drop+"; then walrelay setup, with the same --replay-retain", "the server gave slot %q up (%s): nothing can be replayed",
			name, strings.TrimSpace(f.Anchor.WALStatus+" "+f.Anchor.Invalid))
	case !needs.Anchor:
		found.warn("anchor", drop+"; or set --replay-retain", "slot %q is there, and --replay-retain is not set: nobody advances it, and it keeps WAL", name)
	default:
		found.ok("anchor", "%s, %s", name, f.Anchor.WALStatus)
	}
}

const (
	longOpen = 5 * time.Minute
	manyTxns = 1_000_000
)

// transactions that have written and stay open hold the slot back: the server reads
// again from where the oldest of them began.
func (f *facts) transactions(found *findings) {
	const cost = "WAL from before it is kept, a new slot would wait for it, and a restart of the relay reads from there"
	fine := true
	if p := f.Prepared; p != nil && p.Age > longOpen.Seconds() {
		fine = false
		found.warn("open_transactions", "COMMIT PREPARED "+quoteLiteral(p.Who)+" or ROLLBACK PREPARED, in its database",
			"prepared transaction %q is open for %s: %s", p.Who, time.Duration(p.Age)*time.Second, cost)
	}
	if t := f.Open; t != nil && (t.Age > longOpen.Seconds() || t.Txns > manyTxns) {
		fine = false
		text := fmt.Sprintf("a transaction of pid %d", t.PID)
		if t.Who != "" {
			text += " (" + t.Who + ")"
		}
		if t.Age > 0 {
			text += fmt.Sprintf(" is open for %s", time.Duration(t.Age)*time.Second)
		} else {
			text += fmt.Sprintf(" is open, and %d younger ones have begun since", t.Txns)
		}
		found.warn("open_transactions", fmt.Sprintf("end it in the application, or SELECT pg_terminate_backend(%d)", t.PID), "%s: %s", text, cost)
	}
	switch {
	case !fine:
	case f.SeesAll:
		found.ok("open_transactions", "none that has written is open for more than five minutes")
	default:
		found.ok("open_transactions", "none that is far behind the others (how long others' are open is told to members of pg_read_all_stats only)")
	}
}

// failover says whether the slot outlives the promotion of a standby.
func (f *facts) failover(found *findings, cfg Config) {
	switch {
	case f.Slot == nil:
	case f.Version < 170000 && f.Standbys > 0:
		found.warn("failover", "see to it that Postgres is upgraded to 17 or later, or that a promotion is followed by walrelay recover",
			"there is a standby, and before Postgres 17 no logical slot outlives its promotion")
	case f.Version < 170000:
		found.ok("failover", "no standby is connected")
	case f.Slot.Failover && f.Standbys > 0 && f.Sync == "":
		found.warn("failover", "ALTER SYSTEM SET synchronized_standby_slots = 'SLOT_OF_THE_STANDBY'; then SELECT pg_reload_conf()",
			"the slot fails over, but synchronized_standby_slots is empty: events can be published that the promoted standby does not have")
	case f.Slot.Failover:
		found.ok("failover", "the slot is a failover slot")
	case f.Standbys > 0:
		found.warn("failover", fmt.Sprintf("with the relay stopped: psql 'dbname=%s replication=database' -c 'ALTER_REPLICATION_SLOT %s (FAILOVER true)'; on the standby sync_replication_slots = on", f.Database, cfg.Slot),
			"there is a standby, and the slot does not outlive its promotion")
	default:
		found.ok("failover", "no standby is connected")
	}
}
