// Package kafkaconsumer is a consumer's loop around package inbox: it reads topics as a member of a consumer group, claims each event,
// runs the effect in the transaction of the claim, and commits the offset when the database has committed.
//
//	consumer, err := kafkaconsumer.New(kafkaconsumer.Config{
//		Brokers: brokers, Group: "billing", Topics: []string{"outbox.event.order"},
//		DB: pool, Inbox: inbox.Inbox{Consumer: "billing"},
//		Handle: func(ctx context.Context, tx pgx.Tx, m *kafkaconsumer.Message) error { … },
//	})
//	err = consumer.Run(ctx) // until ctx ends
//
// One goroutine works at each assigned partition, one event after the other. An event that fails is tried again in its place, and goes to
// the dead-letter topic after Config.Attempts or at once when the error is [Permanent]. What is not the event's fault (no
// database, a deadlock, no Kafka) is waited for and not counted.
//
// It is built on kafka-go's ConsumerGroup, not on its Reader: the Reader commits, after a rebalance, offsets of partitions
// that are another member's by now, and hides which records belong to aborted transactions. Here offsets are committed in the generation in which they were
// read, so the broker refuses late ones.
package kafkaconsumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"

	"github.com/walrelay/walrelay/inbox"
)

// Forever as Config.Attempts never parks an event: it holds its partition until it succeeds. Permanent errors too are then tried again.
const Forever = -1

// Config says what to consume and how. Zero values mean the defaults that are named.
type Config struct {
	Brokers []string
	Group   string
	Topics  []string
	Dialer  *kafka.Dialer // TLS, SASL and client id; nil = plain text

	DB    inbox.Beginner // a pool with a connection for every partition that is worked at
	Inbox inbox.Inbox
	// Handle is the effect of an event. Everything that it does belongs into tx; when it returns nil, tx is committed. It
	// must return soon after ctx has ended, which it does when another member takes the partition or the consumer stops.
	Handle func(ctx context.Context, tx pgx.Tx, m *Message) error

	Attempts        int           // before an event is parked; 5
	MinBackoff      time.Duration // before the second attempt, doubled for each further one; 100 ms
	MaxBackoff      time.Duration // 10 s
	DeadLetterTopic string        // "{topic}" stands for the event's topic; {topic}.DLT

	// Session is after how much silence the group gives the partitions to others, and how long it waits for members in a
	// rebalance; 30 s. Heartbeats flow while an effect takes long, so that it bounds no effect; but one that runs when
	// the partitions are distributed anew gets half of it to end, and is then cancelled and rolled back.
	Session        time.Duration
	CommitInterval time.Duration // of offsets; 1 s. What is not committed is known to the inbox.
	StopTimeout    time.Duration // how long effects may go on after Run's context has ended; at most, and by default, half of Session

	Metrics prometheus.Registerer // nil = not exported
	Log     *slog.Logger          // nil = nothing
}

// Consumer is a member of a group.
type Consumer struct {
	cfg     Config
	kafka   *kafka.Client
	group   kafka.ConsumerGroupConfig
	metrics *metrics
	log     *slog.Logger
}

// New checks the configuration; it does no I/O.
func New(cfg Config) (*Consumer, error) {
	switch {
	case len(cfg.Brokers) == 0 || cfg.Group == "" || len(cfg.Topics) == 0:
		return nil, errors.New("kafkaconsumer: Brokers, Group and Topics are needed")
	case cfg.DB == nil || cfg.Handle == nil || cfg.Inbox.Consumer == "":
		return nil, errors.New("kafkaconsumer: DB, Handle and Inbox.Consumer are needed")
	}
	cfg.Attempts = or(cfg.Attempts, 5)
	cfg.MinBackoff = or(cfg.MinBackoff, 100*time.Millisecond)
	cfg.MaxBackoff = or(cfg.MaxBackoff, 10*time.Second)
	cfg.Session = or(cfg.Session, 30*time.Second)
	cfg.CommitInterval = or(cfg.CommitInterval, time.Second)
	cfg.StopTimeout = min(or(cfg.StopTimeout, cfg.Session/2), cfg.Session/2)
	cfg.DeadLetterTopic = or(cfg.DeadLetterTopic, "{topic}.DLT")
	cfg.Dialer = or(cfg.Dialer, &kafka.Dialer{Timeout: 10 * time.Second, DualStack: true})
	cfg.Log = or(cfg.Log, slog.New(slog.DiscardHandler))
	c := &Consumer{cfg: cfg, log: cfg.Log, metrics: newMetrics(cfg.Metrics, cfg.Group)}
	c.group = kafka.ConsumerGroupConfig{
		ID: cfg.Group, Brokers: cfg.Brokers, Topics: cfg.Topics, Dialer: cfg.Dialer,
		SessionTimeout: cfg.Session, RebalanceTimeout: cfg.Session, HeartbeatInterval: min(cfg.Session/10, 3*time.Second),
		JoinGroupBackoff: time.Second, StartOffset: kafka.FirstOffset,
	}
	names := append([]string(nil), cfg.Topics...)
	for _, topic := range cfg.Topics {
		names = append(names, c.deadLetterTopic(topic))
	}
	c.kafka = &kafka.Client{
		Addr:    kafka.TCP(cfg.Brokers...),
		Timeout: 15 * time.Second, // 0 would become 500 ms on the broker's side
		Transport: &kafka.Transport{
			TLS: cfg.Dialer.TLS, SASL: cfg.Dialer.SASLMechanism, ClientID: cfg.Dialer.ClientID, Dial: cfg.Dialer.DialFunc,
			MetadataTopics: names, MetadataTTL: time.Second, // it is not refreshed when a leader moves
		},
	}
	return c, nil
}

func or[T comparable](v, otherwise T) T {
	if v == *new(T) {
		return otherwise
	}
	return v
}

// Run consumes until ctx ends; then effects that run get StopTimeout to end, offsets are committed, and the member leaves the
// group. It returns nil after such a stop. Faults are outlived.
func (c *Consumer) Run(ctx context.Context) error {
	defer c.kafka.Transport.(*kafka.Transport).CloseIdleConnections()
	group, err := kafka.NewConsumerGroup(c.group)
	if err != nil {
		return fmt.Errorf("kafkaconsumer: %w", err)
	}
	trouble := outage{log: c.log, what: "can't join the group: trying on"}
	for {
		gen, err := group.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return group.Close() // ends the generation, and waits for it
		case err == nil:
			trouble.over()
			c.start(gen)
		case !errors.Is(err, kafka.RebalanceInProgress):
			trouble.met(err) // the group itself waits before it tries again
		}
	}
}

func (c *Consumer) deadLetterTopic(topic string) string {
	return strings.ReplaceAll(c.cfg.DeadLetterTopic, "{topic}", topic)
}

// outage logs a trouble once when it begins, and once when it is over.
type outage struct {
	log   *slog.Logger
	what  string
	since time.Time
}

func (o *outage) met(err error, args ...any) {
	if o.since.IsZero() {
		o.since = time.Now()
		o.log.Warn(o.what, append(args, "error", err)...)
	}
}

func (o *outage) over(args ...any) {
	if !o.since.IsZero() {
		o.log.Info("going on", append(args, "after", o.what, "outage_ms", time.Since(o.since).Milliseconds())...)
		o.since = time.Time{}
	}
}
