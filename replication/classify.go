package replication

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// classify gives a server's error its type by SQLSTATE, wherever what it means
// doesn't depend on what was asked. What stays untyped is transient: connection
// faults and every code that isn't here (57P01 terminated, 53xxx out of something, 40xxx, XX000 and so on).
func classify(op string, err error) error {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return fmt.Errorf("replication: %s: %w", op, oneLine(err))
	}
	switch {
	case pe.Code == "55006": // object_in_use: released when its session ends
		return fmt.Errorf("replication: %s: %w: %s", op, ErrSlotInUse, pe.Message)
	case pe.Code == "25006", pe.Code == "0A000" && strings.Contains(pe.Routine, "CheckLogicalDecodingRequirements"):
		// read_only_sql_transaction, or decoding refused: a standby until it is promoted
		return fmt.Errorf("replication: %s: %w: %s", op, ErrStandby, pe.Message)
	case strings.HasPrefix(pe.Code, "28"): // wrong password, no pg_hba.conf line, no such role, NOLOGIN
		return &AuthError{Op: "replication: " + op, Err: serverError{pe}, Remedy: "correct user, password or pg_hba.conf"}
	case pe.Code == "42501": // insufficient_privilege: until somebody grants it
		return &AuthError{Op: "replication: " + op, Err: serverError{pe}, Remedy: privilegeRemedy(pe)}
	case pe.Code == "57P03": // cannot_connect_now: starting up, or shutting down as soon as we let it
		return fmt.Errorf("replication: %s: %w: %s", op, ErrShutdown, pe.Message)
	case pe.Code == "3D000": // invalid_catalog_name: no such database
		return &SetupError{Reason: "replication: " + op + ": " + pe.Message, Remedy: "correct the database in --postgres-url"}
	}
	return fmt.Errorf("replication: %s: %w", op, serverError{pe})
}

// classifyConnect is classify for what only a startup packet can provoke.
func classifyConnect(op string, err error) error {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch pe.Code {
		case "42704", "22023": // a setting that this server doesn't know, or a value that it refuses
			return &SetupError{Reason: "replication: " + op + ": " + pe.Message, Remedy: "take the parameter out of --postgres-url or PGOPTIONS"}
		case "53300": // too_many_connections: all senders are busy now, unless there are none at all
			if strings.Contains(pe.Message, "max_wal_senders") && strings.Contains(pe.Message, " 0)") {
				return &SetupError{Reason: "replication: the server runs with max_wal_senders = 0",
					Remedy: "ALTER SYSTEM SET max_wal_senders = 10; then restart Postgres"}
			}
		}
	}
	return classify(op, err)
}

// classifyStart is classify for START_REPLICATION, behind the checks: the slot
// changed in between, or has a fault that the catalog doesn't show.
func classifyStart(slot string, err error) error {
	op := fmt.Sprintf("start slot %q", slot)
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch pe.Code {
		case "42704": // undefined_object: dropped; WAL behind it is no longer kept
			return slotMissing(slot)
		case "55000", // object_not_in_prerequisite_state: invalidated; nothing revives a slot
			"58P01": // undefined_file: WAL or a snapshot that it needs is gone
			return &ContinuityError{Fault: SlotLost, Reason: "replication: " + op + ": " + pe.Message}
		}
	}
	return classify(op, err)
}

// classifyStream is classify for an ErrorResponse inside the stream.
func classifyStream(cfg Config, pe *pgconn.PgError) error {
	const op = "read the stream"
	switch pe.Code {
	case "42704": // the publication did not exist at the row's place in WAL, nor will it when created now
		return &ContinuityError{
			Fault:  PublicationMissing,
			Reason: fmt.Sprintf("replication: publication %q is missing in the WAL's past: %s", cfg.Publication, pe.Message),
			Remedy: "create it with `walrelay setup`, if it is still missing",
		}
	case "58P01": // undefined_file: WAL that the slot needs was removed
		return &ContinuityError{Fault: SlotLost, Reason: "replication: " + op + ": " + pe.Message}
	}
	return classify(op, pe)
}

// skipsPublication recognises the notice by which Postgres 18 says that it goes
// on without the publication, that is, without our rows (pgoutput's
// LoadPublications). The text may be translated; the routine is not.
func skipsPublication(code, routine, message string) bool {
	return code == "55000" && (routine == "LoadPublications" || strings.HasPrefix(message, "skipped loading publication"))
}

func privilegeRemedy(pe *pgconn.PgError) string {
	if strings.Contains(pe.Message, "parameter") {
		return "take the parameter out of --postgres-url or PGOPTIONS"
	}
	return "streaming needs ALTER ROLE … REPLICATION, and CONNECT on the database"
}

// serverError prints a server's error in one line, with its hint.
type serverError struct{ *pgconn.PgError }

func (e serverError) Error() string {
	s := e.Message + " (SQLSTATE " + e.Code + ")"
	if e.Detail != "" && !strings.HasPrefix(e.Code, "2") { // class 22 and 23 details quote data
		s += ": " + e.Detail
	}
	return s
}
func (e serverError) Unwrap() error { return e.PgError }

// oneLine strips the driver's own prefix and line breaks off a connection error;
// the chain stays.
func oneLine(err error) error {
	if ce := (*pgconn.ConnectError)(nil); errors.As(err, &ce) {
		err = ce.Unwrap()
	}
	if !strings.Contains(err.Error(), "\n") {
		return err
	}
	return flat{err}
}

type flat struct{ error }

func (e flat) Error() string { return strings.ReplaceAll(e.error.Error(), "\n", "; ") }
func (e flat) Unwrap() error { return e.error }
