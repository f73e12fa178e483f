package sink

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/addpartitionstotxn"
)

// joining is the part of a delivery that makes partitions part of the open transaction, once
// each, all that are new in one request. Without an answer the request is repeated: it names a set, and a
// late one at worst opens an empty transaction, which the coordinator's timeout ends.
type joining struct {
	wanted []*run // not joined yet, and ready otherwise; of one dispatch
	asking bool
	tries  int
	at     time.Time // no request before
	begun  time.Time // of the first request of those that failed in a row
}

// joined reports whether r's partition is in the transaction, or there is none to be in.
func (d *delivery) joined(r *run) bool {
	if d.p.txn == nil || d.p.txn.joined[place{r.share.name, r.partition}] {
		return true
	}
	d.join.wanted = append(d.join.wanted, r)
	return false
}

// joinWanted asks for what dispatch has found to be missing. It returns when to come back.
func (d *delivery) joinWanted(ctx context.Context, now time.Time) (wake time.Time) {
	j := &d.join
	runs := j.wanted
	j.wanted = nil
	switch {
	case len(runs) == 0 || j.asking:
		return time.Time{}
	case j.at.After(now):
		return j.at
	case d.p.txn.spent:
		d.err = errSpent
		return time.Time{}
	}
	if j.tries == 0 {
		j.begun = now
	}
	req := &addpartitionstotxn.Request{TransactionalID: d.p.txn.id, ProducerID: d.p.id.producer, ProducerEpoch: d.p.id.epoch}
	for _, r := range runs {
		if n := len(req.Topics); n == 0 || req.Topics[n-1].Name != r.share.name {
			req.Topics = append(req.Topics, addpartitionstotxn.RequestTopic{Name: r.share.name})
		}
		t := &req.Topics[len(req.Topics)-1]
		t.Partitions = append(t.Partitions, r.partition)
	}
	j.asking = true
	d.start(func() func() {
		ctx, cancel := context.WithTimeout(ctx, patienceMin)
		defer cancel()
		m, err := d.p.cluster.RoundTrip(ctx, nil, req)
		return func() { d.haveJoined(m, err) }
	})
	return time.Time{}
}

// haveJoined takes in the coordinator's answer.
func (d *delivery) haveJoined(m protocol.Message, err error) {
	d.join.asking = false
	if number, ok := coordinatorCode(err); ok {
		d.notJoined(number, place{})
		return
	}
	if err != nil {
		d.join.again(backoff(d.join.tries))
		d.unjoined(d.linkFailed("transaction coordinator", err))
		return
	}
	var worst int16
	var at place
	for _, t := range m.(*addpartitionstotxn.Response).Results {
		for _, r := range t.Results {
			switch p := (place{t.Name, r.PartitionIndex}); {
			case r.ErrorCode == 0:
				d.p.txn.joined[p] = true
			case worst == 0 || worst == notAttempted:
				worst, at = r.ErrorCode, p
			}
		}
	}
	if worst != 0 {
		d.notJoined(worst, at)
		return
	}
	d.join.tries, d.join.at = 0, time.Time{}
}

// notAttempted is what partitions get that were named beside one that was refused.
const notAttempted = 55

func (d *delivery) notJoined(number int16, at place) {
	c := lookup(number)
	switch c.action {
	case retry, refresh, operator:
		if c.number == codeConcurrent {
			d.join.again(concurrentRetry)
			return
		}
		d.join.again(backoff(d.join.tries))
		if s := d.pr.byTopic[at.topic]; s != nil && c.action == refresh {
			if r := s.at(at.partition); r != nil {
				r.stale = true
			}
			d.p.cluster.Refresh(at.topic)
		}
		d.unjoined(d.p.codeTrouble(c, at.topic, "transaction coordinator"))
	default:
		d.err = &CodeError{Code: number, Doing: "add partitions to the transaction"}
	}
}

// unjoined says why partitions wait that are ready otherwise.
func (d *delivery) unjoined(t *trouble) {
	d.tell(t, d.join.begun)
	for _, s := range d.pr.shares {
		for _, r := range s.runs {
			if len(r.queue) > 0 && !r.stale && !d.p.txn.joined[place{s.name, r.partition}] {
				r.failing = t
			}
		}
	}
}

func (j *joining) again(wait time.Duration) {
	j.at = time.Now().Add(wait)
	j.tries++
}
