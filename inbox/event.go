package inbox

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Names of the headers that walrelay's topics carry, and those of dead letters.
const (
	HeaderID       = "event-id"
	HeaderLSN      = "walrelay-lsn"
	HeaderSeq      = "walrelay-seq"
	HeaderSource   = "walrelay-source"
	HeaderParkedBy = "walrelay-parked-by"
)

// Copy says why an event is published once more, or out of its place; "" = it is in its place.
type Copy string

// The copies, by the headers that mark them.
const (
	CopyReplay  Copy = "walrelay-replay"  // a window of the WAL is published again
	CopyRecover Copy = "walrelay-recover" // published from the table
	CopyRedrive Copy = "walrelay-redrive" // a dead letter is sent again
)

// Event is what has to be known of an event in order to claim it. Only ID is needed; the rest is for the position inbox.
type Event struct {
	ID string

	Topic     string // where it was read
	Partition int
	Source    string // where LSNs can be compared; "" = no position
	LSN       string // commit LSN, as Postgres writes it
	Seq       int64  // ordinal in the transaction

	Copy     Copy
	ParkedBy string // which consumer parked it, if it is a dead letter that is sent again
}

func (e Event) positioned() bool { return e.Source != "" && e.LSN != "" }

// String names the event by its id and place; it holds nothing of the content.
func (e Event) String() string {
	return fmt.Sprintf("event %q (%s-%d, %s+%d)", e.ID, e.Topic, e.Partition, e.LSN, e.Seq)
}

// Set takes over what a header says about the event; other headers are none of its business. Headers are input: what
// Postgres could not store, or is not a position, counts as missing.
func (e *Event) Set(name string, value []byte) {
	if !utf8.Valid(value) || bytes.IndexByte(value, 0) >= 0 {
		value = nil
	}
	switch name {
	case HeaderID:
		e.ID = string(value)
	case HeaderSource:
		e.Source = string(value)
	case HeaderLSN:
		if e.LSN = ""; isLSN(string(value)) {
			e.LSN = string(value)
		}
	case HeaderSeq:
		seq, err := strconv.ParseInt(string(value), 10, 64)
		if e.Seq = seq; err != nil || seq < 0 {
			e.Seq, e.Source = 0, ""
		}
	case HeaderParkedBy:
		e.ParkedBy = string(value)
	case string(CopyRedrive): // whatever it was before
		e.Copy = CopyRedrive
	case string(CopyReplay), string(CopyRecover):
		if e.Copy != CopyRedrive {
			e.Copy = Copy(name)
		}
	}
}

// isLSN is what Postgres takes for a pg_lsn: two hexadecimal numbers of at most 32 bits.
func isLSN(s string) bool {
	for i := range len(s) {
		if s[i] == '/' {
			_, high := strconv.ParseUint(s[:i], 16, 32)
			_, low := strconv.ParseUint(s[i+1:], 16, 32)
			return high == nil && low == nil && len(s[:i]) <= 8 && len(s[i+1:]) <= 8
		}
	}
	return false
}
