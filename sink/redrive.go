package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/segmentio/kafka-go"

	"github.com/walrelay/walrelay/decode"
)

// Headers that a dead letter has beside those of its event. The relay writes the first group, a consumer (inbox/kafkaconsumer) these and the second.
var letterHeaders = []string{
	"walrelay-error", "walrelay-original-topic", "walrelay-original-timestamp",
	"walrelay-original-partition", "walrelay-original-offset", "walrelay-attempts",
	redriveMark, // of an event that died again
}

// redriveMark is the header of an event that is published again as it comes from a dead-letter topic; its value is the letter's place. The inbox
// then knows that its position is not where the event stands.
const redriveMark = "walrelay-redrive"

const redriveBatch = 500 // letters between two commits of the progress

// RedriveError is returned for a dead letter that can't be sent again; those before it were.
type RedriveError struct {
	Partition int32
	Offset    int64
	Reason    string
}

func (e *RedriveError) Error() string {
	return fmt.Sprintf("sink: redrive the letter at %d:%d: %s", e.Partition, e.Offset, e.Reason)
}

// RedriveOptions say which of the letters that were not redriven are sent again.
type RedriveOptions struct {
	Max            int           // letters; 0 = all
	Timeout        time.Duration // of each batch
	SkipIncomplete bool          // leave out letters whose value or key was too large to be kept
}

// Redrive sends dead letters back to the topics that they come from, in the order in which they lie in each partition of
// theirs: with key, value, time and headers of the event, and a mark. How far it is, is committed behind each
// batch, so that one that was interrupted goes on where it was, and repeats at most a batch.
func (l *Letters) Redrive(ctx context.Context, p *Producer, opts RedriveOptions) (sent int, err error) {
	for _, s := range l.spans {
		var batch []decode.Event
		flush := func(next int64) error {
			ctx, cancel := context.WithTimeout(ctx, opts.Timeout)
			defer cancel()
			n, err := p.Write(ctx, batch)
			if sent += n; err != nil {
				return err
			}
			batch = nil
			return l.commit(ctx, s.partition, next)
		}
		next := s.pending
		err := l.read(ctx, s, s.pending, func(letter *Letter) error {
			if opts.Max > 0 && sent+len(batch) == opts.Max {
				return errEnough
			}
			ev, reason := letter.event(p.allowed)
			switch {
			case reason == "":
				batch = append(batch, ev)
			case reason != incomplete || !opts.SkipIncomplete:
				return &RedriveError{letter.Partition, letter.Offset, reason}
			}
			if next = letter.Offset + 1; len(batch) < redriveBatch {
				return nil
			}
			return flush(next)
		})
		if refused := (*RedriveError)(nil); err == nil || errors.Is(err, errEnough) || errors.As(err, &refused) {
			if next > s.pending {
				err = errors.Join(flush(next), err)
			}
		}
		if errors.Is(err, errEnough) {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

var errEnough = errors.New("enough")

const incomplete = "its value or key was left away because it was too large; publish the event from the outbox table, and leave the letter out by --skip-incomplete"

// event makes the event that the letter is about; or says why it can't.
func (l *Letter) event(allowed func(string) bool) (ev decode.Event, reason string) {
	topic := l.Header("walrelay-original-topic")
	switch {
	case topic == "":
		return ev, "it has no header walrelay-original-topic: it is no dead letter of walrelay or its consumers"
	case !allowed(topic):
		return ev, fmt.Sprintf("topic %q is not allowed; allow it by --topic-allow", topic)
	case l.Header("walrelay-value-omitted") != "" || l.Header("walrelay-key-omitted") != "":
		return ev, incomplete
	}
	ev = decode.Event{Topic: topic, Key: l.Key, Value: l.Value, ID: []byte(l.Header("event-id")), Timestamp: l.Time.UnixMilli(), Partition: -1}
	if n, err := strconv.ParseInt(l.Header("walrelay-original-partition"), 10, 32); err == nil && n >= 0 {
		ev.Partition = int32(n)
	}
	if ms, err := strconv.ParseInt(l.Header("walrelay-original-timestamp"), 10, 64); err == nil {
		ev.Timestamp = ms
	}
	// Without a key the position chooses the partition.
	ev.Commit, _ = pglogrepl.ParseLSN(l.Header("walrelay-lsn"))
	ev.Seq, _ = strconv.ParseUint(l.Header("walrelay-seq"), 10, 64)
	kept := slices.DeleteFunc(slices.Clone(l.Headers), func(h decode.Header) bool { return slices.Contains(letterHeaders, h.Key) })
	ev.Headers = decode.NewHeaders(kept...)
	ev.Headers.Add(redriveMark, fmt.Appendf(nil, "%s-%d@%d", l.Topic, l.Partition, l.Offset))
	return ev, ""
}

func (l *Letters) commit(ctx context.Context, partition int32, next int64) error {
	res, err := l.client.Admin().OffsetCommit(ctx, &kafka.OffsetCommitRequest{
		GroupID: redriveGroup, GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{l.topic: {{Partition: int(partition), Offset: next}}},
	})
	if err == nil && len(res.Topics[l.topic]) == 1 {
		err = res.Topics[l.topic][0].Error
	}
	if err != nil {
		return fmt.Errorf("sink: save how far %s-%d was redriven: %w", l.topic, partition, err)
	}
	return nil
}
