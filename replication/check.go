package replication

import (
	"cmp"
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
	found, err := survey(ctx, s.conn, s.cfg)
	if err != nil {
		return err
	}
	if s.PID = found.pid; s.copy {
		found.Slot, found.SlotFault = s.copyAnchor(ctx, found.Server)
	}
	s.Ground = found.Ground
	s.setClock(found.clock)
	return cmp.Or(found.SlotFault, found.CatalogFault)
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
	refuse := func(fault Fault, remedy, format string, a ...any) (Slot, error) {
		return Slot{}, &ContinuityError{Fault: fault, Reason: fmt.Sprintf("replication: slot %q ", name) + fmt.Sprintf(format, a...), Remedy: remedy}
	}
	drop := "drop it (SELECT pg_drop_replication_slot(" + quoteLiteral(name) + ")) if nobody needs it, or give another --slot"
	switch plugin, kind, db := string(got[0]), string(got[1]), string(got[2]); {
	case kind != "logical":
		return refuse(SlotForeign, drop, "is a %s slot", kind)
	case plugin != "pgoutput":
		return refuse(SlotForeign, drop, "decodes with %s, not pgoutput", plugin)
	case db != database: // most likely a wrong URL
		return refuse(SlotElsewhere, "correct the database in --postgres-url, or give another --slot", "belongs to database %q, not %q", db, database)
	case string(got[3]) == "t":
		return refuse(SlotForeign, drop, "is a two-phase slot: it would send prepared transactions that may be rolled back")
	case string(got[4]) == "lost" || len(got[5]) > 0:
		return refuse(SlotLost, "", "was invalidated by the server (%s): WAL that it needs may be gone", strings.TrimSpace(string(got[4])+" "+string(got[5])))
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
	return &ContinuityError{Fault: SlotMissing, Reason: fmt.Sprintf("replication: slot %q does not exist", name),
		Remedy: "if it never did, create it with `walrelay setup`"}
}
