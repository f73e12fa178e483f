package sink

import (
	"fmt"
	"strings"
)

// CodeError is a broker's answer that ends [Producer.Write] or [Producer.Transact]: sending again would not help.
type CodeError struct {
	Code      int16
	Doing     string // what was refused; "" = to produce to the partition
	Topic     string
	Partition int32
}

func (e *CodeError) Error() string {
	c := lookup(e.Code)
	doing := e.Doing
	if doing == "" {
		doing = fmt.Sprintf("produce to %s-%d", e.Topic, e.Partition)
	}
	return fmt.Sprintf("sink: %s: %s (%d): %s", doing, c.name, c.number, c.why)
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

// TopicError says that a topic of the relay's own is configured so that it can't be relied on.
type TopicError struct {
	Topic  string
	Reason string
	Remedy string
}

func (e *TopicError) Error() string {
	return fmt.Sprintf("sink: topic %s: %s; mend it: %s", e.Topic, e.Reason, e.Remedy)
}

func tooLargeReason(bytes int) string {
	return fmt.Sprintf("its record batch of %d bytes exceeds what the topic takes (max.message.bytes)", bytes)
}

func noPartitionReason(partition, count int32) string {
	return fmt.Sprintf("the row asks for partition %d, the topic has %d partitions", partition, count)
}
