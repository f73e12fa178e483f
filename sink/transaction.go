package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/endtxn"
	"github.com/segmentio/kafka-go/protocol/initproducerid"

	"github.com/walrelay/walrelay/decode"
)

// Transactions, by the classic protocol (KIP-98):
//
//  1. Fence: InitProducerId with the transactional id. The coordinator raises the epoch, so that whoever
//     used the id before can write no more, and completes what that one left open before it answers.
//  2. AddPartitionsToTxn for the partitions of a batch (join.go), and Produce, which marks the
//     record batches as transactional.
//  3. EndTxn, commit or abort.
//
// What may be repeated without an answer: 1 (the epoch is raised once more), 2 (a set; and batches have sequences).
// 3 may not: a late EndTxn would end the next transaction half-way. So it is sent once, and where its answer
// does not come, the producer is spent: only Fence, which raises the epoch, makes it usable again, and what became of the transaction is
// to be read from what it wrote.

const (
	// transactionTimeout is when the coordinator aborts a transaction whose producer is gone: above what
	// an answer is waited for, below the time after which Postgres gives us up.
	transactionTimeout = 40 * time.Second

	// endPatience is how long the answer to EndTxn is waited for.
	endPatience = 15 * time.Second

	// refusedPatience is how long a refusal that an operator can mend is tried again.
	refusedPatience = time.Minute

	// concurrentRetry is when to try again while the transaction before is being
	// completed, which is usual right behind EndTxn: 20 ms cost four times as much latency.
	concurrentRetry = 2 * time.Millisecond
)

// errSpent is returned by Transact between a transaction whose outcome is not known, or that
// was taken away, and the next Fence.
var errSpent = errors.New("sink: the transactional producer was given up after a transaction without a known end; it has to be fenced anew")

// transaction is the state of a transactional producer. It belongs to the goroutine that delivers.
//
// Invariant: when spent is false, no EndTxn of this epoch is under way.
type transaction struct {
	id     string // transactional.id
	spent  bool
	joined map[place]bool // partitions of the open transaction; empty: none is open
}

type place struct {
	topic     string
	partition int32
}

// Fence makes the producer the only one of the transactional id, and completes what the
// one before has left open. It tries until it succeeds or ctx ends; refusals, for a minute.
//
// Only who owns what the id stands for may call it: it takes the id away from whoever uses it.
func (p *Producer) Fence(ctx context.Context, id string) error {
	p.renew(id)
	begun := time.Now()
	var t *trouble
	for tries := 0; ; tries++ {
		identity, number, err := p.initTransactions(ctx)
		c := lookup(number)
		wait := backoff(tries)
		switch {
		case ctx.Err() != nil && t != nil:
			return fmt.Errorf("sink: fence transactional id %q: %s: %w", id, t, context.Cause(ctx))
		case ctx.Err() != nil:
			return fmt.Errorf("sink: fence transactional id %q: %w", id, context.Cause(ctx))
		case err != nil:
			if errors.Is(err, errClientClosed) {
				return err
			}
			t = linkTrouble("transaction coordinator", err)
			p.outage.tell(t, begun)
		case c.action == done:
			p.id, p.txn.spent = identity, false
			p.outage.over()
			return nil
		case c.action == operator && time.Since(begun) > refusedPatience:
			return &AuthError{Broker: "transactional id " + id, Reason: c.name + ": " + c.why, Remedy: p.remedy(number, "")}
		case c.action == retry, c.action == refresh, c.action == operator:
			t = p.codeTrouble(c, "", "transactional id "+id)
			p.outage.tell(t, begun)
		default:
			return &CodeError{Code: number, Doing: fmt.Sprintf("fence transactional id %q", id)}
		}
		pause(ctx, wait)
	}
}

const codeConcurrent = 51 // CONCURRENT_TRANSACTIONS

// renew forgets the identity and the numbering that belonged to it.
func (p *Producer) renew(id string) {
	p.id = noIdentity
	p.txn.id, p.txn.spent = id, true
	clear(p.txn.joined)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.targets {
		for _, l := range t.ledgers {
			l.id, l.spent, l.since = noIdentity, noIdentity, time.Time{}
		}
	}
}

