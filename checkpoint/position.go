// Package checkpoint keeps the position up to which events are delivered.
package checkpoint

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

// Position says which events are delivered: every event of every transaction up
// to and including Last, and the first Open.Rows events of the transaction Open.
//
// Invariant: Trusted, Verified, Snapshot.LSN, Last.End ≤ Safe ≤ Open.Commit (where Open is set), and
// Rooted.LSN ≤ Last.Commit. Only Safe is ever confirmed to Postgres.
type Position struct {
	SystemID    string // IDENTIFY_SYSTEM's systemid; an LSN means nothing without it
	Timeline    int32
	Slot        string
	Publication string

	Last Txn           // the newest transaction with outbox rows that is delivered whole; zero: none yet
	Open Progress      // the transaction that is delivered in part; zero: none
	Safe pglogrepl.LSN // no undelivered outbox row commits below it: Last.End, or a later idle position

	// Trusted is the slot's confirmed LSN when there was no position yet: what commits below
	// it counts as delivered, on the slot's word.
	Trusted pglogrepl.LSN

	// Catalog is what was seen of publication and table when everything up to Verified had
	// been delivered. What is found to be different later may have hidden rows behind it.
	Catalog  Catalog
	Verified pglogrepl.LSN

	// What is delivered as transaction ids, for whoever reads the table itself. Snapshot lies
	// at or below Safe. Rooted lies at or below Last.Commit: it holds in any history of the
	// cluster that has Last, even if nothing else of its WAL can be seen.
	Snapshot Snapshot
	Rooted   Snapshot

	// Backfill is set while the rows from before the slot are being published: then nothing else here
	// means anything yet, and it starts over.
	Backfill Backfill
}

// Backfill is an unfinished read of the table.
type Backfill struct {
	Runs   int   // how often it was begun
	Events int64 // published by all of them, as far as that was noted
}

// Snapshot says that every transaction with an id below Xmin had ended before the WAL reached LSN;
// zero: not known. Ids of rows are the low 32 bits.
type Snapshot struct {
	Xmin uint64
	LSN  pglogrepl.LSN
}

// Txn identifies a delivered transaction well enough to recognise it when it is
// streamed again.
type Txn struct {
	Commit  pglogrepl.LSN
	End     pglogrepl.LSN
	XID     uint32
	Time    time.Time // commit time, by the server's clock
	EventID string    // id of the transaction's last event
}

// Progress is how far a transaction is delivered whose COMMIT was not reached.
type Progress struct {
	Commit  pglogrepl.LSN
	Rows    uint64 // events delivered
	EventID string // id of the last of them
}

// Catalog names the objects whose replacement would hide rows without an error.
type Catalog struct {
	Publication uint32 // oid of the publication
	Membership  uint32 // oid of the table's pg_publication_rel row; or of the schema that it is in by; 0 for FOR ALL TABLES
	Table       uint32 // oid of the table
	Settings    uint32 // xmin of the publication's row, which every ALTER PUBLICATION … SET (…) changes
}

// Compare orders positions of one slot by how much is delivered, and where that is
// the same by how much may be confirmed.
func (p Position) Compare(q Position) int {
	pl, pr := p.frontier()
	ql, qr := q.frontier()
	return cmp.Or(cmp.Compare(pl, ql), cmp.Compare(pr, qr), cmp.Compare(p.Safe, q.Safe))
}

// Source names, in 8 hex digits, where LSNs can be compared with each other: one
// cluster, timeline and slot. Events carry it in the header walrelay-source.
func (p Position) Source() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%s", p.SystemID, p.Timeline, p.Slot))
	return hex.EncodeToString(sum[:4])
}

// frontier is the first place that is not delivered: rows of a transaction in
// progress, else the safe LSN.
func (p Position) frontier() (pglogrepl.LSN, uint64) {
	if p.Open.Commit != 0 {
		return p.Open.Commit, p.Open.Rows
	}
	return p.Safe, 0
}

// Belongs returns a *StateError unless p is a position of this slot of this
// cluster. In any other cluster's WAL its LSNs mean nothing.
func (p Position) Belongs(systemID, slot string) error {
	if p.SystemID == systemID && p.Slot == slot {
		return nil
	}
	return &StateError{
		Reason: fmt.Sprintf("it belongs to slot %q of the cluster with system id %s, not to slot %q of %s", p.Slot, p.SystemID, slot, systemID),
		Remedy: "give every slot a --checkpoint of its own, and check that --postgres-url and --slot name the database that this one was made for",
	}
}

// supersededBy returns nil if q may replace p in a store.
func (p Position) supersededBy(q Position) error {
	if err := p.Belongs(q.SystemID, q.Slot); err != nil {
		return err
	}
	if p.Compare(q) > 0 {
		return fmt.Errorf("%w: %s is saved, %s was offered", ErrBehind, p.progress(), q.progress())
	}
	return nil
}

func (p Position) progress() string {
	if p.Open.Commit != 0 {
		return fmt.Sprintf("%s + %d rows", p.Open.Commit, p.Open.Rows)
	}
	return p.Safe.String()
}

// check is the invariant of Position.
func (p Position) check() error {
	switch {
	case p.SystemID == "" || p.Slot == "":
		return errors.New("system id or slot is empty")
	case p.Last.Commit > p.Last.End:
		return fmt.Errorf("commit %s is past its end %s", p.Last.Commit, p.Last.End)
	case p.Last.End > p.Safe:
		return fmt.Errorf("last end %s is past the safe LSN %s", p.Last.End, p.Safe)
	case p.Verified > p.Safe:
		return fmt.Errorf("verified LSN %s is past the safe LSN %s", p.Verified, p.Safe)
	case p.Trusted > p.Safe:
		return fmt.Errorf("trusted LSN %s is past the safe LSN %s", p.Trusted, p.Safe)
	case p.Open.Commit != 0 && p.Safe > p.Open.Commit:
		return fmt.Errorf("safe LSN %s is past the commit %s of the transaction in progress", p.Safe, p.Open.Commit)
	case p.Snapshot.LSN > p.Safe:
		return fmt.Errorf("snapshot at %s is past the safe LSN %s", p.Snapshot.LSN, p.Safe)
	case p.Rooted.LSN > p.Last.Commit:
		return fmt.Errorf("snapshot at %s is past the last commit %s", p.Rooted.LSN, p.Last.Commit)
	case p.Open.Commit == 0 && p.Open != Progress{}:
		return errors.New("a transaction in progress has no commit LSN")
	}
	return nil
}
