package decode

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// Kind says what a message was.
type Kind int

const (
	Other  Kind = iota // nothing of the outbox
	Begin              // a transaction has begun
	Row                // one event was appended to the batch
	Commit             // the transaction is complete
)

// Decoder turns a stream of pgoutput messages into events. One goroutine uses it.
type Decoder struct {
	// Ignored counts messages that were read and carry no event: changes of other
	// tables, and updates, deletes and truncates of the outbox.
	Ignored uint64

	// DroppedHeaders counts headers of rows that are not the row's to give: the
	// standard ones and walrelay-*. See [Decoder.DroppedNames].
	DroppedHeaders uint64

	// Table is the oid of the outbox table, where it is known: its rows are then ours
	// under whatever name it had when they were written. 0: it is known by its name alone.
	Table uint32

	// Marks are appended to the headers of each event: walrelay-replay and its like, which
	// say why it is published. They are set before [Decoder.Start], and not changed later.
	Marks []Header

	m      *mapping
	rel    *relation // nil before the table's Relation message
	source []byte    // value of walrelay-source; never changed once it is set

	txn      Txn
	open     bool  // between BEGIN and COMMIT
	commitMs int64 // txn.Time, as Kafka counts it

	// seen[r] is the commit LSN of the newest transaction in which the table had the
	// role r's column; 0 = none. WAL that is read a second time, from before the
	// column was added, is no loss of it.
	seen [roles]pglogrepl.LSN

	spans []span // the tuple's columns, valid within one insert
	names headerNames

	unplaced bool   // rows come from the table itself, see StartTable
	tuple    []byte // the newest of them, as an Insert message

	// Headers as they are written to each event, see describe and finish.
	position  []byte
	tail      []byte
	tailCount int // of the headers in both
}

// New checks a configuration; its errors are *[ConfigError].
func New(cfg Config) (*Decoder, error) {
	m, err := newMapping(cfg)
	if err != nil {
		return nil, err
	}
	return &Decoder{m: m, names: newHeaderNames(m)}, nil
}

// Check says by a *[MappingError] whether a table with these columns fits. They
// are the published ones: without generated columns, and of a column list only those in it.
func (d *Decoder) Check(cols []Column) error {
	_, err := d.m.resolve(cols)
	return err
}

// Allows says whether events may be published to a topic. Any goroutine may call it.
func (d *Decoder) Allows(topic string) bool { return d.m.topics.refuse(topic) == "" }

// Expects says whether the template, or the allow-list by name, has events published to a topic. Any goroutine may call it.
func (d *Decoder) Expects(topic string) bool { return d.m.topics.expects(topic) }

// Column returns the name of the column that has a role, "" where none has.
func (d *Decoder) Column(role string) string {
	r, ok := parseRole(role)
	if !ok {
		return ""
	}
	return d.m.columns[r].name
}

// Start begins a new stream: relations and transactions of the one before are
// forgotten. Source is the value of the header walrelay-source; "" = no such header.
func (d *Decoder) Start(source string) {
	d.rel, d.txn, d.open, d.unplaced = nil, Txn{}, false, false
	d.source = nil
	if source != "" {
		d.source = []byte(source)
	}
}

// Txn returns the transaction in progress (open) or else the one that was
// committed last; a zero Txn before the first.
func (d *Decoder) Txn() (txn Txn, open bool) { return d.txn, d.open }

// EventType returns the event type of the row that Decode has read from wal just now, which
// may be in none of the event's headers; nil where there is none. It points into wal.
func (d *Decoder) EventType(wal []byte) []byte { return d.column(roleEventType).of(wal[tupleAt:]) }

