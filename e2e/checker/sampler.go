package checker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Sample is the slot's confirmed LSN, and what could be read from Kafka a moment later.
type Sample struct {
	Taken     time.Time
	Confirmed pglogrepl.LSN
	Ends      map[Place]int64
}

// Sampler takes samples until Stop. While one of the servers is away it takes none.
type Sampler struct {
	cancel context.CancelFunc
	done   chan struct{}

	// owned by the goroutine until done is closed
	samples []Sample
	conn    *pgx.Conn
}

// StartSampler begins to watch slot through url, and topics on brokers.
func StartSampler(url, slot, brokers string, topics []string) (*Sampler, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("checker: sampler: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Sampler{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer client.Close()
		s.run(ctx, url, slot, kadm.NewClient(client), topics)
	}()
	return s, nil
}

// Stop ends the sampler and returns what it saw.
func (s *Sampler) Stop() []Sample {
	s.cancel()
	<-s.done
	return s.samples
}

func (s *Sampler) run(ctx context.Context, url, slot string, admin *kadm.Client, topics []string) {
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := s.sample(ctx, url, slot, admin, topics); err != nil && s.conn != nil && s.conn.IsClosed() {
			s.conn = nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	if s.conn != nil {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.conn.Close(closing)
	}
}

func (s *Sampler) sample(ctx context.Context, url, slot string, admin *kadm.Client, topics []string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if s.conn == nil {
		if s.conn, err = pgx.Connect(ctx, url); err != nil {
			return err
		}
	}
	// The confirmed LSN first: what can be read later only grows.
	var confirmed *string
	err = s.conn.QueryRow(ctx, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", slot).Scan(&confirmed)
	if err != nil || confirmed == nil {
		return err
	}
	lsn, err := pglogrepl.ParseLSN(*confirmed)
	if err != nil {
		return err
	}
	ends, err := admin.ListEndOffsets(ctx, topics...)
	if err != nil {
		return err
	}
	if err := ends.Error(); err != nil {
		return err
	}
	sample := Sample{Taken: time.Now(), Confirmed: lsn, Ends: map[Place]int64{}}
	ends.Each(func(o kadm.ListedOffset) { sample.Ends[Place{o.Topic, o.Partition}] = o.Offset })
	s.samples = append(s.samples, sample)
	return nil
}

// checkSamples: every event that ends at or before a confirmed LSN was readable then.
func (c *comparison) checkSamples(samples []Sample) {
	samples = slices.Clone(samples)
	slices.SortStableFunc(samples, func(a, b Sample) int { return cmp.Compare(a.Confirmed, b.Confirmed) })
	type need struct{ offset, event int }
	needs := map[Place]need{} // the highest offset among the events so far
	next, missing := 0, -1
	for _, s := range samples {
		for ; next < len(c.truth) && c.truth[next].End <= s.Confirmed; next++ {
			r := c.first[next]
			if r == nil {
				missing = next
				continue
			}
			p := Place{r.Topic, r.Partition}
			if n, ok := needs[p]; !ok || int(r.Offset) > n.offset {
				needs[p] = need{int(r.Offset), next}
			}
		}
		if missing >= 0 {
			c.ConfirmedAhead.add("confirmed %s, but event %s, commit %s, never came", s.Confirmed, c.truth[missing].ID, c.truth[missing].Commit)
			continue
		}
		for p, n := range needs {
			if int64(n.offset) >= s.Ends[p] {
				e := c.truth[n.event]
				c.ConfirmedAhead.add("confirmed %s at %s, but event %s, commit %s, came to %s offset %d when only %d were there",
					s.Confirmed, s.Taken.Format("15:04:05.000"), e.ID, e.Commit, p, n.offset, s.Ends[p])
				break
			}
		}
	}
}
