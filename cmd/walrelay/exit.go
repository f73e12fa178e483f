package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/relay"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

// Exit codes. Scripts and supervisors act on them: a code is never reused.
const (
	exitOK         = 0
	exitFailed     = 1  // a command that ends by itself did not succeed
	exitUsage      = 2  // command line, environment, config file, or the server's configuration
	exitContinuity = 10 // that no row was skipped cannot be proven
	exitPoison     = 11 // a row can never be published, and the policy is stop
	exitAuth       = 12 // permission or authentication, after a minute of retries
	exitMapping    = 13 // the table does not fit the mapping
	exitDrain      = 14 // a stop left events in flight, or their position unsaved
)

// exitCode is the one place where an error becomes an exit code.
func exitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, new(*usageError)),
		errors.As(err, new(*decode.ConfigError)),
		errors.As(err, new(*replication.SetupError)),
		errors.As(err, new(*sink.WeakTopicError)),
		errors.As(err, new(*sink.TopicError)),
		errors.As(err, new(*relay.PendingReplayError)),
		errors.As(err, new(*sink.CodeError)): // its fatal ones: version or configuration of the brokers
		return exitUsage
	case errors.As(err, new(*replication.ContinuityError)),
		errors.As(err, new(*checkpoint.StateError)),
		errors.As(err, new(*relay.ReachError)):
		return exitContinuity
	case errors.As(err, new(*decode.PoisonError)):
		return exitPoison
	case errors.As(err, new(*replication.AuthError)),
		errors.As(err, new(*sink.AuthError)):
		return exitAuth
	case errors.As(err, new(*decode.MappingError)):
		return exitMapping
	case errors.Is(err, relay.ErrDrainTimeout), errors.Is(err, relay.ErrUnsaved):
		return exitDrain
	}
	return exitFailed
}

// report writes the last line of a run that did not end well: what happened, why,
// and what to do, all of which the errors' texts say.
func report(w io.Writer, err error, s *settings) {
	text := strings.Join(strings.Fields(err.Error()), " ") // some drivers' errors have several lines
	if s.logFormat != "" && asJSON(w, s.logFormat) {
		s.log.Error().Int("exit", exitCode(err)).Str("error", text).Msg("stopped")
		return
	}
	fmt.Fprintf(w, "walrelay: %s\n", text)
}
