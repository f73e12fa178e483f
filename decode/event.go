// Package decode turns the bytes of Postgres' pgoutput plugin into outbox events.
// It does no I/O, starts no goroutine and logs nothing.
//
// Messages are parsed as protocol version 1 describes them, see
// https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html.
package decode

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// Event is one outbox row, ready to be produced to Kafka.
//
// All byte slices point into the memory of the [Batch] that holds the event and
// are valid until that batch is reset.
type Event struct {
	Topic     string // resolved and checked against the allow-list
	Key       []byte // Kafka key; nil = no key (an empty key is not nil)
	Value     []byte // Kafka value, the column's bytes; nil = tombstone
	Headers   Headers
	ID        []byte // the row's event id
	Timestamp int64  // Kafka timestamp, milliseconds since the Unix epoch

	// Partition is the row's own choice (the partition role's column), or -1: by
	// the key, and without a key by (Commit, Seq).
	Partition int32

	// (Commit, Seq) is the identity of the event in the WAL. A row's own LSN is
	// none: rows of one COPY share it.
	Commit pglogrepl.LSN // commit LSN of the transaction (BEGIN's final_lsn)
	Seq    uint64        // ordinal of the row among the outbox rows of its transaction, from 0

	// Poison is set when the row can never be published as it is. Topic, Key,
	// Value and Headers then hold what could be decoded.
	Poison *PoisonError
}

// Txn is a transaction as its BEGIN and COMMIT messages describe it.
type Txn struct {
	Commit pglogrepl.LSN // LSN of the commit record: BEGIN.final_lsn = COMMIT.commit_lsn
	End    pglogrepl.LSN // end of the commit record, exclusive; set by COMMIT only
	XID    uint32
	Time   time.Time // commit time by the server's clock
	Rows   uint64    // outbox rows decoded so far
}

// PoisonError says why a row can never be published. Reason never holds payload bytes.
type PoisonError struct {
	EventID string // "" where the id is NULL; cut after 256 bytes
	Commit  pglogrepl.LSN
	Seq     uint64
	Reason  string

	// BadTopic says that the event's Topic is what the row asked for (cut after
	// Kafka's 249 bytes) and must not be written to, nor a name derived from it.
	BadTopic bool
}
