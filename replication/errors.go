package replication

import (
	"errors"
	"fmt"

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
	Reason   string
	From, To pglogrepl.LSN // the gap is (From, To]; zero where this package can't know it
	Remedy   string
}

func (e *ContinuityError) Error() string {
	if e.From == 0 && e.To == 0 {
		return e.Reason + "; " + e.Remedy
	}
	return fmt.Sprintf("%s; in doubt: (%s, %s]; %s", e.Reason, e.From, e.To, e.Remedy)
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
