package relay

import (
	"errors"
	"time"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

// authPatience is how long refused credentials are tried again: a password that is
// being rotated comes right by itself.
const authPatience = time.Minute

// patience measures how long a refusal lasts; any other outcome starts it anew.
type patience struct{ since time.Time }

// ended takes one outcome, and says whether refusals have lasted for too long.
func (p *patience) ended(refused bool) bool {
	if !refused {
		p.since = time.Time{}
	} else if p.since.IsZero() {
		p.since = time.Now()
	}
	return refused && time.Since(p.since) > authPatience
}

// fatal says which errors end the process because waiting cannot mend them. All
// others are outlived.
func fatal(err error) bool {
	var code *sink.CodeError
	switch {
	case errors.As(err, new(*replication.ContinuityError)): // rows may be missing; only an operator can say that it is all right
		return true
	case errors.As(err, new(*checkpoint.StateError)): // a position that cannot be read does not heal
		return true
	case errors.As(err, new(*replication.SetupError)): // the server's configuration must change first
		return true
	case errors.As(err, new(*ReachError)), errors.As(err, new(*PendingReplayError)): // the replay that was asked for can't be had
		return true
	case errors.As(err, new(*decode.MappingError)): // the table does not fit the mapping
		return true
	case errors.As(err, new(*decode.PoisonError)): // policy stop: the same row comes again at each start
		return true
	case errors.As(err, new(*sink.WeakTopicError)): // reported only at the start, where nobody relies on us yet
		return true
	case errors.As(err, new(*sink.TopicError)): // the topic's configuration must change first
		return true
	case errors.As(err, new(*sink.AuthError)): // reported only after authPatience
		return true
	case errors.As(err, &code) && code.Fatal(): // the brokers' answer stays the same
		return true
	case errors.Is(err, ErrDrainTimeout), errors.Is(err, ErrUnsaved), errors.Is(err, ErrBeforeGoal): // a stop was asked for
		return true
	}
	return false
}