// Decode reads one message. Where it is a row of the outbox it returns Row, and
// has appended exactly one event to b. It keeps nothing of wal.
//
// Errors are *[ProtocolError] and *[MappingError]; b is then as it was before, and
// the decoder has to be started anew. Nothing in a message makes it panic.
func (d *Decoder) Decode(wal []byte, b *Batch) (Kind, error) {
	if len(wal) == 0 {
		return Other, protocolError(wal, 0, "the message is empty")
	}
	switch wal[0] {
	case 'I':
		return d.insert(wal, b)
	case 'B':
		return Begin, d.begin(wal)
	case 'C':
		return Commit, d.commit(wal)
	case 'R':
		return Other, d.relation(wal)
	case 'U', 'D', 'T':
		d.Ignored++
		if !d.open {
			return Other, protocolError(wal, 0, "a change outside of a transaction")
		}
		return Other, nil
	case 'O', 'Y', 'M':
		d.Ignored++ // origin, type, logical message
		return Other, nil
	case 'A':
		// Some servers of version 18 send the abort of a streamed transaction even
		// to a client that did not ask for streaming. It knows none.
		d.Ignored++
		return Other, nil
	case 'b', 'P', 'K', 'r', 'p':
		return Other, protocolError(wal, 0, "two-phase commit: the slot was created with two_phase, use one without")
	}
	return Other, protocolError(wal, 0, "not a message of protocol version 1")
}

func (d *Decoder) begin(wal []byte) error {
	r := reader{msg: wal, pos: 1}
	commit, at, xid := r.uint64(), r.uint64(), r.uint32()
	if err := r.end(); err != nil {
		return err
	}
	if d.open {
		return r.fail("a transaction begins inside of another")
	}
	d.open = true
	d.txn = Txn{Commit: pglogrepl.LSN(commit), XID: xid, Time: serverTime(at)}
	d.commitMs = max(d.txn.Time.UnixMilli(), 0)
	d.describe(d.txn.Commit)
	return nil
}

func (d *Decoder) commit(wal []byte) error {
	r := reader{msg: wal, pos: 1}
	r.uint8() // flags, unused
	commit, end := pglogrepl.LSN(r.uint64()), pglogrepl.LSN(r.uint64())
	r.uint64() // commit time, known from BEGIN
	if err := r.end(); err != nil {
		return err
	}
	switch {
	case !d.open:
		return r.fail("a commit without a transaction")
	case commit != d.txn.Commit:
		return r.fail("the commit is not of the transaction that began")
	case end <= commit:
		return r.fail("the commit's end is not behind its start")
	}
	d.open = false
	d.txn.End = end
	return nil
}

// relation maps the outbox table anew each time the server describes it, which it
// does before the first row and after every change of the table.
func (d *Decoder) relation(wal []byte) error {
	r := reader{msg: wal, pos: 1}
	oid := r.uint32()
	schema, table := r.cstring(), r.cstring()
	if r.bad {
		return r.end()
	}
	named := string(schema) == d.m.schema && string(table) == d.m.table
	if !named && (d.Table == 0 || oid != d.Table) {
		d.Ignored++
		if d.rel != nil && d.rel.oid == oid {
			return &MappingError{Table: d.m.name(), Reason: "it was renamed",
				Remedy: "give its new name by --table, or rename it back"}
		}
		return nil
	}
	r.uint8() // replica identity
	count := int(r.uint16())
	var cols []Column
	for range count {
		r.uint8() // flags: part of the key
		name := r.cstring()
		typ := r.uint32()
		r.uint32() // type modifier
		if r.bad {
			break
		}
		cols = append(cols, Column{string(name), typ})
	}
	if err := r.end(); err != nil {
		return err
	}
	return d.use(oid, cols)
}

// use makes the columns those of the rows that follow.
func (d *Decoder) use(oid uint32, cols []Column) error {
	rel, err := d.m.resolve(cols)
	if err != nil {
		return err
	}
	for r := range roles {
		switch {
		case rel.index[r] >= 0:
			d.seen[r] = max(d.seen[r], d.txn.Commit)
		case d.seen[r] > 0 && d.txn.Commit > d.seen[r], d.rel != nil && d.rel.index[r] >= 0:
			return d.m.lost(r)
		}
	}
	rel.oid = oid
	d.rel = rel
	d.finish()
	if cap(d.spans) < rel.width {
		d.spans = make([]span, rel.width)
	}
	return nil
}

// serverTime reads a timestamp of the protocol: microseconds since 2000-01-01.
func serverTime(us uint64) time.Time {
	const epoch = 946684800 // 2000-01-01, in Unix seconds
	s, rest := int64(us)/1e6, int64(us)%1e6
	return time.Unix(epoch+s, rest*1000).UTC()
}
