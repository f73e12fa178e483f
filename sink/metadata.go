package sink

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

const (
	askAgainMin = 100 * time.Millisecond // before a topic is asked for a second time; doubled each time
	askAgainMax = 500 * time.Millisecond
	askQuiet    = 5 * time.Second // after which the doubling starts anew
)

// Topic is what the cluster last said about a topic.
type Topic struct {
	Name       string
	Err        error       // nil or a kafka.Error: unknown topic, authorization, …
	ID         [16]byte    // zero where the broker is too old to say
	Partitions []Partition // index = partition id
}

// Partition is what the cluster last said about one partition.
type Partition struct {
	Leader   int32 // node id, -1 = none
	Err      error // nil or a kafka.Error
	Replicas []int32
	ISR      []int32
}

// complete: nothing is wrong with the topic that a later answer could mend.
func (t *Topic) complete() bool {
	return t.Err == nil && len(t.Partitions) > 0 &&
		!slices.ContainsFunc(t.Partitions, func(p Partition) bool { return p.Leader < 0 || leaderless(p.Err) })
}

// leaderless leaves out the codes with which old brokers report absent replicas of a partition that has a leader.
func leaderless(err error) bool {
	return err != nil && err != kafka.ReplicaNotAvailable
}

// knownTopic is the cache's entry, under Client.mu.
type knownTopic struct {
	topic Topic
	at    time.Time
	asked uint64 // the ask that this is the answer to
	want  uint64 // answers to earlier asks are stale

	askAfter time.Time // no ask before
	askDelay time.Duration
}

// Metadata returns what the cluster says about the topics: from memory where that is
// fresh and without errors, else asked from any broker. The map has an entry for each topic asked for.
// The error is one of the transport: no broker answered, or ctx ended.
func (c *Client) Metadata(ctx context.Context, topics ...string) (map[string]Topic, error) {
	out, missing, _, err := c.remembered(topics)
	if err != nil || len(missing) == 0 {
		return out, err
	}
	select {
	case c.asking <- struct{}{}: // one asks, the others find its answer
		defer func() { <-c.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	out, missing, stale, err := c.remembered(topics)
	if err != nil || len(missing) == 0 {
		return out, err
	}
	if !stale { // only old: better than nothing if nobody answers soon
		quick, cancel := context.WithTimeout(ctx, quickAnswer)
		defer cancel()
		if c.ask(quick, missing) != nil && ctx.Err() == nil {
			return c.last(topics), nil
		}
	} else if err := c.ask(ctx, missing); err != nil {
		return nil, err
	}
	return c.last(topics), nil
}

// Refresh marks topics stale (none = all): the next Metadata asks again, no sooner than a back-off allows.
func (c *Client) Refresh(topics ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(topics) == 0 {
		for _, k := range c.topics {
			k.want = c.asks + 1
		}
	}
	for _, name := range topics {
		if k := c.topics[name]; k != nil {
			k.want = c.asks + 1
		}
	}
}

// remembered splits the topics into those that memory answers and those to ask
// for; stale is false if these are merely older than metadataMaxAge.
func (c *Client) remembered(topics []string) (out map[string]Topic, missing []string, stale bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, false, errClientClosed
	}
	out = make(map[string]Topic, len(topics))
	for _, name := range topics {
		k := c.topics[name]
		usable := k != nil && k.asked >= k.want && k.topic.complete()
		if usable && time.Since(k.at) < c.cfg.metadataMaxAge {
			out[name] = k.topic
			continue
		}
		missing = append(missing, name)
		stale = stale || !usable
	}
	return out, missing, stale, nil
}

// last is what is known about the topics, right or wrong. The topics whose refresh
// was not answered are not old again for a while.
func (c *Client) last(topics []string) map[string]Topic {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]Topic, len(topics))
	for _, name := range topics {
		k := c.topics[name]
		if time.Since(k.at) >= c.cfg.metadataMaxAge {
			k.at = time.Now().Add(10*time.Second - c.cfg.metadataMaxAge)
		}
		out[name] = k.topic
	}
	return out
}

