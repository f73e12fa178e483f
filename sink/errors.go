package sink

import (
	"fmt"
	"strings"
)

// CodeError is a broker's answer that ends [Producer.Write]: sending again would not help.
type CodeError struct {
	Code      int16
	Topic     string // "" = not about a topic
	Partition int32
}

func (e *CodeError) Error() string {
	c := lookup(e.Code)
	if e.Topic == "" {
		return fmt.Sprintf("sink: get a producer id: %s (%d): %s", c.name, c.number, c.why)
	}
	return fmt.Sprintf("sink: produce to %s-%d: %s (%d): %s", e.Topic, e.Partition, c.name, c.number, c.why)
}

// Fatal reports whether a new session would meet the same answer again.
func (e *CodeError) Fatal() bool { return lookup(e.Code).action == fatal }

// WeakTopicError is returned by [Producer.Check] for topics whose acknowledged events
// would not outlive the loss of one broker.
type WeakTopicError struct {
	Topics []string
	Remedy []string // one command for each
}

func (e *WeakTopicError) Error() string {
	return fmt.Sprintf("sink: topics %s can lose acknowledged events with one broker: mend them (%s), or accept that by --allow-weak-topics",
		strings.Join(e.Topics, ", "), strings.Join(e.Remedy, "; "))
}

func tooLargeReason(bytes int) string {
	return fmt.Sprintf("its record batch of %d bytes exceeds what the topic takes (max.message.bytes)", bytes)
}

func noPartitionReason(partition, count int32) string {
	return fmt.Sprintf("the row asks for partition %d, the topic has %d partitions", partition, count)
}
