package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/walrelay/walrelay/decode"
)

// examineTimeout bounds what one broker may take.
const examineTimeout = 5 * time.Second

// needed are the requests without which nothing can be delivered.
var needed = []protocol.ApiKey{protocol.Produce, protocol.Metadata, protocol.InitProducerId, protocol.DescribeConfigs}

// Examine connects to every broker: to the addresses given, and to those that the
// cluster advertises, which are the ones that events go to. It reports false if none answered.
func (c *Client) Examine(ctx context.Context) (found []Finding, answered bool) {
	var list findings
	c.mu.Lock()
	seeds := slices.Clone(c.seeds)
	c.mu.Unlock()
	slices.SortFunc(seeds, func(a, b *peer) int { return strings.Compare(a.addr, b.addr) })
	seen := make(map[string]bool)
	good := c.reach(ctx, &list, seeds, seen)
	if good == 0 {
		return list, false
	}
	m, err := c.RoundTrip(ctx, nil, &metadata.Request{TopicNames: []string{}})
	if err != nil {
		list.fail("cluster", "", "%s", plainError(err))
		return list, false
	}
	res := m.(*metadata.Response)
	c.mu.Lock()
	c.learnBrokers(res)
	var brokers []*peer
	for _, p := range c.brokers {
		if !seen[p.addr] {
			brokers = append(brokers, p)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(brokers, func(a, b *peer) int { return int(a.node) - int(b.node) })
	c.reach(ctx, &list, brokers, seen)
	switch n := len(res.Brokers); {
	case n == 1:
		list.ok("cluster", "1 broker, cluster id %s", res.ClusterID)
	default:
		list.ok("cluster", "%d brokers, cluster id %s", n, res.ClusterID)
	}
	if res.ControllerID < 0 {
		list.fail("controller", "look at the brokers' logs: the cluster has no quorum", "none is elected: no leader can be elected either")
	}
	return list, true
}

// reach connects to peers, all at once, and returns how many took us.
func (c *Client) reach(ctx context.Context, list *findings, peers []*peer, seen map[string]bool) (good int) {
	results := make([]findings, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		seen[p.addr] = true
		wg.Go(func() { results[i] = p.examine(ctx) })
	}
	wg.Wait()
	for _, r := range results {
		*list = append(*list, r...)
		if r[0].Level != "fail" {
			good++
		}
	}
	return good
}

// examine connects and looks at what the broker speaks.
func (p *peer) examine(ctx context.Context) (found findings) {
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	conn, err := p.connection(ctx, &p.lanes[laneControl])
	if err != nil {
		mend := "start it, or correct --kafka-brokers"
		if p.node >= 0 {
			mend = "start it, or correct advertised.listeners: its address must be reachable from this host"
		}
		if refused := (*AuthError)(nil); errors.As(err, &refused) {
			found.fail("broker", refused.Remedy, "%s: %s", p.name(), refused.Reason)
			return found
		}
		found.fail("broker", mend, "%s", plainError(err))
		return found
	}
	for _, key := range needed {
		if _, err := conn.version(key); err != nil {
			found.fail("api_versions", "walrelay needs Kafka 0.11 or later, and is tested with 4.3", "%s: %s", p.name(), err)
		}
	}
	if found == nil {
		found.ok("broker", "%s answers, Produce up to v%d", p.name(), conn.versions[protocol.Produce].max)
	}
	return found
}

func plainError(err error) string { return strings.TrimPrefix(err.Error(), "sink: ") }

// Known is what is known of the events that will come.
type Known struct {
	Topics   []string // that they go to
	Largest  int64    // bytes of the largest payload; 0 = not known
	NullKeys bool     // some have no key
}

// Examine looks at the topics that events are known to go to and at all others that
// exist and that rows may go to, and asks whether we may write. It creates nothing.
func (p *Producer) Examine(ctx context.Context, known Known) []Finding {
	var found findings
	e := examination{Producer: p, known: known, found: &found}
	if err := e.run(ctx); err != nil {
		found.fail("topics", "", "%s", plainError(err))
	}
	return found
}

type examination struct {
	*Producer
	known   Known
	found   *findings
	local   bool
	creates bool // we may create topics
}

func (e *examination) run(ctx context.Context) error {
	var err error
	if e.local, err = e.isLocal(ctx); err != nil {
		return err
	}
	// Of all topics that we may see, with what we may do.
	m, err := e.cluster.RoundTrip(ctx, nil, &metadata.Request{IncludeTopicAuthorizedOperations: true, IncludeClusterAuthorizedOperations: true})
	if err != nil {
		return fmt.Errorf("list the topics: %w", err)
	}
	res := m.(*metadata.Response)
	e.creates = may(res.ClusterAuthorizedOperations, opCreate)
	topics := make(map[string]*metadata.ResponseTopic)
	for i := range res.Topics {
		t := &res.Topics[i]
		if slices.Contains(e.known.Topics, t.Name) || t.ErrorCode == 0 && !t.IsInternal && e.allowed(t.Name) {
			topics[t.Name] = t
		}
	}
	if err := e.askMissing(ctx, topics); err != nil {
		return err
	}
	if err := e.topics(ctx, topics); err != nil {
		return err
	}
	return e.idempotent(ctx)
}

// askMissing asks for known topics that are not in the list: they do not exist, or
// we may not see them.
func (e *examination) askMissing(ctx context.Context, topics map[string]*metadata.ResponseTopic) error {
	var missing []string
	for _, name := range e.known.Topics {
		if topics[name] == nil && decode.LegalTopic(name) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	m, err := e.cluster.RoundTrip(ctx, nil, &metadata.Request{TopicNames: missing, IncludeTopicAuthorizedOperations: true})
	if err != nil {
		return fmt.Errorf("look for topics: %w", err)
	}
	for i, t := range m.(*metadata.Response).Topics {
		topics[t.Name] = &m.(*metadata.Response).Topics[i]
	}
	return nil
}

// idempotent asks for a producer id, which every broker gives to who may write. One that
// has just started may need a moment.
func (e *examination) idempotent(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*examineTimeout)
	defer cancel()
	var number int16
	for asked := false; ; asked = true {
		_, answer, err := e.newIdentity(ctx)
		switch {
		case err == nil:
			number = answer
		case !asked || ctx.Err() == nil:
			return err
		}
		c := lookup(number) // where time ran out before an answer, the one before
		passing := c.action == retry || c.action == refresh
		switch {
		case c.action == done:
			e.found.ok("idempotent_write", "allowed")
			return nil
		case number == int16(kafka.ClusterAuthorizationFailed):
			e.found.fail("idempotent_write", e.acl("IdempotentWrite", "--cluster"), "%s: %s", c.name, c.why)
			return nil
		case !passing || pause(ctx, 250*time.Millisecond) != nil:
			e.found.fail("idempotent_write", "look at the brokers' logs", "%s: %s", c.name, c.why)
			return nil
		}
	}
}

// What a principal may do, as bits of authorized operations: org.apache.kafka.common.acl.AclOperation.
const (
	opWrite           = 4
	opCreate          = 5
	opDescribeConfigs = 10
)

func may(operations int32, op int) bool { return operations&(1<<op) != 0 }

// acl is the command that grants an operation.
func (e *examination) acl(operation, resource string) string {
	return fmt.Sprintf("kafka-acls.sh --bootstrap-server %s --add --allow-principal User:%s --operation %s %s", e.bootstrap, e.principal, operation, resource)
}
