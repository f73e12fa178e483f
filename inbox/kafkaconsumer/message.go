package kafkaconsumer

import (
	"errors"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/walrelay/walrelay/inbox"
)

// Message is one event as it was read. It is the handler's to read, and to keep.
type Message struct {
	inbox.Event // its id, and topic and partition it was read from

	Offset  int64
	Key     []byte // nil = none
	Value   []byte // nil = tombstone
	Headers []kafka.Header
	Time    time.Time

	// Claim is the claim that the effect runs under: Claim.Keep stores what later duplicates are told.
	Claim *inbox.Claim
}

// Header returns the value of the first header with a name; nil = none.
func (m *Message) Header(name string) []byte {
	for _, h := range m.Headers {
		if h.Key == name {
			return h.Value
		}
	}
	return nil
}

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// Permanent marks an error that no repetition mends: the event is parked at once.
func Permanent(err error) error { return permanentError{err} }

func isPermanent(err error) bool {
	return errors.As(err, new(permanentError)) || errors.Is(err, inbox.ErrNoID) || errors.Is(err, inbox.ErrUndecidable)
}
