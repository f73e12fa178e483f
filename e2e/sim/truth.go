package sim

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/e2e/sim/simkafka"
	"github.com/walrelay/walrelay/e2e/sim/simnet"
	"github.com/walrelay/walrelay/e2e/sim/simpg"
)

// event is an outbox row: what was written, what its record has to look like, and
// what has become of it.
type event struct {
	id        string
	topic     string
	partition int32 // -1: has no key, and is where it was seen first
	key       []byte
	value     []byte
	headers   []simkafka.Header // without the position's
	timestamp int64             // 0: the commit's
	poison    bool              // no topic may take it
	large     bool              // may be more than a topic takes: then it is a dead letter

	fate    fate
	commit  pglogrepl.LSN
	end     pglogrepl.LSN
	seq     uint64
	txn     *simpg.Txn
	alone   bool         // the only row of its transaction
	acked   bool         // a broker has said so
	link    *simnet.Link // it was sent on last
	offset  int64        // of its first byte there
	claimed bool         // lost, and a saved position says that it was delivered; hidden, and there was a position that knows the catalog before
}

type fate int

const (
	pending   fate = iota // not committed, maybe never
	committed             // must reach Kafka
	hidden                // committed while the table was not in the publication
	lost                  // Postgres itself has lost it
)

// truth is every event that was ever written, the log of every partition, and what the
// relay has claimed of them.
type truth struct {
	mu         sync.Mutex
	fail       func(rule, format string, args ...any)
	partitions int
	byID       map[string]*event
	order      []*event // committed, in commit order
	frontier   int      // order[:frontier] needs no delivery any more
	logs       map[place]*plog
	old        []*plog // of deleted topics

	acks      int       // of records, so far
	largest   int       // bytes of an event
	heldSince time.Time // too much is held

	reigns    []*reign
	overs     map[string]bool     // processes that have ended → in good order
	orderly   map[string]bool     // processes → whether they took leave of their last session
	last      checkpoint.Position // that was saved
	saved     pglogrepl.LSN       // highest safe LSN that is saved
	confirmed pglogrepl.LSN       // highest that is confirmed
	diverged  bool                // Postgres has gone back and continues with other WAL
	lostOnes  int                 // events that Postgres has lost
	why       string              // what entitles the relay to refuse to go on
	must      string              // what obliges it
	expired   []time.Time         // when the brokers forgot all producer ids
	downs     []time.Time         // when Postgres went down: its slot may have fallen back
}

type place struct {
	topic     string
	partition int32
}

func (p place) String() string { return fmt.Sprintf("%s-%d", p.topic, p.partition) }

// plog is what consumers of a partition can read.
type plog struct {
	place
	records []*copied
}

// copied is one publication of an event.
type copied struct {
	*event
	client string
	reign  int
	batch  *simkafka.Batch
	at     time.Time // of the append
	offset int64
}

// bytes is the least memory that the relay needs for the event.
func (e *event) bytes() int {
	n := 200 + len(e.key) + len(e.value)
	for _, h := range e.headers {
		n += 40 + len(h.Value)
	}
	return n
}

func newTruth(partitions int, fail func(rule, format string, args ...any)) *truth {
	return &truth{partitions: partitions, byID: map[string]*event{}, logs: map[place]*plog{}, overs: map[string]bool{}, orderly: map[string]bool{}, fail: fail}
}

// written notes a row before its transaction ends.
func (t *truth) written(e *event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[e.id] = e
	t.largest = max(t.largest, e.bytes())
}

// committedTxn fixes the order.
func (t *truth) committedTxn(txn *simpg.Txn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	seq := uint64(0)
	for i := range txn.Rows {
		if txn.Rows[i].Undone {
			continue
		}
		e := txn.Rows[i].Tag.(*event)
		e.commit, e.end, e.seq, e.txn = txn.Commit, txn.End, seq, txn
		seq++
		e.alone = len(txn.Rows) == 1
		if e.timestamp == 0 {
			e.timestamp = txn.Time.UnixMilli()
		}
		if e.fate = committed; !txn.Published {
			e.fate, e.claimed = hidden, t.saved != 0
		}
		t.order = append(t.order, e)
	}
}

// lostTxns takes transactions out that a promoted or restored server doesn't have.
func (t *truth) lostTxns(txns []*simpg.Txn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, txn := range txns {
		for i := range txn.Rows {
			if txn.Rows[i].Undone {
				continue
			}
			e := txn.Rows[i].Tag.(*event)
			e.fate, e.claimed = lost, e.commit < t.saved
			t.lostOnes++
		}
	}
	t.order = slices.DeleteFunc(t.order, func(e *event) bool { return e.fate == lost })
	t.frontier = 0
}

// dropped puts a deleted topic's logs away.
func (t *truth) dropped(topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p, l := range t.logs {
		if p.topic == topic {
			t.old = append(t.old, l)
			delete(t.logs, p)
		}
	}
}

