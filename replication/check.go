package replication

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// Server is what the server said about itself before the stream began.
type Server struct {
	SystemID         string // IDENTIFY_SYSTEM's systemid; LSNs of another one mean nothing
	Timeline         int32
	WALEnd           pglogrepl.LSN // flushed WAL end
	Version          int           // server_version_num
	WALSenderTimeout time.Duration // 0: the server never gives up on a silent client
	Database         string
}

// Slot is the replication slot as it was when the session had taken it.
type Slot struct {
	Confirmed pglogrepl.LSN
	Restart   pglogrepl.LSN
}

// minVersion has what the stream and the checks stand on.
const minVersion = 140000

// querier runs one statement that returns at most one row.
type querier func(ctx context.Context, sql string) ([][]byte, error)

// check runs before START_REPLICATION, on the connection that will stream, so
// that it speaks of the right server. START succeeds where it should not: for a
// missing publication, for a table that is not in it, for any LSN.
func (s *Session) check(ctx context.Context) error {
	query := func(ctx context.Context, sql string) ([][]byte, error) {
		got, err := row(ctx, s.conn, sql)
		if err != nil {
			err = classify("check the server", err)
		}
		return got, err
	}
	var clock []byte
	var err error
	if s.Server, s.PID, clock, err = readServer(ctx, s.conn, query); err != nil {
		return err
	}
	s.setClock(clock)
	if s.Slot, err = readSlot(ctx, query, s.cfg.Slot, s.Server.Database, s.PID); err != nil {
		return err
	}
	id, err := pglogrepl.IdentifySystem(ctx, s.conn)
	if err != nil {
		return classify("identify the system", err)
	}
	s.Server.SystemID, s.Server.Timeline, s.Server.WALEnd = id.SystemID, id.Timeline, id.XLogPos
	if s.Slot.Confirmed > s.Server.WALEnd {
		return &ContinuityError{
			Reason: fmt.Sprintf("replication: slot %q is confirmed up to %s, beyond the end of the server's WAL: the cluster was restored to an earlier state",
				s.cfg.Slot, s.Slot.Confirmed),
			From: s.Server.WALEnd, To: s.Slot.Confirmed,
			Remedy: newSlot(s.cfg.Slot),
		}
	}
	cat, err := readCatalog(ctx, query, s.cfg, s.Server.Version)
	if err != nil {
		return err
	}
	s.Catalog, s.Columns, s.Warnings = cat.oids, cat.columns, cat.warnings
	return nil
}

const serverSQL = `/* walrelay: server */ SELECT current_setting('server_version_num'), pg_is_in_recovery(), current_setting('wal_level'),` +
	` current_setting('max_replication_slots'), (SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'),` +
	` pg_backend_pid(), current_database(), ` + clockSQL

// readServer refuses a server that can't stream. pid is the one of our session there.
func readServer(ctx context.Context, conn *pgconn.PgConn, query querier) (srv Server, pid int32, clock []byte, err error) {
	fail := func(err error) (Server, int32, []byte, error) { return Server{}, 0, nil, err }
	if v := conn.ParameterStatus("server_version"); majorVersion(v) < minVersion/10000 {
		return fail(&SetupError{Reason: fmt.Sprintf("replication: the server is Postgres %s", v), Remedy: "walrelay needs 14 or later"})
	}
	got, err := query(ctx, serverSQL)
	if err != nil {
		return fail(err)
	}
	if len(got) != 8 {
		return fail(fmt.Errorf("replication: check the server: %d columns", len(got)))
	}
	if string(got[1]) == "t" {
		return fail(fmt.Errorf("replication: check the server: %w; name the primary in --postgres-url, or wait for the promotion", ErrStandby))
	}
	if level := string(got[2]); level != "logical" {
		return fail(&SetupError{Reason: "replication: the server runs with wal_level = " + level,
			Remedy: "ALTER SYSTEM SET wal_level = 'logical'; then restart Postgres"})
	}
	if string(got[3]) == "0" {
		return fail(&SetupError{Reason: "replication: the server runs with max_replication_slots = 0",
			Remedy: "ALTER SYSTEM SET max_replication_slots = 10; then restart Postgres"})
	}
	var n [3]int
	for i, b := range [][]byte{got[0], got[4], got[5]} {
		if n[i], err = strconv.Atoi(string(b)); err != nil {
			return fail(fmt.Errorf("replication: check the server: %w", err))
		}
	}
	srv = Server{Version: n[0], WALSenderTimeout: time.Duration(n[1]) * time.Millisecond, Database: string(got[6])}
	return srv, int32(n[2]), got[7], nil
}

