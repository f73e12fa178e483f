package sink

import (
	"github.com/walrelay/walrelay/decode"
)

// Prepared is a list of events on its way: routed, and encoded into record batches
// that only lack their identity. It is made without I/O by [Producer.Prepare] and used up by [Producer.Deliver].
//
// Invariant: events[:end] that are neither acknowledged nor in a batch of a run wait
// for their topic to be looked at (share.waiting).
type Prepared struct {
	events []decode.Event // the caller's; read until Deliver returns
	route  []int32        // events[i] is in batches[route[i]], or unrouted
	sizes  []int32        // events[i]'s recordSize

	// events[end:] are not sent: events[end] is poison, or in doubt until its topic has
	// been looked at again, or there is none.
	end    int
	poison *decode.PoisonError
	doubt  *share

	parked map[int]*deadLetter // what is sent in the place of events[i]

	batches []*batch // by serial
	shares  []*share
	byTopic map[string]*share
	last    *share // the share of the event before

	raw    []byte   // memory of the batches of the first pass, kept for the next use
	packed appender // the same, compressed
}

// share is what one topic gets of a Prepared.
type share struct {
	name    string
	target  *target // nil where the name is illegal
	asOf    shape
	ledgers []*ledger
	sure    bool   // asOf was read during this delivery: what it refuses is refused
	byPart  []*run // by partition; nil = no event yet
	runs    []*run // those that are not nil

	// waiting: event first, and maybe others behind it, wait until the topic has been looked at.
	waiting bool
	first   int
	shrunk  bool     // the topic lost partitions: to be routed anew when nothing is in flight
	failing *trouble // why the topic can't be written to; nil = it can
}

// batch is one record batch of one partition.
type batch struct {
	serial      int32
	first, last int // events[first:last+1] with route == serial
	count       int32
	filled      int32
	base        int64 // timestamp of the first record
	newest      int64
	size        int    // uncompressed, with header
	buf         []byte // size prefix, header, records

	sealed   bool // has its identity: from here on the bytes never change
	sent     bool // was in a request
	doubtful bool // an attempt may have been appended: the outcome is not known
	dead     bool // of dead letters
}

const unrouted = -1

// event returns what is sent for events[i].
func (pr *Prepared) event(i int) (ev *decode.Event, dead *deadLetter) {
	if pr.parked != nil {
		if d := pr.parked[i]; d != nil {
			return &d.event, d
		}
	}
	return &pr.events[i], nil
}

// plan puts every unrouted event of events[:end] into a batch, in order, and encodes these
// batches. What a topic refuses is parked or moves end.
func (p *Producer) plan(pr *Prepared) {
	pr.recall()
	pass := int32(len(pr.batches))
	for i := 0; i < pr.end; i++ {
		if pr.route[i] == unrouted {
			p.assign(pr, i, pass)
		}
	}
	p.fill(pr, pass)
}

// assign gives event i its place behind all others of its partition that came before.
func (p *Producer) assign(pr *Prepared, i int, pass int32) {
	ev, dead := pr.event(i)
	if dead == nil && ev.Poison != nil {
		p.refuse(pr, i, pass, nil, ev.Poison.Reason, true)
		return
	}
	s := p.shareOf(pr, ev.Topic)
	if dead == nil {
		if reason, certain := s.refusal(ev); reason != "" {
			p.refuse(pr, i, pass, s, reason, certain)
			return
		}
	}
	if s.asOf.partitions == 0 {
		s.wait(i)
		return
	}
	part, _ := partitionOf(ev, s.asOf.partitions)
	r := s.run(part)
	b := r.open(pass)
	var size, full int
	if b != nil {
		size = recordSize(ev, ev.Timestamp-b.base, int64(b.count))
		full = varintSize(int64(size)) + size
	}
	if b == nil || b.size+full > min(p.batchBytes, s.asOf.cut()) {
		size = recordSize(ev, 0, 0)
		full = varintSize(int64(size)) + size
		if !p.mayFit(batchHeader+full, s.asOf.limit) {
			if dead == nil {
				p.refuse(pr, i, pass, s, tooLargeReason(batchHeader+full), false)
				return
			}
			if dead.slim() {
				p.assign(pr, i, pass)
				return
			}
		}
		b = pr.newBatch(r, i, ev.Timestamp)
		b.dead = dead != nil
	}
	b.last = i
	b.count++
	b.size += full
	b.newest = max(b.newest, ev.Timestamp)
	pr.route[i] = b.serial
	pr.sizes[i] = int32(size)
}

