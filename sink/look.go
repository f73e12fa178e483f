package sink

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
	"github.com/segmentio/kafka-go/protocol/initproducerid"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

const (
	// lookTimeout bounds one look: a broker that is silent must not keep us from asking the next.
	lookTimeout = 5 * time.Second

	// configAge is how old a topic's configuration may be when the topic is looked at.
	configAge = 15 * time.Second

	resourceTopic = 2 // DescribeConfigs: the resource is a topic
)

// sight is what a look at some topics brought.
type sight struct {
	topics  map[string]Topic
	configs map[string]topicConfig
	refused map[string]refused // topics that could not be created
	local   bool               // all brokers are on this machine, or there is only one; asked for only when a topic is weak
}

// refused is why a topic was not created.
type refused struct {
	code    int16
	message string
}

// look asks the cluster about topics, creates the missing ones where that is configured,
// and reads the configuration of those in due. It changes nothing here: see apply.
func (p *Producer) look(ctx context.Context, names, due []string) (sight, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var s sight
	var err error
	if s.topics, err = p.cluster.Metadata(ctx, names...); err != nil {
		return s, err
	}
	if err := p.createMissing(ctx, &s); err != nil {
		return s, err
	}
	if s.configs, err = p.describe(ctx, s.topics, due); err != nil {
		return s, err
	}
	for name, t := range s.topics {
		if c, ok := s.configs[name]; ok && weakness(t, c.minISR) != "" && !p.allowWeak {
			if s.local, err = p.isLocal(ctx); err != nil {
				s.configs = nil // who can't be asked where the brokers are is not judged
			}
			return s, err
		}
	}
	return s, nil
}

// createMissing creates the topics of s that do not exist and asks for them again.
func (p *Producer) createMissing(ctx context.Context, s *sight) error {
	if p.create == nil {
		return nil
	}
	req := &createtopics.Request{TimeoutMs: int32(lookTimeout.Milliseconds())}
	var names []string
	for name, t := range s.topics {
		if codeOf(t.Err) == int16(kafka.UnknownTopicOrPartition) {
			names = append(names, name)
			req.Topics = append(req.Topics, createtopics.RequestTopic{
				Name:              name,
				NumPartitions:     p.create.Partitions,
				ReplicationFactor: p.create.Replication,
				// A majority: what is acknowledged then outlives any one broker.
				Configs: []createtopics.RequestConfig{{Name: "min.insync.replicas", Value: strconv.Itoa(int(p.create.Replication)/2 + 1)}},
			})
		}
	}
	if len(names) == 0 {
		return nil
	}
	m, err := p.cluster.RoundTrip(ctx, nil, req)
	if err != nil {
		return fmt.Errorf("sink: create topics %s: %w", strings.Join(names, ", "), err)
	}
	for _, t := range m.(*createtopics.Response).Topics {
		switch kafka.Error(t.ErrorCode) {
		case 0:
			p.log.Info().Str("topic", t.Name).Int32("partitions", p.create.Partitions).
				Int16("replication", p.create.Replication).Msg("topic created")
		case kafka.TopicAlreadyExists: // somebody was quicker
		default:
			if s.refused == nil {
				s.refused = make(map[string]refused)
			}
			s.refused[t.Name] = refused{t.ErrorCode, t.ErrorMessage}
		}
	}
	p.cluster.Refresh(names...)
	again, err := p.cluster.Metadata(ctx, names...)
	for name, t := range again {
		s.topics[name] = t
	}
	return err
}

// describe reads the configuration of the topics in due that exist. Where we may not
// read it, nothing is known: the broker's answers then teach the limit.
func (p *Producer) describe(ctx context.Context, topics map[string]Topic, due []string) (map[string]topicConfig, error) {
	req := &describeconfigs.Request{}
	for _, name := range due {
		if topics[name].Err == nil {
			req.Resources = append(req.Resources, describeconfigs.RequestResource{
				ResourceType: resourceTopic,
				ResourceName: name,
				ConfigNames:  []string{"max.message.bytes", "min.insync.replicas", "cleanup.policy"},
			})
		}
	}
	if len(req.Resources) == 0 {
		return nil, nil
	}
	m, err := p.cluster.RoundTrip(ctx, nil, req)
	if err != nil {
		return nil, fmt.Errorf("sink: read the configuration of topics: %w", err)
	}
	configs := make(map[string]topicConfig, len(req.Resources))
	for _, r := range m.(*describeconfigs.Response).Resources {
		c := topicConfig{read: time.Now()}
		for _, e := range r.ConfigEntries { // none where ErrorCode is set
			switch e.ConfigName {
			case "max.message.bytes":
				c.limit, _ = strconv.Atoi(e.ConfigValue)
			case "min.insync.replicas":
				c.minISR, _ = strconv.Atoi(e.ConfigValue)
			case "cleanup.policy":
				c.compact = strings.Contains(e.ConfigValue, "compact")
				c.expires = strings.Contains(e.ConfigValue, "delete")
			}
		}
		configs[r.ResourceName] = c
	}
	return configs, nil
}

// isLocal reports whether the cluster is one for development: a single broker, or
// all of them on this machine.
func (p *Producer) isLocal(ctx context.Context) (bool, error) {
	m, err := p.cluster.RoundTrip(ctx, nil, &metadata.Request{TopicNames: []string{}})
	if err != nil {
		return false, fmt.Errorf("sink: list the brokers: %w", err)
	}
	brokers := m.(*metadata.Response).Brokers
	for _, b := range brokers {
		ip := net.ParseIP(b.Host)
		if b.Host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return len(brokers) == 1, nil
		}
	}
	return true, nil
}

// newIdentity gets a producer id from any broker.
func (p *Producer) newIdentity(ctx context.Context) (identity, int16, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	// -1 for both: 0 would claim to be producer 0.
	m, err := p.cluster.RoundTrip(ctx, nil, &initproducerid.Request{ProducerID: -1, ProducerEpoch: -1})
	if err != nil {
		return noIdentity, 0, fmt.Errorf("sink: get a producer id: %w", err)
	}
	res := m.(*initproducerid.Response)
	return identity{res.ProducerID, res.ProducerEpoch}, res.ErrorCode, nil
}
