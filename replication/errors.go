package replication

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"
)

// Errors of this package that wrap none of these and are none of the types below
// are transient: the next attempt may succeed.
var (
	// ErrSlotInUse is returned when another session streams from the slot.
	ErrSlotInUse = errors.New("the slot is in use")

	// ErrStandby is returned when the server is in recovery.
	ErrStandby = errors.New("the server is a standby")

	// ErrShutdown is returned when the server waits for this session to end, so
	// that it can shut down.
	ErrShutdown = errors.New("the server is starting up or shutting down")
)

// ContinuityError means that committed rows may have been, or would be, skipped.
type ContinuityError struct {
	Fault    Fault
	Reason   string
	From, To pglogrepl.LSN // the gap is (From, To]; both zero where it is not known (yet)
	Rows     string        // what the outbox table may still hold of the gap; "": nobody has looked
	Remedy   string        // what has to be mended before the commands of Fault help; "": nothing
}

func (e *ContinuityError) Error() string {
	parts := []string{e.Reason}
	gap := "LSN"
	if e.From != 0 || e.To != 0 {
		gap = e.From.String()
		parts = append(parts, fmt.Sprintf("in doubt: (%s, %s]", e.From, e.To))
	}
	for _, part := range []string{e.Rows, e.Remedy, e.Fault.commands(gap)} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "; ")
}

// commands are the ways out as an operator types them.
func (f Fault) commands(gap string) string {
	var ways []string
	has := f.Ways()
	if has&Adopt != 0 {
		ways = append(ways, "after pg_upgrade: `"+cmdAdopt+"`")
	}
	if has&FromTable != 0 {
		ways = append(ways, "publish again what the table holds: `"+cmdTable+"`")
	}
	if has&AcceptGap != 0 {
		ways = append(ways, "go on without it: `"+cmdAccept+gap+"`")
	}
	if gap == "LSN" && has != 0 {
		ways = append(ways, "`walrelay recover` alone shows the gap")
	}
	return strings.Join(ways, "; ")
}

// SetupError means that the server's or the relay's configuration must change
// before anything can work.
type SetupError struct {
	Reason string
	Remedy string
}

func (e *SetupError) Error() string { return e.Reason + "; " + e.Remedy }

// AuthError means that the server refuses who we are or what we want to do.
type AuthError struct {
	Op     string // what was refused
	Err    error  // the server's answer
	Remedy string
}

func (e *AuthError) Error() string { return e.Op + ": " + e.Err.Error() + "; " + e.Remedy }
func (e *AuthError) Unwrap() error { return e.Err }
