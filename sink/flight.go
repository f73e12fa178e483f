package sink

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

const (
	// frameLimit is the largest record batch that is tried: a broker cuts the connection,
	// without an answer, at a request above its socket.request.max.bytes, 100 MiB by default.
	frameLimit = 100<<20 - 64<<10

	// requestBytes bounds a request of several batches.
	requestBytes = 32 << 20

	// An answer is waited for so long at first, and twice as long each time that a
	// broker which we are connected to stays silent. Sending again is cheap: what was appended
	// meanwhile is recognised and answered at once.
	patienceMin = 3 * time.Second
	patienceMax = 30 * time.Second

	// silence is when we begin to ask others whether the leader has moved.
	silence = time.Second
)

// flight is one produce request on its way.
type flight struct {
	leader int32
	runs   []*run
	bytes  int
	sent   time.Time
	moved  bool // given up, because a partition has another leader by now
	end    context.CancelFunc
}

// load adds the first batch of r to the request to its leader, if that has none in flight.
func (d *delivery) load(loads []*flight, leader int32, r *run) []*flight {
	if d.flights[leader] != nil {
		return loads
	}
	size := len(r.queue[0].buf)
	for _, f := range loads {
		if f.leader == leader {
			if f.bytes+size <= requestBytes {
				f.runs = append(f.runs, r)
				f.bytes += size
			}
			return loads
		}
	}
	return append(loads, &flight{leader: leader, runs: []*run{r}, bytes: size})
}

// launch seals the batches of f and sends them.
func (d *delivery) launch(ctx context.Context, f *flight) {
	patience := d.p.patience[f.leader]
	if patience == 0 {
		patience = patienceMin
	}
	req := &rawproduce.Request{
		Acks: -1,
		// The broker is to say first that a replica is too slow.
		Timeout: int32((patience - patienceMin/6).Milliseconds()),
	}
	if d.p.txn != nil {
		req.TransactionalID = d.p.txn.id
	}
	for _, r := range f.runs {
		b := r.queue[0]
		if !b.sealed {
			seal(b.buf, r.ledger.id, r.ledger.next)
			b.sealed = true
		}
		if b.sent {
			d.p.metrics.retries.Inc()
		}
		b.sent = true
		r.flight = f
		if n := len(req.Topics); n == 0 || req.Topics[n-1].Topic != r.share.name {
			req.Topics = append(req.Topics, rawproduce.RequestTopic{Topic: r.share.name})
		}
		t := &req.Topics[len(req.Topics)-1]
		t.Partitions = append(t.Partitions, rawproduce.RequestPartition{
			Partition: r.partition,
			RecordSet: protocol.RawRecordSet{Reader: bytes.NewReader(b.buf)},
		})
	}
	f.sent = time.Now()
	ctx, f.end = context.WithTimeout(ctx, patience)
	d.flights[f.leader] = f
	d.start(func() func() {
		m, err := d.p.cluster.Send(ctx, f.leader, req)
		return func() { d.landed(f, m, err, patience) }
	})
}

// landed takes the answer of a flight apart.
func (d *delivery) landed(f *flight, m protocol.Message, err error, patience time.Duration) {
	delete(d.flights, f.leader)
	f.end()
	if err != nil {
		d.missed(f, err, patience)
		return
	}
	delete(d.p.patience, f.leader)
	for _, t := range m.(*produce.Response).Topics {
		s := d.pr.byTopic[t.Topic]
		if s == nil {
			continue
		}
		for i := range t.Partitions {
			if r := s.at(t.Partitions[i].Partition); r != nil && r.flight == f {
				r.flight = nil
				d.settle(r, &t.Partitions[i], f.leader)
			}
		}
	}
	for _, r := range f.runs {
		if r.flight == f { // the broker did not mention it
			r.flight = nil
			d.settle(r, &produce.ResponsePartition{ErrorCode: int16(kafka.Unknown)}, f.leader)
		}
	}
	d.calm()
}

// missed is for a flight without an answer: what the broker did with its batches is
// unknown. The same bytes settle it, at whoever leads the partitions by then.
func (d *delivery) missed(f *flight, err error, patience time.Duration) {
	var broken *BrokerError
	connected := errors.As(err, &broken) && broken.Op == protocol.Produce.String()
	if connected && errors.Is(err, context.DeadlineExceeded) {
		d.p.patience[f.leader] = min(2*patience, patienceMax)
	}
	if errors.Is(err, errClientClosed) {
		d.err = err
	}
	t := linkTrouble(brokerTrouble(f.leader), err)
	if f.moved {
		t.what = "no answer for a while, and the partition has another leader by now"
	}
	for _, r := range f.runs {
		r.flight = nil
		r.queue[0].doubtful = true
		if !f.moved {
			r.stale = true
			d.p.cluster.Refresh(r.share.name)
		}
		d.failed(r, t)
	}
}
