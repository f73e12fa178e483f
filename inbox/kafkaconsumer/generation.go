package kafkaconsumer

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// How often the number of partitions is looked at.
const watchInterval = 5 * time.Second

// progress is how far the partitions of a generation are applied.
type progress struct {
	mu      sync.Mutex
	offsets map[string]map[int]int64 // the next one to read, by topic and partition
}

// reached is called when everything before an offset is committed in the database, never before.
func (p *progress) reached(topic string, partition int, offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.offsets[topic] == nil {
		p.offsets[topic] = map[int]int64{}
	}
	p.offsets[topic][partition] = offset
}

// take returns what was reached since the last call.
func (p *progress) take() map[string]map[int]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.offsets
	p.offsets = map[string]map[int]int64{}
	return taken
}

// giveBack is take undone; what was reached meanwhile is newer.
func (p *progress) giveBack(taken map[string]map[int]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for topic, offsets := range taken {
		maps.Copy(offsets, p.offsets[topic])
		p.offsets[topic] = offsets
	}
}

// start begins to work at what a generation assigns. A generation ends when the first of its functions returns, so
// all of them stay until then; and the next one begins when all have returned.
func (c *Consumer) start(gen *kafka.Generation) {
	done := &progress{offsets: map[string]map[int]int64{}}
	var working sync.WaitGroup
	count := 0
	for topic, partitions := range gen.Assignments {
		for _, a := range partitions {
			count++
			p := c.newPartition(topic, a.ID, a.Offset, done)
			working.Add(1)
			gen.Start(func(ended context.Context) {
				defer working.Done()
				p.work(ended)
			})
		}
	}
	c.log.Info("joined the group", "group", gen.GroupID, "generation", gen.ID, "partitions", count)
	gen.Start(func(ended context.Context) { c.commitLoop(ended, gen, done, &working) })
	gen.Start(c.watch)
}

// commitLoop commits what was reached, a last time when the last effect has ended. In a rebalance the coordinator still takes it; from
// a member that it has given up it does not, and what was done is repeated to a consumer whose inbox knows it.
func (c *Consumer) commitLoop(ended context.Context, gen *kafka.Generation, done *progress, working *sync.WaitGroup) {
	tick := time.NewTicker(c.cfg.CommitInterval)
	defer tick.Stop()
	commit := func() {
		offsets := done.take()
		if err := gen.CommitOffsets(offsets); err != nil {
			done.giveBack(offsets)
			c.log.Debug("offsets are not committed", "generation", gen.ID, "error", err)
		}
	}
	for {
		select {
		case <-tick.C:
			commit()
		case <-ended.Done():
			working.Wait()
			commit()
			return
		}
	}
}

// watch ends the generation when a topic appears or gets more partitions. kafka-go's own watcher does it too, and also whenever a topic is
// missing, as fast as the group can be joined.
func (c *Consumer) watch(ended context.Context) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	before, known := c.partitions(ended)
	for {
		select {
		case <-ended.Done():
			return
		case <-tick.C:
		}
		now, ok := c.partitions(ended)
		switch {
		case !ok:
		case !known:
			before, known = now, true
		case !maps.Equal(before, now):
			c.log.Info("the topics have other partitions: joining again")
			return
		}
	}
}

// partitions returns how many partitions the topics have; false: not known.
func (c *Consumer) partitions(ctx context.Context) (map[string]int, bool) {
	res, err := c.kafka.Metadata(ctx, &kafka.MetadataRequest{Topics: c.cfg.Topics})
	if err != nil {
		return nil, false
	}
	counts := map[string]int{}
	for _, t := range res.Topics {
		if t.Error != nil && !errors.Is(t.Error, kafka.UnknownTopicOrPartition) {
			return nil, false
		}
		counts[t.Name] = len(t.Partitions)
	}
	return counts, true
}
