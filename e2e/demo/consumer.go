package demo

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// consumer reads the topics as they grow, shows some of what it reads, and recognises
// repeats by the header event-id, as every consumer can.
type consumer struct {
	view   *view
	client *kgo.Client
	stop   context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	seen map[string]bool // event ids
	tally
}

// tally is what has arrived.
type tally struct {
	records     int
	prices      int // events of the price list
	repeats     int // records whose event had arrived before
	repeatBytes int64
	largest     int64 // bytes of the largest record
}

func (t tally) events() int { return t.records - t.repeats }

func startConsumer(brokers string, v *view) (*consumer, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.ConsumeTopics(topics...), kgo.MetadataMinAge(100*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(200*time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }))
	if err != nil {
		return nil, fmt.Errorf("demo: consumer: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &consumer{view: v, client: client, stop: stop, done: make(chan struct{}), seen: map[string]bool{}}
	go func() {
		defer close(c.done)
		defer client.Close()
		c.run(ctx)
	}()
	return c, nil
}

// close ends it.
func (c *consumer) close() {
	c.stop()
	<-c.done
}

func (c *consumer) counts() tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tally
}

// has says how many of the events have arrived.
func (c *consumer) has(ids map[string]bool) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range ids {
		if c.seen[id] {
			n++
		}
	}
	return n
}

// run polls. Errors of a broker that is away are the client's to retry.
func (c *consumer) run(ctx context.Context) {
	every := 100 * time.Millisecond // a line for people to read
	if !c.view.Live {
		every = time.Second
	}
	var shown time.Time
	var topic string // of the line before: the next one had better be of another
	for ctx.Err() == nil {
		c.client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			again := c.note(r)
			if age := time.Since(shown); age >= 2*every || age >= every && r.Topic != topic {
				shown, topic = time.Now(), r.Topic
				c.view.event(r, again)
			}
		})
	}
}

// note counts a record and says whether its event had arrived before.
func (c *consumer) note(r *kgo.Record) (again bool) {
	bytes, id := int64(len(r.Key)+len(r.Value)), ""
	for _, h := range r.Headers {
		bytes += int64(len(h.Key) + len(h.Value))
		if h.Key == "event-id" {
			id = string(h.Value)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	again = c.seen[id]
	c.seen[id] = true
	c.records++
	c.largest = max(c.largest, bytes)
	switch {
	case again:
		c.repeats++
		c.repeatBytes += bytes
	case r.Topic == topicPrefix+"price":
		c.prices++
	}
	return again
}