func (p *Producer) initTransactions(ctx context.Context) (identity, int16, error) {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	m, err := p.cluster.RoundTrip(ctx, nil, &initproducerid.Request{
		TransactionalID:      p.txn.id,
		TransactionTimeoutMs: int32(transactionTimeout.Milliseconds()),
		ProducerID:           -1,
		ProducerEpoch:        -1,
	})
	if number, ok := coordinatorCode(err); ok {
		return noIdentity, number, nil
	}
	if err != nil {
		return noIdentity, 0, err
	}
	res := m.(*initproducerid.Response)
	return identity{res.ProducerID, res.ProducerEpoch}, res.ErrorCode, nil
}

// coordinatorCode is the code of an error that came instead of a coordinator's name.
func coordinatorCode(err error) (int16, bool) {
	var k kafka.Error
	if errors.As(err, &k) && k != 0 {
		return int16(k), true
	}
	return 0, false
}

// Transact writes events in one transaction: a consumer with isolation level read_committed sees all of them
// or none. Faults are outlived as by Write, as far as the transaction outlives them.
//
// A *decode.PoisonError means that the transaction was aborted, and that the first n events can be
// published by another one. After any other error the outcome is unknown, and the producer is spent: Fence comes next.
func (p *Producer) Transact(ctx context.Context, events []decode.Event) (n int, err error) {
	if p.txn.spent {
		return 0, errSpent
	}
	n, err = p.Deliver(ctx, p.Prepare(events))
	var poison *decode.PoisonError
	poisoned := errors.As(err, &poison)
	if poisoned && n < len(events) && p.own(events[n].Topic) {
		err = &TopicError{Topic: p.logTopic, Reason: "it cannot take the relay's position: " + poison.Reason, Remedy: "let it take records of 64 KiB with any timestamp (max.message.bytes, message.timestamp limits)"}
	}
	if err != nil && !poisoned {
		p.txn.spent = true
		return 0, err
	}
	if end := p.end(ctx, !poisoned); end != nil {
		p.txn.spent = true
		return 0, end
	}
	return n, err
}

// end ends the open transaction. See above why it sends EndTxn again only where the coordinator
// has answered that it did nothing, or where nothing was sent.
func (p *Producer) end(ctx context.Context, commit bool) error {
	if len(p.txn.joined) == 0 {
		return nil
	}
	begun := time.Now()
	for tries := 0; ; tries++ {
		number, sent, err := p.sendEnd(ctx, commit)
		wait := backoff(tries)
		switch c := lookup(number); {
		case err == nil && c.action == done:
			clear(p.txn.joined)
			return nil
		case err != nil && (sent || ctx.Err() != nil || errors.Is(err, errClientClosed)):
			return fmt.Errorf("sink: end the transaction: whether it was committed is not known: %w", err)
		case err != nil:
			p.outage.tell(linkTrouble("transaction coordinator", err), begun)
		case c.number == codeConcurrent:
			wait = concurrentRetry
		case c.number == 14, c.number == 15, c.number == 16: // the coordinator is loading, absent, or another
			p.outage.tell(p.codeTrouble(c, "", "transaction coordinator"), begun)
		default:
			return &CodeError{Code: number, Doing: "end the transaction"}
		}
		if err := pause(ctx, wait); err != nil {
			return fmt.Errorf("sink: end the transaction: %w", err)
		}
	}
}

// sendEnd sends EndTxn once; sent is false where it surely never left.
func (p *Producer) sendEnd(ctx context.Context, commit bool) (number int16, sent bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	m, err := p.cluster.RoundTrip(ctx, nil, &endtxn.Request{
		TransactionalID: p.txn.id, ProducerID: p.id.producer, ProducerEpoch: p.id.epoch, Committed: commit,
	})
	if number, ok := coordinatorCode(err); ok {
		return number, false, nil
	}
	if err != nil {
		var broken *BrokerError
		return 0, !errors.As(err, &broken) || broken.Op == protocol.EndTxn.String(), err
	}
	return m.(*endtxn.Response).ErrorCode, true, nil
}
