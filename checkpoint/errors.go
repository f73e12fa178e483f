package checkpoint

import (
	"errors"
	"fmt"
)

var (
	// ErrNone is returned by Load when no position was ever saved. The slot alone
	// then says what is delivered.
	ErrNone = errors.New("checkpoint: nothing is saved yet")

	// ErrBehind is returned by Save when the store holds a higher position of the
	// same slot: another relay has delivered more, and what is known here is
	// stale. The saved position stays.
	ErrBehind = errors.New("checkpoint: a higher position of this slot is saved already")

	// ErrLost is returned by Save when the store is another relay's by now, or may have been
	// written without our knowing: it has to be owned and loaded again.
	ErrLost = errors.New("checkpoint: the position may or may not be saved")
)

// StateError says that what is stored cannot be trusted as this relay's position:
// torn, edited, foreign, from a newer version, unreadable. Waiting does not help;
// nothing was changed.
type StateError struct {
	Store  string // the file's path; "" where a position was judged outside of its store
	Reason string
	Remedy string // what the operator can do

	// Damaged says that it was a position, and can't be read any more: it may be replaced.
	Damaged bool
}

func (e *StateError) Error() string {
	if e.Store == "" {
		return fmt.Sprintf("checkpoint: %s; %s", e.Reason, e.Remedy)
	}
	return fmt.Sprintf("checkpoint %s: %s; %s", e.Store, e.Reason, e.Remedy)
}

// MovedError is returned by Load where the position was kept until another store took it over.
type MovedError struct {
	Position Position // as it was then
	To       string   // the store that it was moved to, as --checkpoint names it
	state    StateError
}

func newMovedError(store string, m *moved) *MovedError {
	return &MovedError{Position: m.position, To: m.to, state: StateError{
		Store:  store,
		Reason: "the position was moved to " + m.to,
		Remedy: fmt.Sprintf("start with --checkpoint %[1]s, or take it back by --checkpoint-from %[1]s", m.to),
	}}
}

func (e *MovedError) Error() string { return e.state.Error() }
func (e *MovedError) Unwrap() error { return &e.state }

// moved is what decode finds in a document that was left behind.
type moved struct {
	position Position
	to       string
}

func (m *moved) Error() string { return "the position was moved to " + m.to }
