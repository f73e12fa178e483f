package checker

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Place is a partition of a topic.
type Place struct {
	Topic     string
	Partition int32
}

func (p Place) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Partition) }

// Observed is what the topics hold: of each partition all records in offset order.
type Observed map[Place][]Record

// Split tells what was published live from what replays published again.
func (o Observed) Split() (live, again Observed) {
	live, again = Observed{}, Observed{}
	for p, records := range o {
		live[p] = nil // a partition is there without records too
		for _, r := range records {
			if r.Replay == "" {
				live[p] = append(live[p], r)
			} else {
				again[p] = append(again[p], r)
			}
		}
	}
	return live, again
}

// Topics reads topics to their present end. With committed, it reads as a consumer with
// isolation level read_committed.
type Topics struct {
	Brokers   string // host:port,…; must not lead through a faulty proxy
	Names     []string
	Committed bool
}

// Read returns every record; partitions without any are there, empty.
func (t Topics) Read(ctx context.Context) (Observed, error) {
	isolation := kgo.ReadUncommitted()
	if t.Committed {
		isolation = kgo.ReadCommitted()
	}
	// Control records are kept, since the last offset of a partition may be one.
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(t.Brokers, ",")...), kgo.KeepControlRecords(),
		kgo.FetchIsolationLevel(isolation), kgo.FetchMaxBytes(16<<20))
	if err != nil {
		return nil, fmt.Errorf("checker: %w", err)
	}
	defer client.Close()
	observed, left, err := t.plan(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("checker: read topics: %w", err)
	}
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("checker: read topics: %d partitions are not at their end: %w", len(left), err)
		}
		for _, e := range fetches.Errors() {
			return nil, fmt.Errorf("checker: read %s/%d: %w", e.Topic, e.Partition, e.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			p := Place{r.Topic, r.Partition}
			end, reading := left[p]
			if !reading {
				return
			}
			if !r.Attrs.IsControl() {
				observed[p] = append(observed[p], newRecord(r))
			}
			if r.Offset+1 >= end {
				delete(left, p)
			}
		})
	}
	return observed, nil
}

// Count is how many offsets the topics have used: records, and control records.
func (t Topics) Count(ctx context.Context) (n int64, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(t.Brokers, ",")...))
	if err != nil {
		return 0, fmt.Errorf("checker: %w", err)
	}
	defer client.Close()
	ends, err := patiently(ctx, kadm.NewClient(client).ListEndOffsets, t.Names)
	if err != nil {
		return 0, fmt.Errorf("checker: count records: %w", err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n, nil
}

// Behind is how many offsets a read_committed consumer cannot see yet, because of transactions
// that are open.
func (t Topics) Behind(ctx context.Context) (n int64, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(t.Brokers, ",")...))
	if err != nil {
		return 0, fmt.Errorf("checker: %w", err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	stable, err := patiently(ctx, admin.ListCommittedOffsets, t.Names)
	if err != nil {
		return 0, fmt.Errorf("checker: last stable offsets: %w", err)
	}
	ends, err := patiently(ctx, admin.ListEndOffsets, t.Names)
	if err != nil {
		return 0, fmt.Errorf("checker: last stable offsets: %w", err)
	}
	ends.Each(func(o kadm.ListedOffset) {
		s, _ := stable.Lookup(o.Topic, o.Partition)
		n += o.Offset - s.Offset
	})
	return n, nil
}

// plan sets the client up to read every partition from its start, and says to where.
func (t Topics) plan(ctx context.Context, client *kgo.Client) (Observed, map[Place]int64, error) {
	admin := kadm.NewClient(client)
	starts, err := patiently(ctx, admin.ListStartOffsets, t.Names)
	if err != nil {
		return nil, nil, err
	}
	list := admin.ListEndOffsets
	if t.Committed {
		list = admin.ListCommittedOffsets
	}
	ends, err := patiently(ctx, list, t.Names)
	if err != nil {
		return nil, nil, err
	}
	observed, left, from := Observed{}, map[Place]int64{}, map[string]map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) {
		p := Place{o.Topic, o.Partition}
		observed[p] = nil
		start, _ := starts.Lookup(o.Topic, o.Partition)
		if start.Offset >= o.Offset {
			return
		}
		left[p] = o.Offset
		if from[o.Topic] == nil {
			from[o.Topic] = map[int32]kgo.Offset{}
		}
		from[o.Topic][o.Partition] = kgo.NewOffset().At(start.Offset)
	})
	client.AddConsumePartitions(from)
	return observed, left, nil
}

// patiently asks for offsets until all partitions answer: one may be without a leader
// for a moment.
func patiently(ctx context.Context, list func(context.Context, ...string) (kadm.ListedOffsets, error), topics []string) (kadm.ListedOffsets, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		offsets, err := list(ctx, topics...)
		if err == nil {
			if err = offsets.Error(); err == nil {
				return offsets, nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

func newRecord(r *kgo.Record) Record {
	rec := Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Producer: Producer{r.ProducerID, r.ProducerEpoch}, Content: Content{
		Topic: r.Topic, Partition: r.Partition, Key: string(r.Key), NoKey: r.Key == nil,
		Value: digest(r.Value), Timestamp: r.Timestamp.UnixMilli(),
	}}
	whole := sha256.New()
	part := func(b []byte) {
		fmt.Fprintf(whole, "%d %t:", len(b), b == nil)
		whole.Write(b)
	}
	part(r.Key)
	part(r.Value)
	part(strconv.AppendInt(nil, rec.Timestamp, 10))
	var lsnErr, seqErr error = strconv.ErrSyntax, strconv.ErrSyntax
	for _, h := range r.Headers {
		if h.Key != "walrelay-replay" {
			part([]byte(h.Key))
			part(h.Value)
		}
		switch h.Key {
		case "walrelay-replay":
			rec.Replay = string(h.Value)
		case "walrelay-lsn":
			rec.Commit, lsnErr = pglogrepl.ParseLSN(string(h.Value))
		case "walrelay-seq":
			rec.Seq, seqErr = strconv.ParseUint(string(h.Value), 10, 64)
		case "walrelay-source":
			rec.Source = string(h.Value)
		case "walrelay-recover":
			rec.Recover = string(h.Value)
		default:
			if h.Key == "event-id" {
				rec.ID = string(h.Value)
			}
			if !strings.HasPrefix(h.Key, "walrelay-") {
				rec.Headers = append(rec.Headers, Header{h.Key, digest(h.Value)})
			}
		}
	}
	rec.Positioned = lsnErr == nil && seqErr == nil
	copy(rec.Whole[:], whole.Sum(nil))
	slices.SortFunc(rec.Headers, compareHeaders)
	return rec
}
