package simkafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// written is what became of the batch of one partition.
type written struct {
	topic string
	part  *partition
	batch *Batch
	entry *entry // in the log, new or from before; nil: refused
	again bool
	epoch int32
	code  int16
	index int32
}

// produce appends, waits for the in-sync replicas, and answers.
func (c *Cluster) produce(b *broker, client string, req *kmsg.ProduceRequest) kmsg.Response {
	if req.Acks != -1 {
		c.hooks.Fault("kafka: a produce request with acks=%d", req.Acks)
	}
	m := c.mishap()
	if m.Kind == LoseRequest {
		c.note("a produce request of %s is lost", client)
		return nil
	}
	var all []*written
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			all = append(all, c.write(b, client, req.Topics[i].Topic, &req.Topics[i].Partitions[j], m))
		}
	}
	deadline := time.Now().Add(time.Duration(req.TimeoutMillis) * time.Millisecond)
	for !c.settled(all, deadline) {
		c.wait(deadline)
		if !b.up || c.closed {
			return nil
		}
	}
	switch m.Kind {
	case LoseAnswer:
		c.note("the answer to %s is lost", client)
		return nil
	case Late:
		c.note("the answer to %s is late by %s", client, m.Delay)
		for late := time.Now().Add(m.Delay); time.Now().Before(late); {
			if c.wait(late); !b.up || c.closed {
				return nil
			}
		}
	}
	return c.acknowledge(req, all, m)
}

// write appends the batch of one partition, if nothing stands against it.
func (c *Cluster) write(b *broker, client, name string, p *kmsg.ProduceRequestTopicPartition, m Mishap) *written {
	w := &written{topic: name, index: p.Partition}
	t := c.topics[name]
	batch, err := parseBatch(p.Records)
	switch {
	case err != nil:
		c.hooks.Fault("kafka: %s-%d: malformed record batch: %v", name, p.Partition, err)
		w.code = kerr.CorruptMessage.Code
	case batch.Producer < 0:
		c.hooks.Fault("kafka: %s-%d: a record batch without a producer id", name, p.Partition)
		w.code = kerr.InvalidRecord.Code
	case m.Kind == Refuse:
		w.code = m.Code
	case t == nil || int(p.Partition) >= len(t.parts):
		w.code = kerr.UnknownTopicOrPartition.Code
	case t.parts[p.Partition].leader != b.id:
		w.code = kerr.NotLeaderForPartition.Code
	case len(t.parts[p.Partition].isr) < t.minISR:
		w.code = kerr.NotEnoughReplicas.Code
	case len(p.Records) > t.maxBytes:
		w.code = kerr.MessageTooLarge.Code
	default:
		w.part, w.batch, w.epoch = t.parts[p.Partition], batch, t.parts[p.Partition].epoch
		if w.entry, w.code = c.admit(w.part, batch); w.entry != nil {
			w.again = true
		} else if w.code == 0 {
			w.entry = c.append(w.part, batch, client)
		}
	}
	if batch != nil {
		kind := ""
		switch {
		case w.again:
			kind = "again "
		case w.code != 0:
			kind = kerr.ErrorForCode(w.code).Error() + " "
		}
		c.note("%s → %d: %s-%d %d records, producer %d seq %d %s%s", client, b.id, name, p.Partition, len(batch.Records), batch.Producer, batch.First, kind, m)
	}
	return w
}

// settled reports whether every batch is committed or has got its error.
func (c *Cluster) settled(all []*written, deadline time.Time) bool {
	done := true
	for _, w := range all {
		if w.entry == nil || w.code != 0 {
			continue
		}
		committed, gone := w.part.isCommitted(w.entry)
		switch {
		case committed:
		case gone || w.part.epoch != w.epoch || c.topics[w.topic] != w.part.topic:
			w.code = kerr.NotLeaderForPartition.Code
		case len(w.part.isr) < w.part.topic.minISR:
			w.code = kerr.NotEnoughReplicasAfterAppend.Code
		case !time.Now().Before(deadline):
			w.code = kerr.RequestTimedOut.Code
		default:
			done = false
		}
	}
	return done
}

func (c *Cluster) acknowledge(req *kmsg.ProduceRequest, all []*written, m Mishap) kmsg.Response {
	res := req.ResponseKind().(*kmsg.ProduceResponse)
	if m.Kind == Throttle {
		res.ThrottleMillis = int32(m.Delay.Milliseconds())
	}
	for _, w := range all {
		rp := kmsg.NewProduceResponseTopicPartition()
		rp.Partition, rp.ErrorCode, rp.BaseOffset = w.index, w.code, -1
		switch {
		case w.code != 0:
		case m.Kind == FailAfterAppend:
			rp.ErrorCode = m.Code
		case w.again && c.cfg.Old:
			rp.ErrorCode = kerr.DuplicateSequenceNumber.Code
			c.hooks.Acked(w.topic, w.batch)
		default:
			rp.BaseOffset = w.entry.base
			c.hooks.Acked(w.topic, w.batch)
		}
		if n := len(res.Topics); n == 0 || res.Topics[n-1].Topic != w.topic {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic = w.topic
			res.Topics = append(res.Topics, rt)
		}
		rt := &res.Topics[len(res.Topics)-1]
		rt.Partitions = append(rt.Partitions, rp)
	}
	return res
}