// published checks a batch that consumers can read from now on (G4, G6).
func (t *truth) published(c simkafka.Committed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := place{c.Topic, c.Partition}
	l := t.logs[p]
	if l == nil {
		l = &plog{place: p}
		t.logs[p] = l
	}
	for i := range c.Records {
		r := &c.Records[i]
		e := t.byID[string(header(r, "event-id"))]
		if e == nil {
			t.fail("G4", "%s offset %d: no row has the event id %q", p, c.Base+int64(i), header(r, "event-id"))
			continue
		}
		if e.fate == pending {
			t.fail("G4", "%s offset %d: event %s was never committed", p, c.Base+int64(i), e.id)
			continue
		}
		if what := t.differs(e, p, r); what != "" {
			t.fail("G6", "%s offset %d: event %s: %s", p, c.Base+int64(i), e.id, what)
		}
		l.records = append(l.records, &copied{event: e, client: c.Client, reign: t.reignOf(c.Client, c.Appended),
			batch: c.Batch, at: c.Appended, offset: c.Base + int64(i)})
	}
}

var hasher = kgo.StickyKeyPartitioner(nil)

// differs says in what a record is not what its row asks for.
func (t *truth) differs(e *event, p place, r *simkafka.Record) string {
	if e.poison {
		if p.topic != e.topic || header(r, "walrelay-error") == nil {
			return "it may only be a dead letter"
		}
		return ""
	}
	if e.large && p.topic == e.topic+".DLT" {
		return deadLetterDiffers(r)
	}
	if e.partition < 0 && e.key == nil {
		e.partition = p.partition
	}
	want := e.partition
	if want < 0 {
		want = int32(hasher.ForTopic(e.topic).Partition(&kgo.Record{Key: e.key}, t.partitions))
	}
	switch {
	case p.topic != e.topic:
		return "it belongs to topic " + e.topic
	case p.partition != want:
		return fmt.Sprintf("it belongs to partition %d", want)
	case !bytes.Equal(r.Key, e.key) || (r.Key == nil) != (e.key == nil):
		return "another key"
	case !bytes.Equal(r.Value, e.value) || (r.Value == nil) != (e.value == nil):
		return "another value"
	case r.Timestamp != e.timestamp:
		return fmt.Sprintf("its timestamp is %d, not %d", r.Timestamp, e.timestamp)
	}
	return headersDiffer(e, r)
}

func headersDiffer(e *event, r *simkafka.Record) string {
	want := append(slices.Clone(e.headers),
		simkafka.Header{Key: "walrelay-lsn", Value: []byte(e.commit.String())},
		simkafka.Header{Key: "walrelay-seq", Value: fmt.Append(nil, e.seq)})
	got := slices.DeleteFunc(slices.Clone(r.Headers), func(h simkafka.Header) bool { return h.Key == "walrelay-source" })
	if len(got) != len(r.Headers)-1 || len(header(r, "walrelay-source")) != 8 {
		return "no walrelay-source"
	}
	sortHeaders(want)
	sortHeaders(got)
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			return "no header " + want[i].Key
		case i >= len(want):
			return "unexpected header " + got[i].Key
		case want[i].Key != got[i].Key || !bytes.Equal(want[i].Value, got[i].Value) || (want[i].Value == nil) != (got[i].Value == nil):
			return fmt.Sprintf("header %s is %q, not %s = %q", got[i].Key, got[i].Value, want[i].Key, want[i].Value)
		}
	}
	return ""
}

func deadLetterDiffers(r *simkafka.Record) string {
	if header(r, "walrelay-error") == nil || header(r, "walrelay-value-omitted") == nil {
		return "its dead letter doesn't say why"
	}
	return ""
}

func sortHeaders(h []simkafka.Header) {
	slices.SortFunc(h, func(a, b simkafka.Header) int {
		if c := strings.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		return bytes.Compare(a.Value, b.Value)
	})
}

func header(r *simkafka.Record, name string) []byte {
	for i := range r.Headers {
		if r.Headers[i].Key == name {
			return r.Headers[i].Value
		}
	}
	return nil
}

// acked notes what a broker tells the producer.
func (t *truth) acked(_ string, b *simkafka.Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range b.Records {
		if e := t.byID[string(header(&b.Records[i], "event-id"))]; e != nil {
			e.acked = true
			t.acks++
		}
	}
}

// undelivered is the first event in commit order that is not acknowledged; nil: none.
func (t *truth) undelivered() *event {
	for t.frontier < len(t.order) {
		if e := t.order[t.frontier]; !e.acked && e.fate == committed {
			return e
		}
		t.frontier++
	}
	return nil
}

// deliveredBy says whether a position claims that e is delivered.
func deliveredBy(p checkpoint.Position, e *event) bool {
	return e.commit < p.Safe || p.Open.Commit != 0 && (e.commit < p.Open.Commit || e.commit == p.Open.Commit && e.seq < p.Open.Rows)
}

// provable moves a saved position up to the first event that is not acknowledged.
func (t *truth) provable(p checkpoint.Position) checkpoint.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.undelivered()
	for i, e := range t.order[:t.frontier] {
		if e.commit < p.Safe || e.fate != committed {
			continue
		}
		if i+1 < len(t.order) && t.order[i+1].commit == e.commit { // not the last of its transaction
			p.Open = checkpoint.Progress{Commit: e.commit, Rows: e.seq + 1, EventID: e.id}
			continue
		}
		p.Open = checkpoint.Progress{}
		p.Last = checkpoint.Txn{Commit: e.commit, End: e.end, XID: e.txn.XID, Time: e.txn.Time, EventID: e.id}
		p.Safe = e.end
	}
	return p
}
