// Package checker decides whether what is in Kafka is what Postgres committed.
//
// The truth is the commit order as a second logical slot tells it, read with a decoder
// that shares no code with the relay's. The observation is every record of the topics,
// read by an independent client. Compare holds one against the other; a Sampler watches
// on the side that the relay's slot never confirms what cannot be read from Kafka.
//
// Findings name event ids, positions and offsets, never a payload.
package checker

import (
	"bytes"
	"crypto/sha256"
	"slices"
	"strings"

	"github.com/jackc/pglogrepl"
)

// Event is one committed outbox row and what its record has to look like.
type Event struct {
	Commit pglogrepl.LSN // commit LSN of the transaction
	End    pglogrepl.LSN // end of its commit record
	Seq    uint64        // ordinal of the row in the transaction, from 0
	Content
}

// Record is one Kafka record.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64

	Positioned bool // has the headers walrelay-lsn and walrelay-seq
	Commit     pglogrepl.LSN
	Seq        uint64
	Source     string // walrelay-source
	Producer   Producer
	Replay     string // walrelay-replay: the run that published it again; "": it was published live
	Whole      Digest // of key, value, timestamp and all headers in their order, but walrelay-replay
	Recover    string // walrelay-recover
	Content
}

// Producer names who has written a record: each life of a relay has an id of its own, or
// an epoch.
type Producer struct {
	ID    int64
	Epoch int16
}

// Content is what an event and its record have in common.
type Content struct {
	ID        string
	Topic     string
	Partition int32 // an event's: the row's own choice, or -1: by the key
	Key       string
	NoKey     bool
	Value     Digest
	Headers   []Header // sorted; without the walrelay-… headers
	Timestamp int64    // milliseconds
}

// Header is a header's name and the digest of its value.
type Header struct {
	Name  string
	Value Digest
}

// Digest stands for bytes, so that a million payloads fit into memory and none can
// reach a log. NULL's is zero.
type Digest [12]byte

func digest(b []byte) (d Digest) {
	if b != nil {
		sum := sha256.Sum256(b)
		copy(d[:], sum[:])
	}
	return d
}

func compareHeaders(a, b Header) int {
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return bytes.Compare(a.Value[:], b.Value[:])
}

// headerDifference names the first header in which two sorted lists differ, or "".
func headerDifference(want, got []Header) string {
	if slices.Equal(want, got) {
		return ""
	}
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			return want[i].Name
		case i >= len(want) || want[i] != got[i]:
			return got[i].Name
		}
	}
	return ""
}
