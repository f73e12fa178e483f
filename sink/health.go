package sink

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/segmentio/kafka-go/protocol/metadata"
)

// stuckAfter is how long a batch may wait for its acknowledgement before we say that
// nothing can be delivered.
const stuckAfter = 3 * time.Second

// Healthy reports whether events can be delivered, and if not why. It says no within
// five seconds of a batch being stuck, while a topic in use is weaker than allowed, and
// after a [Producer.Check] that reached no broker.
func (p *Producer) Healthy() (ok bool, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if waited := time.Since(p.stuckSince); !p.stuckSince.IsZero() && waited > stuckAfter {
		why := "no acknowledgement"
		if p.stuckBy != nil {
			why = p.stuckBy.String()
		}
		return false, fmt.Sprintf("events wait for Kafka for %s: %s", waited.Round(time.Second), why)
	}
	if p.checkErr != nil {
		return false, p.checkErr.Error()
	}
	for _, t := range p.targets {
		if t.weak != "" && !t.tolerated {
			return false, fmt.Sprintf("topic %s can lose acknowledged events with one broker (%s): %s", t.name, t.weak, p.mend(t.name, t.weak))
		}
	}
	return true, ""
}

// Check asks the brokers about the topics in use and those named: their partitions,
// limits and durability. The relay calls it at the start and every few seconds, so that
// Healthy is true to life also while nothing is written. A *WeakTopicError names
// topics that lose acknowledged events with one broker; any other error says that
// the cluster could not be asked.
func (p *Producer) Check(ctx context.Context, topics ...string) error {
	err := p.check(ctx, topics)
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() == nil {
		p.checkErr = err
	}
	if err != nil {
		return err
	}
	weak := &WeakTopicError{}
	for _, t := range p.targets {
		if t.weak != "" && !t.tolerated {
			weak.Topics = append(weak.Topics, t.name)
		}
	}
	if len(weak.Topics) == 0 {
		return nil
	}
	sort.Strings(weak.Topics)
	for _, name := range weak.Topics {
		weak.Remedy = append(weak.Remedy, p.mend(name, p.targets[name].weak))
	}
	return weak
}

func (p *Producer) check(ctx context.Context, names []string) error {
	due := append([]string(nil), names...)
	p.mu.Lock()
	for name, t := range p.targets {
		if len(t.partitions) == 0 {
			continue
		}
		names = append(names, name)
		if time.Since(t.config.read) > configAge {
			due = append(due, name)
		}
	}
	p.mu.Unlock()
	if len(names) == 0 {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		_, err := p.cluster.RoundTrip(ctx, nil, &metadata.Request{TopicNames: []string{}})
		return err
	}
	p.cluster.Refresh(names...)
	s, err := p.look(ctx, names, due)
	p.apply(s)
	return err
}
