package replication

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// Observer looks at a server without streaming from it, over one ordinary connection
// that is made when it is needed, and again when it was lost. It takes no lock, no slot
// and no walsender: a relay that runs is not disturbed. One goroutine uses it.
type Observer struct {
	cfg  Config
	side *side
}

// View is what a server says about the relay's slot and itself, in one look.
type View struct {
	Version  string
	SystemID string
	Timeline int32
	Database string
	Standby  bool
	WALEnd   pglogrepl.LSN // written; of a standby received
	Now      time.Time     // by its clock
	Inserted pglogrepl.LSN // what is visible was committed below it; of a standby WALEnd
	Slot     *SlotView     // nil: there is none
	Anchor   *SlotView     // of replay; nil: there is none
	Holder   *Holder       // of the slot; nil: nobody streams from it

	table    string            // for SQL; "" where it is not there
	readable bool              // the role may SELECT from it
	columns  map[string]uint32 // type oids of its columns
}

// SlotView is a row of pg_replication_slots.
type SlotView struct {
	Name       string
	Plugin     string
	WALStatus  string        // reserved, extended, unreserved or lost
	Invalid    string        // why the server gave it up, from 17 on; "": it did not, or an older server doesn't say
	Confirmed  pglogrepl.LSN // rows committed below it will not be streamed again
	Restart    pglogrepl.LSN // WAL is kept from here on
	Headroom   *int64        // bytes of WAL that may be written before the server gives it up; nil: without limit
	CatalogXID string        // no transaction below it is still to be delivered
}

// Holder is the session that streams from a slot. Of another role's session only the
// pid is told, unless the observer is a member of pg_read_all_stats.
type Holder struct {
	PID         int32
	User        string
	Application string
	Address     string    // "" for a Unix socket
	Since       time.Time // zero: not told
	State       string    // streaming, catchup, …
}

// AnchorSlot is the name of the slot that replays start from.
func AnchorSlot(slot string) string { return slot + "_anchor" }

// observeLimit is how long a statement of an observer may take.
const observeLimit = 3 * time.Second

// NewObserver checks the configuration. It doesn't connect.
func NewObserver(cfg Config) (*Observer, error) {
	pc, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	pc.RuntimeParams["statement_timeout"] = fmt.Sprint(observeLimit.Milliseconds())
	return &Observer{cfg: cfg, side: newSide(func(ctx context.Context) (*pgconn.PgConn, error) {
		conn, err := connect(ctx, pc.Copy(), func(ctx context.Context, network, addr string) (net.Conn, error) { return cfg.dial(ctx, network, addr) })
		if err != nil {
			return nil, classifyConnect("connect to Postgres", err)
		}
		return conn, nil
	})}, nil
}

// Close closes the connection for good.
func (o *Observer) Close(ctx context.Context) { o.side.close(ctx) }

// document runs a statement that returns one JSON document, and reads it into v.
func (o *Observer) document(ctx context.Context, v any, sql string, args ...any) error {
	got, err := o.side.row(ctx, fmt.Sprintf(sql, args...))
	if err != nil {
		return err
	}
	if got == nil {
		return errors.New("replication: query the catalog: no row")
	}
	if err := json.Unmarshal(got[0], v); err != nil {
		return fmt.Errorf("replication: query the catalog: %w", err)
	}
	return nil
}

// lookSQL reads all of a View. to_jsonb for columns that only newer versions have.
const lookSQL = `/* walrelay: look */ SELECT json_build_object('version', current_setting('server_version'),
 'system_id', (SELECT system_identifier::text FROM pg_control_system()),
 'timeline', CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
   ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END,
 'now', clock_timestamp(), 'database', current_database(), 'standby', pg_is_in_recovery(),
 'wal_end', CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) ELSE pg_current_wal_lsn() END,
 'inserted', CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) ELSE pg_current_wal_insert_lsn() END,
 'readable', (SELECT has_table_privilege(c.oid, 'SELECT') FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %[1]s AND relname = %[2]s),
 'columns', (SELECT json_object_agg(attname, atttypid::bigint) FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace
   WHERE nspname = %[1]s AND relname = %[2]s AND attnum > 0 AND NOT attisdropped),
 'slots', (SELECT json_object_agg(slot_name, to_jsonb(s)) FROM pg_replication_slots s WHERE slot_name IN (%[3]s, %[4]s)),
 'holder', (SELECT json_build_object('pid', s.active_pid, 'user', a.usename, 'application', a.application_name, 'address', host(a.client_addr),
   'since', a.backend_start, 'state', r.state)
   FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
   WHERE slot_name = %[3]s AND s.active_pid IS NOT NULL))`

// slotRow is a row of pg_replication_slots as to_jsonb makes it.
type slotRow struct {
	Plugin     string  `json:"plugin"`
	WALStatus  string  `json:"wal_status"`
	Invalid    string  `json:"invalidation_reason"`
	Confirmed  lsnText `json:"confirmed_flush_lsn"`
	Restart    lsnText `json:"restart_lsn"`
	Headroom   *int64  `json:"safe_wal_size"`
	CatalogXID string  `json:"catalog_xmin"`
}

// lsnText reads an LSN of a JSON document; null is 0.
type lsnText pglogrepl.LSN

func (l *lsnText) UnmarshalText(text []byte) error {
	lsn, err := parseLSN(text)
	*l = lsnText(lsn)
	return err
}

