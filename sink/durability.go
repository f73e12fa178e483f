package sink

import (
	"fmt"
	"time"
)

// weakness says why the loss of one broker could take acknowledged events with it; ""
// = it can't, as far as is known. acks=all waits for the in-sync replicas only: how many that are at
// least is min.insync.replicas.
func weakness(t Topic, minISR int) string {
	if t.Err != nil || len(t.Partitions) == 0 {
		return ""
	}
	replicas := len(t.Partitions[0].Replicas)
	for _, p := range t.Partitions {
		replicas = min(replicas, len(p.Replicas))
	}
	switch {
	case replicas == 1:
		return "replication factor 1"
	case minISR == 1:
		return "min.insync.replicas=1"
	}
	return ""
}

// mend is the command that takes the weakness away.
func (p *Producer) mend(topic, weakness string) string {
	if weakness == "min.insync.replicas=1" {
		return fmt.Sprintf("kafka-configs.sh --bootstrap-server %s --alter --entity-type topics --entity-name %s --add-config min.insync.replicas=2", p.bootstrap, topic)
	}
	return fmt.Sprintf(`kafka-reassign-partitions.sh --bootstrap-server %s --execute --reassignment-json-file FILE, FILE with three replicas for each partition: {"version":1,"partitions":[{"topic":"%s","partition":0,"replicas":[1,2,3]}]}; then %s`,
		p.bootstrap, topic, p.mend(topic, "min.insync.replicas=1"))
}

// apply takes in what a look brought. The weak topics that may not be are those it returns.
func (p *Producer) apply(s sight) (weak []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, t := range s.topics {
		p.learn(t)
		c, ok := s.configs[name]
		if !ok {
			continue
		}
		at := p.target(name)
		if c.limit != at.config.limit || time.Since(at.config.read) > configAge {
			at.learned = 0
		}
		at.config = c
		if p.judge(at, weakness(t, c.minISR), s.local) {
			weak = append(weak, name)
		}
	}
	missing, weakTopics := 0, 0
	for _, t := range p.targets {
		if t.missing {
			missing++
		}
		if t.weak != "" {
			weakTopics++
		}
	}
	p.metrics.missing.Set(float64(missing))
	p.metrics.weak.Set(float64(weakTopics))
	return weak
}

// judge notes whether a topic is weak, and says so once when that changes. It
// reports whether that stands against delivering to it. Under Producer.mu.
func (p *Producer) judge(t *target, weakness string, local bool) bool {
	tolerated := local || p.allowWeak
	if weakness != t.weak {
		switch {
		case weakness == "":
			p.log.Info().Str("topic", t.name).Msg("topic is durable again")
		case tolerated:
			p.log.Warn().Str("topic", t.name).Str("weakness", weakness).
				Msg("topic can lose acknowledged events with one broker")
		default:
			p.log.Error().Str("topic", t.name).Str("weakness", weakness).Str("mend", p.mend(t.name, weakness)).
				Msg("topic can lose acknowledged events with one broker: not ready until it is mended, or --allow-weak-topics is set")
		}
		t.weak = weakness
	}
	t.tolerated = tolerated
	return weakness != "" && !tolerated
}
