package relay

import (
	"errors"
	"time"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
)

// authPatience is how long refused credentials are tried again: a password that is
// being rotated comes right by itself.
const authPatience = time.Minute

// fatal says which errors end the process because waiting cannot mend them. All
// others are outlived.
func fatal(err error) bool {
	switch {
	case errors.As(err, new(*replication.ContinuityError)): // rows may be missing; only an operator can say that it is all right
		return true
	case errors.As(err, new(*checkpoint.StateError)): // a position that cannot be read does not heal
		return true
	case errors.As(err, new(*replication.SetupError)): // the server's configuration must change first
		return true
	case errors.As(err, new(*decode.MappingError)): // the table does not fit the mapping
		return true
	case errors.As(err, new(*decode.PoisonError)): // policy stop: the same row comes again at each start
		return true
	case errors.Is(err, ErrDrainTimeout): // a stop was asked for
		return true
	}
	return false
}