// Look asks the server once. A slot that is missing or lost is no error: the view says so.
func (o *Observer) Look(ctx context.Context) (*View, error) {
	var doc struct {
		Version  string             `json:"version"`
		SystemID string             `json:"system_id"`
		Timeline int32              `json:"timeline"`
		Database string             `json:"database"`
		Standby  bool               `json:"standby"`
		Now      time.Time          `json:"now"`
		WALEnd   lsnText            `json:"wal_end"`
		Inserted lsnText            `json:"inserted"`
		Readable *bool              `json:"readable"`
		Columns  map[string]uint32  `json:"columns"`
		Slots    map[string]slotRow `json:"slots"`
		Holder   *struct {
			PID         int32     `json:"pid"`
			User        string    `json:"user"`
			Application string    `json:"application"`
			Address     string    `json:"address"`
			Since       time.Time `json:"since"`
			State       string    `json:"state"`
		} `json:"holder"`
	}
	anchor := AnchorSlot(o.cfg.Slot)
	err := o.document(ctx, &doc, lookSQL, quoteLiteral(o.cfg.Table.Schema), quoteLiteral(o.cfg.Table.Name), quoteLiteral(o.cfg.Slot), quoteLiteral(anchor))
	if err != nil {
		return nil, err
	}
	v := &View{
		Version: doc.Version, SystemID: doc.SystemID, Timeline: doc.Timeline, Database: doc.Database, Standby: doc.Standby, Now: doc.Now,
		WALEnd: pglogrepl.LSN(doc.WALEnd), Inserted: pglogrepl.LSN(doc.Inserted), columns: doc.Columns,
	}
	if r, ok := doc.Slots[o.cfg.Slot]; ok {
		v.Slot = r.view(o.cfg.Slot)
	}
	if r, ok := doc.Slots[anchor]; ok {
		v.Anchor = r.view(anchor)
	}
	if h := doc.Holder; h != nil {
		v.Holder = &Holder{PID: h.PID, User: h.User, Application: h.Application, Address: h.Address, Since: h.Since, State: h.State}
	}
	if doc.Readable != nil {
		v.table, v.readable = o.cfg.Table.String(), *doc.Readable
	}
	return v, nil
}

func (r slotRow) view(name string) *SlotView {
	s := &SlotView{
		Name: name, Plugin: r.Plugin, WALStatus: r.WALStatus, Invalid: r.Invalid, Headroom: r.Headroom,
		Confirmed: pglogrepl.LSN(r.Confirmed), Restart: pglogrepl.LSN(r.Restart), CatalogXID: r.CatalogXID,
	}
	if s.Invalid != "" || s.WALStatus == "" && s.Restart == 0 {
		s.WALStatus = "lost" // a slot that was given up can have no status at all
	}
	return s
}

// Backlog is what the outbox table holds of rows that are not known to be delivered.
type Backlog struct {
	Events  int64
	Capped  bool // there are more
	ID      string
	Written time.Time // the oldest of them, and when; zero where no column tells
}

const timestamptzOID = 1184 // of pg_type.dat, the same everywhere

// backlogCap bounds the count.
const backlogCap = 100_000

const backlogSQL = `/* walrelay: backlog */ WITH b AS (SELECT %[1]s::text AS id, %[2]s AS at FROM %[3]s WHERE %[4]s LIMIT %[5]d)
 SELECT json_build_object('events', count(*), 'oldest', (SELECT to_jsonb(o) FROM b o WHERE at IS NOT NULL ORDER BY at LIMIT 1)) FROM b`

// Backlog counts the rows that were inserted by transactions younger than xid, which is
// the last one that was delivered whole; 0: than the slot's oldest. Commits do not come in the order of ids, so
// this is an estimate. Rows that are deleted already don't count. id and at are the columns of the event's
// id and time. An error says why it cannot be told.
func (o *Observer) Backlog(ctx context.Context, v *View, xid uint32, id, at string) (Backlog, error) {
	switch {
	case v.table == "":
		return Backlog{}, errors.New("there is no table")
	case !v.readable:
		return Backlog{}, fmt.Errorf("the role may not read the table: GRANT SELECT ON %s TO it, to have events counted", v.table)
	}
	younger := fmt.Sprintf("age(xmin) < age('%d'::xid)", xid)
	if xid == 0 {
		if v.Slot == nil || strings.Trim(v.Slot.CatalogXID, "0123456789") != "" || v.Slot.CatalogXID == "" {
			return Backlog{}, errors.New("nothing says from where to count")
		}
		younger = fmt.Sprintf("age(xmin) <= age('%s'::xid)", v.Slot.CatalogXID)
	}
	key, when := "NULL", "NULL::timestamptz"
	if v.columns[id] != 0 {
		key = quoteIdent(id)
	}
	if v.columns[at] == timestamptzOID {
		when = quoteIdent(at)
	}
	var doc struct {
		Events int64
		Oldest *struct {
			ID string
			At time.Time
		}
	}
	if err := o.document(ctx, &doc, backlogSQL, key, when, v.table, younger, backlogCap+1); err != nil {
		var pe *pgconn.PgError
		if errors.As(err, &pe) && pe.Code == "57014" { // query_canceled
			return Backlog{}, fmt.Errorf("to count the rows takes longer than %s", observeLimit)
		}
		return Backlog{}, err
	}
	b := Backlog{Events: min(doc.Events, backlogCap), Capped: doc.Events > backlogCap}
	if doc.Oldest != nil {
		b.ID, b.Written = doc.Oldest.ID, doc.Oldest.At
	}
	return b, nil
}