// refuse does by policy what becomes of event i. A doubtful refusal waits until all
// events before are delivered, and is looked into then.
func (p *Producer) refuse(pr *Prepared, i int, pass int32, s *share, reason string, certain bool) {
	switch {
	case !certain && !s.sure:
		pr.end, pr.doubt = i, s
	case p.policy == PoisonStop || p.own(pr.events[i].Topic):
		pr.stopAt(i, reason)
	default:
		p.park(pr, i, reason)
		p.assign(pr, i, pass)
	}
}

// stopAt makes event i the end: it is never sent, nor what comes behind it.
func (pr *Prepared) stopAt(i int, reason string) {
	pr.end, pr.doubt = i, nil
	if pr.poison = pr.events[i].Poison; pr.poison == nil {
		ev := &pr.events[i]
		pr.poison = &decode.PoisonError{EventID: string(ev.ID), Commit: ev.Commit, Seq: ev.Seq, Reason: reason}
	}
}

// mayFit reports whether a lone record batch of n bytes may be accepted. How far it
// can be compressed is seen only when it is sent.
func (p *Producer) mayFit(n, limit int) bool {
	return n <= frameLimit && (limit == 0 || n <= limit || p.codec != nil)
}

// fill encodes the batches from serial pass on.
func (p *Producer) fill(pr *Prepared, pass int32) {
	fresh := pr.batches[pass:]
	if len(fresh) == 0 {
		return
	}
	total, first, last := 0, fresh[0].first, 0
	for _, b := range fresh {
		total += sizePrefix + b.size
		first, last = min(first, b.first), max(last, b.last)
	}
	memory := pr.memory(total)
	for _, b := range fresh {
		n := sizePrefix + b.size
		b.buf, memory = memory[:sizePrefix+batchHeader:n], memory[n:]
	}
	for i := first; i <= last; i++ {
		if pr.route[i] < pass {
			continue
		}
		b := pr.batches[pr.route[i]]
		ev, _ := pr.event(i)
		b.buf = appendRecord(b.buf, int(pr.sizes[i]), ev, ev.Timestamp-b.base, int64(b.filled))
		b.filled++
	}
	for _, b := range fresh {
		p.finish(pr, b)
	}
}

// finish compresses a batch, where that helps, and writes its header.
func (p *Producer) finish(pr *Prepared, b *batch) {
	attributes := int8(0)
	if p.codec != nil {
		at := len(pr.packed)
		// A codec that fails costs its saving, not the event.
		if err := pack(&pr.packed, p.codec, b.buf); err == nil && len(pr.packed)-at < len(b.buf) {
			b.buf = pr.packed[at:len(pr.packed):len(pr.packed)]
			attributes = p.codec.Code()
		} else {
			pr.packed = pr.packed[:at]
		}
	}
	if p.txn != nil {
		attributes |= transactional
	}
	writeHeader(b.buf, attributes, b.count, b.base, b.newest)
}

// memory returns n bytes: those of the last use for the first pass, new ones for what had to be cut up again.
func (pr *Prepared) memory(n int) []byte {
	if len(pr.raw) > 0 {
		return make([]byte, n)
	}
	if cap(pr.raw) < n {
		pr.raw = make([]byte, 0, n+n/8)
	}
	pr.raw = pr.raw[:n]
	return pr.raw
}

func (pr *Prepared) newBatch(r *run, i int, time int64) *batch {
	b := &batch{serial: int32(len(pr.batches)), first: i, base: time, newest: time, size: batchHeader}
	pr.batches = append(pr.batches, b)
	r.queue = append(r.queue, b)
	return b
}

// unroute takes the events of b back, to be planned again.
func (pr *Prepared) unroute(b *batch) {
	for i := b.first; i <= b.last; i++ {
		if pr.route[i] == b.serial {
			pr.route[i] = unrouted
		}
	}
}
