package sink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go/protocol/metadata"
)

const (
	// stuckAfter is how long a batch may wait for its acknowledgement before we say that
	// nothing can be delivered.
	stuckAfter = 3 * time.Second

	// checkTimeout is short enough for readiness to fall within five seconds when
	// Check is called every three.
	checkTimeout = 2 * time.Second
)

var errNotAsked = errors.New("not asked Kafka yet")

// Healthy reports whether events can be delivered, and if not why. It says no within
// five seconds of a batch being stuck, while a topic in use is weaker than allowed, and
// after a [Producer.Check] that reached no broker.
func (p *Producer) Healthy() (ok bool, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if waited := time.Since(p.stuckSince); !p.stuckSince.IsZero() && waited > stuckAfter {
		why := "no acknowledgement"
		switch {
		case p.stuckBy != nil:
			why = p.stuckBy.String()
		case p.checkErr != nil:
			why = p.checkErr.Error()
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
// topics that lose acknowledged events with one broker: those in use, and at first those that exist
// and that events are expected to go to. Any other error says that the cluster could not be asked.
func (p *Producer) Check(ctx context.Context, topics ...string) error {
	asking, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	weak, err := p.survey(asking)
	if err == nil {
		err = p.check(asking, topics)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() == nil && !errors.Is(err, errReset) {
		p.checkErr = err
	}
	if err != nil {
		return err
	}
	for _, t := range p.targets {
		if t.weak != "" && !t.tolerated {
			weak[t.name] = t.weak
		}
	}
	if len(weak) == 0 {
		return nil
	}
	e := &WeakTopicError{Topics: slices.Sorted(maps.Keys(weak))}
	for _, name := range e.Topics {
		e.Remedy = append(e.Remedy, p.mend(name, weak[name]))
	}
	return e
}

// check looks at the topics in use and those named, or sees whether anybody answers.
func (p *Producer) check(ctx context.Context, named []string) error {
	names := make(map[string]bool) // to whether its configuration is due
	for _, name := range named {
		names[name] = true
	}
	p.mu.Lock()
	for name, t := range p.targets {
		if len(t.partitions) > 0 {
			names[name] = time.Since(t.config.read) > configAge
		}
	}
	p.mu.Unlock()
	if len(names) == 0 {
		_, err := p.cluster.RoundTrip(ctx, nil, &metadata.Request{TopicNames: []string{}})
		return err
	}
	var list, due []string
	for name, old := range names {
		list = append(list, name)
		if old {
			due = append(due, name)
		}
	}
	p.cluster.Refresh(list...)
	s, err := p.look(ctx, list, due)
	p.apply(s)
	return err
}

// survey returns the topics that exist, that events are expected to go to, and that are weaker than they should be,
// and why. It does so once: all others are looked at when they come into use. What the allow-list merely permits is
// not surveyed: a weak topic of somebody else must not keep the relay from starting.
func (p *Producer) survey(ctx context.Context) (weak map[string]string, err error) {
	weak = make(map[string]string)
	p.mu.Lock()
	surveyed := p.surveyed || p.allowWeak || p.expected == nil
	p.mu.Unlock()
	if surveyed {
		return weak, nil
	}
	m, err := p.cluster.RoundTrip(ctx, nil, &metadata.Request{}) // of all topics
	if err != nil {
		return nil, err
	}
	topics := make(map[string]Topic)
	for _, t := range m.(*metadata.Response).Topics {
		if t.ErrorCode != 0 || t.IsInternal || !p.expected(t.Name) {
			continue
		}
		at := Topic{Name: t.Name}
		for _, part := range t.Partitions {
			at.Partitions = append(at.Partitions, Partition{Replicas: part.ReplicaNodes})
		}
		topics[t.Name] = at
	}
	configs, err := p.describe(ctx, topics, slices.Collect(maps.Keys(topics)))
	if err != nil {
		return nil, err
	}
	for name, t := range topics {
		if why := weakness(t, configs[name].minISR); why != "" {
			weak[name] = why
		}
	}
	if len(weak) > 0 {
		local, err := p.isLocal(ctx)
		if err != nil {
			return nil, err
		}
		if local {
			clear(weak) // worth a word when it comes into use
		}
	}
	p.mu.Lock()
	p.surveyed = true
	p.mu.Unlock()
	return weak, nil
}