// majorVersion reads "15.18 (Debian 15.18-0+deb12u1)", "18beta1"; 0 if it can't.
func majorVersion(v string) int {
	n := strings.IndexFunc(v, func(r rune) bool { return r < '0' || r > '9' })
	if n < 0 {
		n = len(v)
	}
	major, _ := strconv.Atoi(v[:n])
	return major
}

// slotSQL reads a slot; to_jsonb for columns that only newer versions have.
const slotSQL = `/* walrelay: slot */ SELECT plugin, slot_type, database, two_phase, wal_status,` +
	` coalesce(to_jsonb(s) ->> 'invalidation_reason', ''), restart_lsn, confirmed_flush_lsn, active_pid,` +
	` coalesce(application_name, ''), coalesce(host(client_addr), '')` +
	` FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON pid = active_pid WHERE slot_name = %s`

// readSlot reads the slot and refuses one that can't be continued. A slot that
// another process than pid holds is ErrSlotInUse.
func readSlot(ctx context.Context, query querier, name, database string, pid int32) (Slot, error) {
	got, err := query(ctx, fmt.Sprintf(slotSQL, quoteLiteral(name)))
	if err != nil {
		return Slot{}, err
	}
	if got == nil {
		return Slot{}, slotMissing(name)
	}
	if len(got) != 11 {
		return Slot{}, fmt.Errorf("replication: check slot %q: %d columns", name, len(got))
	}
	refuse := func(format string, a ...any) (Slot, error) {
		return Slot{}, &ContinuityError{Reason: fmt.Sprintf("replication: slot %q ", name) + fmt.Sprintf(format, a...), Remedy: newSlot(name)}
	}
	switch plugin, kind, db := string(got[0]), string(got[1]), string(got[2]); {
	case kind != "logical":
		return refuse("is a %s slot", kind)
	case plugin != "pgoutput":
		return refuse("decodes with %s, not pgoutput", plugin)
	case db != database: // most likely a wrong URL: nothing to drop
		return Slot{}, &ContinuityError{Reason: fmt.Sprintf("replication: slot %q belongs to database %q, not %q", name, db, database),
			Remedy: "correct the database in --postgres-url, or give another --slot"}
	case string(got[3]) == "t":
		return refuse("is a two-phase slot: it would send prepared transactions that may be rolled back")
	case string(got[4]) == "lost" || len(got[5]) > 0:
		return refuse("was invalidated by the server (%s): WAL that it needs may be gone", strings.TrimSpace(string(got[4])+" "+string(got[5])))
	}
	if holder := string(got[8]); holder != "" && holder != strconv.Itoa(int(pid)) {
		who := "pid " + holder
		for _, b := range got[9:11] {
			if len(b) > 0 {
				who += ", " + string(b)
			}
		}
		return Slot{}, fmt.Errorf("replication: slot %q: %w by %s", name, ErrSlotInUse, who)
	}
	var slot Slot
	if slot.Restart, err = parseLSN(got[6]); err != nil {
		return Slot{}, err
	}
	slot.Confirmed, err = parseLSN(got[7])
	return slot, err
}

func slotMissing(name string) error {
	return &ContinuityError{
		Reason: fmt.Sprintf("replication: slot %q does not exist", name),
		Remedy: "if it never did, create it with `walrelay setup`; if it was dropped, " + newSlot(name),
	}
}
