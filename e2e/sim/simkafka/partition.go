package simkafka

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// partition is one log and who keeps it.
type partition struct {
	topic    *topic
	index    int32
	leader   int32 // -1: none
	epoch    int32
	before   int32     // who led before
	moved    time.Time // when that ended
	replicas []int32
	isr      []int32

	log       []*entry // in the order of offsets
	committed int      // entries that are on all in-sync replicas
	end       int64    // offset of the next record
	forgotten int      // entries whose producers have expired
	producers map[int64]*producer
}

// entry is a batch in the log.
type entry struct {
	*Batch
	base   int64
	at     time.Time
	ready  time.Time // when the followers have it, if they are well
	client string
}

// producer is what a leader remembers of a producer id (ProducerStateManager): its
// epoch, and its last five batches.
type producer struct {
	epoch   int16
	batches []*entry
}

const remembered = 5

// admit judges a batch by its producer's numbers. It returns the entry that the batch
// repeats, or nil with 0 where it may be appended.
// Source: org.apache.kafka.storage.internals.log.ProducerAppendInfo, UnifiedLog.
func (c *Cluster) admit(p *partition, b *Batch) (again *entry, code int16) {
	state := p.producers[b.Producer]
	if state == nil {
		if c.cfg.Old && b.First != 0 {
			return nil, kerr.UnknownProducerID.Code
		}
		return nil, 0
	}
	switch {
	case b.Epoch < state.epoch:
		return nil, kerr.InvalidProducerEpoch.Code
	case b.Epoch > state.epoch:
		if b.First != 0 {
			return nil, kerr.OutOfOrderSequenceNumber.Code
		}
		return nil, 0
	}
	for _, e := range state.batches {
		if e.First == b.First && e.last() == b.last() {
			if e.checksum != b.checksum {
				c.hooks.Fault("kafka: %s-%d: producer %d used sequences %d to %d for other records before: they are lost in silence",
					p.topic.name, p.index, b.Producer, b.First, b.last())
			}
			return e, 0
		}
	}
	last := state.batches[len(state.batches)-1].last()
	if b.First != last+1 && !(b.First == 0 && last == 0x7fffffff) {
		return nil, kerr.OutOfOrderSequenceNumber.Code
	}
	return nil, 0
}

// append takes a batch into the log.
func (c *Cluster) append(p *partition, b *Batch, client string) *entry {
	now := time.Now()
	e := &entry{Batch: b, base: p.end, at: now, client: client, ready: now.Add(c.between(0, c.cfg.Delay))}
	p.log = append(p.log, e)
	p.end += int64(len(b.Records))
	p.remember(e)
	c.after(e.ready.Sub(now), func() { c.commit(p) })
	return e
}

func (p *partition) remember(e *entry) {
	if e.Producer < 0 {
		return
	}
	state := p.producers[e.Producer]
	if state == nil || e.Epoch > state.epoch {
		state = &producer{epoch: e.Epoch}
		p.producers[e.Producer] = state
	}
	state.batches = append(state.batches, e)
	if len(state.batches) > remembered {
		state.batches = state.batches[1:]
	}
}

// commit moves the high watermark over what all in-sync replicas have. Below min ISR it
// stands still.
func (c *Cluster) commit(p *partition) {
	if p.leader < 0 || len(p.isr) < p.topic.minISR || !c.wellReplicated(p) || c.topics[p.topic.name] != p.topic {
		return
	}
	now := time.Now()
	for p.committed < len(p.log) && !p.log[p.committed].ready.After(now) {
		e := p.log[p.committed]
		p.committed++
		c.hooks.Committed(Committed{Topic: p.topic.name, Partition: p.index, Base: e.base, Client: e.client, Appended: e.at, Batch: e.Batch})
	}
	c.cond.Broadcast()
}

// wellReplicated: no in-sync replica is down.
func (c *Cluster) wellReplicated(p *partition) bool {
	return !slices.ContainsFunc(p.isr, func(id int32) bool { return !c.brokers[id].up })
}

// isCommitted reports whether e is below the high watermark; gone: e is no longer in the log.
func (p *partition) isCommitted(e *entry) (committed, gone bool) {
	i := slices.Index(p.log, e)
	return i >= 0 && i < p.committed, i < 0
}

// leave takes a replica out of the in-sync set, if it is not the last one, and has
// another one lead if it led.
func (c *Cluster) leave(p *partition, id int32) {
	if len(p.isr) > 1 {
		p.isr = slices.DeleteFunc(slices.Clone(p.isr), func(x int32) bool { return x == id })
	}
	if p.leader == id {
		c.depose(p)
	}
	c.commit(p)
}

// depose leaves the partition without a leader for a moment. What of the tail the next
// one has is chance.
func (c *Cluster) depose(p *partition) {
	p.before, p.leader, p.moved = p.leader, -1, time.Now()
	p.epoch++
	c.cond.Broadcast()
	c.after(c.between(time.Millisecond, 800*time.Millisecond), func() { c.elect(p) })
}

func (c *Cluster) elect(p *partition) {
	if p.leader >= 0 {
		return
	}
	var able []int32
	for _, id := range p.isr {
		if c.brokers[id].up {
			able = append(able, id)
		}
	}
	if len(able) == 0 {
		return // until one of them comes back
	}
	p.leader, p.moved = able[c.rng.IntN(len(able))], time.Now()
	if tail := len(p.log) - p.committed; tail > 0 && p.leader != p.before {
		c.truncate(p, p.committed+c.rng.IntN(tail+1))
	}
	c.note("%s-%d is led by %d now, in sync %v", p.topic.name, p.index, p.leader, p.isr)
	c.commit(p)
}

// truncate cuts the log to n entries; the producers' state follows.
func (c *Cluster) truncate(p *partition, n int) {
	if n < len(p.log) {
		c.note("%s-%d loses %d uncommitted batches", p.topic.name, p.index, len(p.log)-n)
		p.end = p.log[n].base
	}
	p.log = p.log[:n:n]
	clear(p.producers)
	for _, e := range p.log[min(p.forgotten, n):] {
		p.remember(e)
	}
}