// ask asks any broker for the topics and for the cluster. The caller holds the
// asking token. A topic asked for lately is not asked for again before its back-off is over.
func (c *Client) ask(ctx context.Context, topics []string) error {
	if err := pause(ctx, c.backoff(topics)); err != nil {
		return err
	}
	c.mu.Lock()
	c.asks++
	n := c.asks
	c.mu.Unlock()
	res, err := c.any(ctx, &topicsRequest{topics}, true)
	if err != nil {
		return err
	}
	switch r := res.(type) {
	case *topicsAnswer:
		c.learn(r, topics, n)
	case *metadata.Response: // of an old broker
		c.learn(&topicsAnswer{Response: *r}, topics, n)
	}
	return nil
}

// backoff says how long to wait before asking for the topics, and moves their next time.
func (c *Client) backoff(topics []string) (wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, name := range topics {
		k := c.topics[name]
		if k == nil {
			continue
		}
		wait = max(wait, k.askAfter.Sub(now))
	}
	for _, name := range topics {
		k := c.topics[name]
		if k == nil {
			continue
		}
		if now.Sub(k.askAfter) > askQuiet {
			k.askDelay = 0
		}
		k.askDelay = min(max(askAgainMin, 2*k.askDelay), askAgainMax)
		k.askAfter = now.Add(wait + k.askDelay*3/4 + rand.N(k.askDelay/4+1))
	}
	return wait
}

// learn takes a metadata answer in.
func (c *Client) learn(res *topicsAnswer, asked []string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.learnBrokers(&res.Response)
	answers := make(map[string]Topic, len(res.Topics))
	for i := range res.Topics {
		t := topicOf(&res.Topics[i])
		t.ID = res.ids[t.Name]
		answers[t.Name] = t
	}
	for _, name := range asked {
		k := c.topics[name]
		if k == nil {
			k = new(knownTopic)
			c.topics[name] = k
		}
		t, ok := answers[name]
		if !ok {
			t = Topic{Name: name, Err: kafka.UnknownTopicOrPartition}
		}
		k.topic, k.asked, k.at = t, n, time.Now()
	}
}

// learnBrokers replaces the list of brokers. One that is not in it is down or gone: what waits for it
// ends now and not at its deadline. Under Client.mu.
func (c *Client) learnBrokers(res *metadata.Response) {
	if len(res.Brokers) == 0 {
		return // from a broker that only just starts
	}
	c.controller = res.ControllerID
	listed := make(map[int32]bool, len(res.Brokers))
	for _, b := range res.Brokers {
		listed[b.NodeID] = true
		c.learnBroker(b.NodeID, b.Host, b.Port)
	}
	for id, p := range c.brokers {
		if !listed[id] {
			p.abandon()
			delete(c.brokers, id)
		}
	}
}

// learnBroker notes where a node is reached. Under Client.mu.
func (c *Client) learnBroker(id int32, host string, port int32) {
	addr := net.JoinHostPort(host, strconv.Itoa(int(port)))
	if p := c.brokers[id]; p != nil {
		if p.addr == addr {
			return
		}
		p.abandon()
	}
	c.brokers[id] = newPeer(c, id, addr)
}

// topicOf puts partitions at the index of their id; one that the broker left out has no leader.
func topicOf(t *metadata.ResponseTopic) Topic {
	out := Topic{Name: t.Name, Err: codeError(t.ErrorCode)}
	n := 0
	for _, p := range t.Partitions {
		if p.PartitionIndex >= 0 && int(p.PartitionIndex) < len(t.Partitions) {
			n = max(n, int(p.PartitionIndex)+1)
		}
	}
	out.Partitions = make([]Partition, n)
	for i := range out.Partitions {
		out.Partitions[i] = Partition{Leader: -1, Err: kafka.LeaderNotAvailable}
	}
	for _, p := range t.Partitions {
		if p.PartitionIndex >= 0 && int(p.PartitionIndex) < n {
			out.Partitions[p.PartitionIndex] = Partition{
				Leader: p.LeaderID, Err: codeError(p.ErrorCode), Replicas: p.ReplicaNodes, ISR: p.IsrNodes,
			}
		}
	}
	return out
}

func codeError(code int16) error {
	if code == 0 {
		return nil
	}
	return kafka.Error(code)
}
