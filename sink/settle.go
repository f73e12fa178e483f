package sink

import (
	"fmt"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"
)

// settle acts on the broker's answer for the first batch of r. The table of codes decides.
func (d *delivery) settle(r *run, res *produce.ResponsePartition, broker int32) {
	c := lookup(res.ErrorCode)
	if c.action == done { // without a text for what went well
		d.acked(r, res.BaseOffset)
		return
	}
	b := r.queue[0]
	t := d.p.codeTrouble(c, r.share.name, fmt.Sprintf("partition %d on broker %d", r.partition, broker))
	switch c.action {
	case tooLarge:
		d.tooLarge(r, t)
		return
	case poison:
		d.reject(r, res, c, t)
		return
	case fatal, endSession:
		if d.err == nil {
			d.err = &CodeError{Code: c.number, Topic: r.share.name, Partition: r.partition}
		}
	case newID:
		if d.p.txn != nil {
			d.err = &CodeError{Code: c.number, Topic: r.share.name, Partition: r.partition}
			break
		}
		if r.failing == nil || r.failing.key != t.key {
			d.tellNewID(r, c)
		}
		r.ledger.spend() // the broker no longer follows its numbers
		b.sealed = false
		b.doubtful = true
		d.failed(r, t)
		return
	case refresh:
		r.stale = true
		d.p.cluster.Refresh(r.share.name)
	}
	b.doubtful = true
	d.failed(r, t)
}

// acked takes the first batch of r out: it is where it belongs.
func (d *delivery) acked(r *run, base int64) {
	b, l := r.queue[0], r.ledger
	r.queue = r.queue[1:]
	l.next = nextSequence(l.next, b.count)
	if base >= 0 { // -1 with DUPLICATE_SEQUENCE_NUMBER from old brokers
		if base <= l.offset {
			d.p.log.Error().Str("topic", r.share.name).Int32("partition", r.partition).
				Int64("acknowledged_offset", l.offset).Int64("offset", base).Stringer("lsn", l.lsn).
				Str("remedy", "insert the outbox rows that are gone once more: those of transactions that committed up to this lsn").
				Msg("events that were acknowledged are no longer in Kafka")
		}
		l.offset = base + int64(b.count) - 1
	}
	ev, _ := d.pr.event(b.last)
	l.lsn = ev.Commit
	l.since = time.Time{}
	r.tries, r.failing, r.notBefore = 0, nil, time.Time{}
	if !d.p.own(r.share.name) {
		r.share.target.published.Add(float64(b.count))
	}
	d.p.metrics.bytes.Add(float64(len(b.buf) - sizePrefix))
	if b.dead {
		d.p.metrics.parked.Add(float64(b.count))
	}
}

// failed makes r wait before its next attempt, and says so.
func (d *delivery) failed(r *run, t *trouble) {
	if d.ctx.Err() != nil {
		return // no attempt will follow
	}
	if b := r.queue[0]; b.first >= d.pr.end {
		// Behind the end: nobody asks for it any more.
		if b.doubtful {
			r.ledger.spend()
		}
		r.queue = nil
		return
	}
	r.notBefore = time.Now().Add(backoff(r.tries))
	r.tries++
	r.failing = t
	d.tell(t, r.ledger.since)
}

func (d *delivery) tellNewID(r *run, c code) {
	l := r.ledger
	d.p.log.Warn().Str("topic", r.share.name).Int32("partition", r.partition).Str("error", c.name).Str("why", c.why).
		Int64("producer_id", l.id.producer).Int32("sequence", l.next).
		Int64("acknowledged_offset", l.offset).Stringer("lsn", l.lsn).
		Msg("the partition gets a new producer id")
}

// tooLarge halves the first batch of r; a record that stands alone can't be published.
func (d *delivery) tooLarge(r *run, t *trouble) {
	b := r.queue[0]
	if b.count > 1 {
		d.p.mu.Lock()
		if at := r.share.target; at.learned == 0 || at.learned > b.size/2 {
			at.learned = b.size / 2
		}
		d.p.mu.Unlock()
		r.share.asOf.learned = b.size / 2
		d.p.replan(d.pr, r, b.size/2)
		return
	}
	if b.dead {
		if _, dead := d.pr.event(b.first); dead.slim() {
			d.p.replan(d.pr, r, 0)
			return
		}
		t.urgent = true
		d.failed(r, t)
		return
	}
	d.condemn(r, []int{b.first}, tooLargeReason(b.size))
}

// reject cuts out the records that the broker's validation refuses.
func (d *delivery) reject(r *run, res *produce.ResponsePartition, c code, t *trouble) {
	b := r.queue[0]
	reason := strings.ToLower(strings.ReplaceAll(c.name, "_", " ")) + ": " + c.why
	switch {
	case b.dead && c.number == int16(kafka.InvalidTimestamp) && d.pr.redate(b):
		d.p.replan(d.pr, r, 0)
	case b.dead:
		// A dead letter has nowhere else to go.
		t.urgent = true
		t.remedy = "let the dead-letter topic take it: no compaction, no limits on timestamps"
		d.failed(r, t)
	case c.number == int16(kafka.InvalidTopic) || b.count == 1:
		d.condemn(r, d.pr.members(b), reason)
	default:
		all := d.pr.members(b)
		var bad []int
		for _, e := range res.RecordErrors {
			if e.BatchIndex >= 0 && int(e.BatchIndex) < len(all) {
				bad = append(bad, all[e.BatchIndex])
			}
		}
		if len(bad) == 0 { // it does not say which: halve until it stands alone
			d.p.replan(d.pr, r, b.size/2)
			return
		}
		d.condemn(r, bad, reason)
	}
}

// condemn does by policy what becomes of events in the first batch of r that can never be
// published, in ascending order, and plans the others again.
func (d *delivery) condemn(r *run, events []int, reason string) {
	stop := d.p.policy == PoisonStop || d.p.own(r.share.name)
	if stop {
		if len(events) > 0 && events[0] < d.pr.end {
			d.pr.stopAt(events[0], reason)
		}
	} else {
		for _, i := range events {
			d.p.park(d.pr, i, reason)
		}
	}
	d.p.replan(d.pr, r, 0)
	if stop {
		d.p.prune(d.pr)
	}
}

// members lists the events of a batch, in its order.
func (pr *Prepared) members(b *batch) []int {
	var list []int
	for i := b.first; i <= b.last; i++ {
		if pr.route[i] == b.serial {
			list = append(list, i)
		}
	}
	return list
}
