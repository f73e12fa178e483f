package sink

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

// recordRoom is what a record batch takes beside the value: its header, key and
// headers of the record, generously.
const recordRoom = 1 << 10

// topics looks at each topic, in the order of their names.
func (e *examination) topics(ctx context.Context, topics map[string]*metadata.ResponseTopic) error {
	names := slices.Sorted(maps.Keys(topics))
	if len(names) == 0 {
		e.found.warn("topics", "create the topics that the events go to, or set --create-topics", "no topic exists that rows may go to, and no row tells which will be needed")
		return nil
	}
	seen := make(map[string]Topic)
	for name, t := range topics {
		seen[name] = topicOf(t)
	}
	configs, err := e.describe(ctx, seen, names)
	if err != nil {
		return err
	}
	for _, name := range names {
		e.topic(topics[name], seen[name], configs[name])
	}
	if e.policy == PoisonDeadLetter {
		e.deadLetterTopics(ctx, names)
	}
	return nil
}

// topic is one line where all is well, and one for each thing that isn't.
func (e *examination) topic(raw *metadata.ResponseTopic, t Topic, c topicConfig) {
	before := len(*e.found)
	switch code := kafka.Error(raw.ErrorCode); code {
	case 0:
	case kafka.UnknownTopicOrPartition:
		e.missing(t.Name)
		return
	case kafka.TopicAuthorizationFailed:
		e.found.fail("acl", e.acl("Describe", "--topic "+t.Name)+"; and Write", "topic %s: we may not see it", t.Name)
		return
	default:
		e.found.fail("topic", "", "topic %s: %s", t.Name, lookup(raw.ErrorCode).name)
		return
	}
	if ops := raw.TopicAuthorizedOperations; ops != 0 { // 0: the broker is too old to tell
		if !may(ops, opWrite) {
			e.found.fail("acl", e.acl("Write", "--topic "+t.Name), "topic %s: we may not write to it", t.Name)
		}
		if !may(ops, opDescribeConfigs) {
			e.found.warn("acl", e.acl("DescribeConfigs", "--topic "+t.Name), "topic %s: we may not read its configuration, so its limits and its durability are not known", t.Name)
		}
	}
	e.leaders(t, c)
	e.durable(t, c)
	e.limit(t, c)
	e.cleanup(t, c)
	if len(*e.found) == before {
		e.found.ok("topic", "topic %s: %s, replication factor %d, min.insync.replicas %d, max.message.bytes %d", t.Name,
			plural(len(t.Partitions), "partition"), len(t.Partitions[0].Replicas), c.minISR, c.limit)
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (e *examination) missing(name string) {
	create := fmt.Sprintf("kafka-topics.sh --bootstrap-server %s --create --topic %s --partitions 12 --replication-factor 3 --config min.insync.replicas=2", e.bootstrap, name)
	switch {
	case e.create == nil:
		e.found.fail("topic", create, "topic %s does not exist: events for it would be waited for", name)
	case !e.creates: // a right to create this very topic can't be seen before it exists
		e.found.warn("topic", e.acl("Create", "--topic "+name)+"; or "+create, "topic %s does not exist, and we may not create topics on the whole cluster: --create-topics works if we may create this one", name)
	default:
		e.found.ok("topic", "topic %s does not exist yet: --create-topics will create it, with %s and %s", name,
			plural(int(e.create.Partitions), "partition"), plural(int(e.create.Replication), "replica"))
	}
}

// leaders: a partition without one, or with too few replicas in sync, takes nothing now.
func (e *examination) leaders(t Topic, c topicConfig) {
	var leaderlessOnes, short []string
	for i, p := range t.Partitions {
		switch {
		case p.Leader < 0 || leaderless(p.Err):
			leaderlessOnes = append(leaderlessOnes, fmt.Sprint(i))
		case len(p.ISR) < c.minISR:
			short = append(short, fmt.Sprint(i))
		}
	}
	const mend = "start the brokers that hold its replicas"
	if leaderlessOnes != nil {
		e.found.fail("leader", mend, "topic %s: no leader for partition %s", t.Name, strings.Join(leaderlessOnes, ", "))
	}
	if short != nil {
		e.found.fail("in_sync_replicas", mend, "topic %s: fewer in-sync replicas than min.insync.replicas=%d on partition %s", t.Name, c.minISR, strings.Join(short, ", "))
	}
}

// durable says whether acknowledged events outlive the loss of one broker.
func (e *examination) durable(t Topic, c topicConfig) {
	weak := weakness(t, c.minISR)
	mend := e.mend(t.Name, weak)
	switch {
	case weak == "":
	case e.local:
		e.found.warn("durability", mend, "topic %s: %s: acknowledged events can be lost with one broker (accepted on a cluster of one broker, or all on this host)", t.Name, weak)
	case e.allowWeak:
		e.found.warn("durability", mend, "topic %s: %s: acknowledged events can be lost with one broker (accepted by --allow-weak-topics)", t.Name, weak)
	default:
		e.found.fail("durability", mend, "topic %s: %s: acknowledged events can be lost with one broker; run does not start with it", t.Name, weak)
	}
}

func (e *examination) limit(t Topic, c topicConfig) {
	if c.limit == 0 {
		return
	}
	alter := func(bytes int64) string {
		return fmt.Sprintf("kafka-configs.sh --bootstrap-server %s --alter --entity-type topics --entity-name %s --add-config max.message.bytes=%d", e.bootstrap, t.Name, bytes)
	}
	if need := e.known.Largest + recordRoom; e.known.Largest > 0 && need > int64(c.limit) {
		e.found.fail("max_message_bytes", alter(2*need), "topic %s takes record batches of %d bytes, and the largest payload in the table has %d: it would be poison",
			t.Name, c.limit, e.known.Largest)
	} else if e.known.Largest > int64(c.limit)/2 {
		e.found.warn("max_message_bytes", alter(4*need), "topic %s takes record batches of %d bytes, and the largest payload in the table has %d: more than half of it", t.Name, c.limit, e.known.Largest)
	}
}

func (e *examination) cleanup(t Topic, c topicConfig) {
	if !c.compact {
		return
	}
	mend := fmt.Sprintf("kafka-configs.sh --bootstrap-server %s --alter --entity-type topics --entity-name %s --add-config cleanup.policy=delete", e.bootstrap, t.Name)
	if e.known.NullKeys {
		e.found.fail("cleanup_policy", "give every row a key (--column key=NAME), or "+mend, "topic %s is compacted, and rows in the table have no key: they would be poison", t.Name)
		return
	}
	e.found.warn("cleanup_policy", mend, "topic %s is compacted: of each key only the newest event is kept, and a row without a key is poison", t.Name)
}

// deadLetterTopics are needed only once something is poison: and then nothing goes on without them.
func (e *examination) deadLetterTopics(ctx context.Context, names []string) {
	var dead []string
	for _, name := range names {
		if d := e.deadLetterTopic(name); !slices.Contains(dead, d) {
			dead = append(dead, d)
		}
	}
	m, err := e.cluster.RoundTrip(ctx, nil, &metadata.Request{TopicNames: dead})
	if err != nil {
		e.found.fail("dead_letter_topic", "", "%s", plainError(err))
		return
	}
	var missing []string
	for _, t := range m.(*metadata.Response).Topics {
		if kafka.Error(t.ErrorCode) == kafka.UnknownTopicOrPartition {
			missing = append(missing, t.Name)
		}
	}
	slices.Sort(missing)
	switch {
	case missing == nil:
		e.found.ok("dead_letter_topic", "%s", strings.Join(dead, ", "))
	case e.create != nil && e.creates:
		e.found.ok("dead_letter_topic", "%s: --create-topics will create it", strings.Join(missing, ", "))
	default:
		e.found.warn("dead_letter_topic", fmt.Sprintf("kafka-topics.sh --bootstrap-server %s --create --topic %s --partitions 1 --replication-factor 3 --config min.insync.replicas=2", e.bootstrap, missing[0]),
			"%s: missing; the first event that can't be published would be waited for", strings.Join(missing, ", "))
	}
}
