package sink

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"

	"github.com/walrelay/walrelay/decode"
)

// after runs f under the cluster's lock in d.
func (f *modelCluster) after(d time.Duration, do func()) {
	time.AfterFunc(d, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		do()
	})
}

// metric reads a metric as it is exported; label is the value of its only label, if it has one.
func metric(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Errorf("no metric %s{%s}", name, label)
	return 0
}

// healthyIn looks at Healthy in d.
func healthyIn(d time.Duration, p *Producer) <-chan string {
	c := make(chan string, 1)
	time.AfterFunc(d, func() {
		ok, reason := p.Healthy()
		if ok {
			reason = "healthy"
		}
		c <- reason
	})
	return c
}

// G8: a missing topic is waited for, with one line that says how to create it; what goes
// elsewhere goes on; readiness falls within five seconds and comes back.
func TestG8MissingTopicIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 2)
		reg := prometheus.NewRegistry()
		p, log := newTestProducer(t, f, Config{Metrics: NewMetrics(reg)})
		p.bootstrap = "kafka-0:9092"
		events := append(numbered("a", 20, 5), append(numbered("late", 20, 5), numbered("a", 20, 5)...)...)
		f.after(time.Hour, func() {
			if got := len(f.topics["a"].parts[0].records) + len(f.topics["a"].parts[1].records); got != 40 {
				t.Errorf("%d events of the other topic are there", got)
			}
			if got := metric(t, reg, "walrelay_topics_missing", ""); got != 1 {
				t.Errorf("walrelay_topics_missing %v", got)
			}
			f.createLocked("late", 3)
		})
		early, late := healthyIn(5*time.Second, p), healthyIn(59*time.Minute, p)
		begin := time.Now()
		if n, err := p.Write(t.Context(), events); n != 60 || err != nil {
			t.Fatal(n, err)
		}
		if waited := time.Since(begin); waited > time.Hour+2*time.Second {
			t.Errorf("delivered %v after the topic was there", waited-time.Hour)
		}
		same(t, f.contents(), f.expect(events))
		remedy := "kafka-topics.sh --bootstrap-server kafka-0:9092 --create --topic late "
		for _, reason := range []string{<-early, <-late} {
			if !strings.Contains(reason, remedy) {
				t.Errorf("not ready: %s", reason)
			}
		}
		if ok, reason := p.Healthy(); !ok {
			t.Error(reason)
		}
		if log.count(remedy) != 1 || log.count("delivered again") != 1 {
			t.Error(log)
		}
		if got := metric(t, reg, "walrelay_topics_missing", ""); got != 0 {
			t.Errorf("walrelay_topics_missing %v", got)
		}
		if got := metric(t, reg, "walrelay_events_published_total", "late"); got != 20 {
			t.Errorf("walrelay_events_published_total %v", got)
		}
	})
}

// G8: a partition without a leader is waited for; log and readiness name it.
func TestG8AbsentLeaderIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		ft := f.create("a", 2)
		p, log := newTestProducer(t, f, Config{})
		events := numbered("a", 20, 5)
		if _, err := p.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		ft.parts[1].leader = -1
		f.mu.Unlock()
		f.after(time.Minute, func() { ft.parts[1].leader = 2 })
		not, begin := healthyIn(5*time.Second, p), time.Now()
		if _, err := p.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > time.Minute+2*time.Second {
			t.Errorf("took %v", took)
		}
		if reason := <-not; !strings.Contains(reason, "LEADER_NOT_AVAILABLE") {
			t.Error(reason)
		}
		if log.count("LEADER_NOT_AVAILABLE") != 1 || log.count(`"where":"partition 1"`) != 1 || log.count("delivered again") != 1 {
			t.Error(log)
		}
		same(t, f.contents(), f.expect(append(events, events...)))
	})
}

// G8: missing topics are created where that is wanted, also for dead letters, such that
// what is acknowledged outlives one broker.
func TestG8MissingTopicIsCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		p, _ := newTestProducer(t, f, Config{CreateTopics: &CreateTopics{Partitions: 3, Replication: 3}, Poison: PoisonDeadLetter})
		events := append(numbered("a", 20, 5), numbered("b", 20, 5)...)
		events[3].Poison = &decode.PoisonError{Reason: "broken"}
		if n, err := p.Write(t.Context(), events); n != 40 || err != nil {
			t.Fatal(n, err)
		}
		for _, name := range []string{"a", "b", "a.DLT"} {
			if ft := f.topics[name]; ft == nil || len(ft.parts) != 3 || ft.config["min.insync.replicas"] != "2" {
				t.Errorf("topic %s: %+v", name, ft)
			}
		}
	})
}

// G8: a topic that may not be created is waited for, and the line says what to grant.
func TestG8TopicCreationRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.createCode = kafka.TopicAuthorizationFailed
		p, log := newTestProducer(t, f, Config{CreateTopics: &CreateTopics{Partitions: 3, Replication: 3}})
		f.after(time.Minute, func() { f.createCode = 0 })
		if n, err := p.Write(t.Context(), numbered("a", 20, 5)); n != 20 || err != nil {
			t.Fatal(n, err)
		}
		if log.count("--operation Create --topic a") != 1 {
			t.Error(log)
		}
	})
}

// G8: rights that are taken away are waited for; one line says what to grant.
func TestG8RevokedRightsAreWaitedFor(t *testing.T) {
	for _, where := range []string{"produce", "metadata", "producer id"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newModelCluster(t)
				ft := f.create("a", 2)
				want := "--operation Write --operation Describe --topic a"
				switch where {
				case "produce":
					revoked := true
					f.fault = func(arrival) fault {
						if revoked {
							return fault{code: kafka.TopicAuthorizationFailed}
						}
						return fault{}
					}
					f.after(time.Minute, func() { revoked = false })
				case "metadata":
					ft.err = kafka.TopicAuthorizationFailed
					f.after(time.Minute, func() { ft.err = nil })
				case "producer id":
					want = "--operation IdempotentWrite"
					for range 60 {
						f.idCodes = append(f.idCodes, kafka.ClusterAuthorizationFailed)
					}
				}
				p, log := newTestProducer(t, f, Config{})
				events := numbered("a", 20, 5)
				not := healthyIn(5*time.Second, p)
				if n, err := p.Write(t.Context(), events); n != 20 || err != nil {
					t.Fatal(n, err)
				}
				if reason := <-not; reason == "healthy" {
					t.Error("ready while nothing can be delivered")
				}
				if log.count(want) != 1 || log.count("delivered again") != 1 {
					t.Error(log)
				}
				same(t, f.contents(), f.expect(events))
			})
		})
	}
}

// G1: a topic that is deleted and created again with fewer partitions while events wait for
// it gets them all, in order; it is said that what it held before is gone.
func TestG1TopicIsCreatedAgain(t *testing.T) {
	for _, partitions := range []int{1, 4, 9} {
		synctest.Test(t, func(t *testing.T) {
			f := newModelCluster(t)
			f.create("a", 4)
			p, log := newTestProducer(t, f, Config{})
			if _, err := p.Write(t.Context(), numbered("a", 100, 20)); err != nil {
				t.Fatal(err)
			}
			f.mu.Lock()
			delete(f.topics, "a")
			f.mu.Unlock()
			f.after(time.Minute, func() { f.createLocked("a", partitions) })
			events := numbered("a", 100, 20)
			if n, err := p.Write(t.Context(), events); n != 100 || err != nil {
				t.Fatal(n, err)
			}
			if partitions <= 4 {
				same(t, f.contents(), f.expect(events))
			}
			if log.count("created again") != 1 || log.count("no longer in Kafka") == 0 {
				t.Error(log)
			}
		})
	}
}

// G2: partitions that are added are used from the next Check on, and the counts are told.
func TestG2AddedPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		ft := f.create("a", 2)
		p, log := newTestProducer(t, f, Config{})
		before := numbered("a", 50, 20)
		if _, err := p.Write(t.Context(), before); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		f.grow(ft, 5)
		f.mu.Unlock()
		if err := p.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		events := numbered("a", 50, 20)
		if _, err := p.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		if got := f.contents()["a-4"]; len(got) == 0 || len(got) != len(f.expect(events)["a-4"]) {
			t.Errorf("%d records on the last partition", len(got))
		}
		if log.count(`"before":2,"partitions":5`) != 1 {
			t.Error(log)
		}
	})
}

// G1: acknowledged events that a broker has lost are told of, with the way out, and the relay goes on.
func TestG1LostAcknowledgedEventsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		ft := f.create("a", 1)
		p, log := newTestProducer(t, f, Config{BatchBytes: 1 << 10})
		if _, err := p.Write(t.Context(), numbered("a", 100, 3)); err != nil {
			t.Fatal(err)
		}
		part := ft.parts[0] // an unclean election: the new leader has less
		part.records = part.records[:10]
		for _, state := range part.producers {
			state.last, state.batches = 9, nil
		}
		if n, err := p.Write(t.Context(), numbered("a", 100, 3)); n != 100 || err != nil {
			t.Fatal(n, err)
		}
		if len(part.records) != 110 {
			t.Errorf("%d records", len(part.records))
		}
		if log.count("gets a new producer id") != 1 || log.count("insert the outbox rows") != 1 {
			t.Error(log)
		}
	})
}

// G8: an outage of the whole cluster is told of once at its begin and once at its end, and
// is over within two seconds.
func TestG8OutageIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 6)
		p, log := newTestProducer(t, f, Config{})
		events := numbered("a", 100, 30)
		if _, err := p.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		f.down = true
		var back time.Time
		f.after(10*time.Minute, func() { f.down, back = false, time.Now() })
		if _, err := p.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		if late := time.Since(back); late > 2*time.Second {
			t.Errorf("%v after the cluster was back", late)
		}
		if lines := log.count("can't be delivered"); lines == 0 || lines > 4 || log.count("delivered again") != 1 {
			t.Errorf("%d lines\n%s", lines, log)
		}
	})
}

// G8: an idle producer knows by Check that the cluster is away.
func TestG8CheckNoticesWhileIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 6)
		p, _ := newTestProducer(t, f, Config{})
		for range 2 {
			if err := p.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.down = true
			if err := p.Check(t.Context()); err == nil {
				t.Fatal("no error")
			}
			if ok, _ := p.Healthy(); ok {
				t.Error("ready")
			}
			f.down = false
			if err := p.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			if ok, reason := p.Healthy(); !ok {
				t.Error(reason)
			}
			if _, err := p.Write(t.Context(), numbered("a", 5, 5)); err != nil { // then also with topics in use
				t.Fatal(err)
			}
		}
	})
}

// G1: the durability trap: topics that lose acknowledged events with one broker.
func TestG1WeakTopics(t *testing.T) {
	for _, c := range []struct {
		name     string
		replicas []int32
		minISR   string
		hosts    []string
		allow    bool
		weak     string // command that mends it; "" = accepted
	}{
		{"sound", []int32{0, 1, 2}, "2", nil, false, ""},
		{"min ISR 1", []int32{0, 1, 2}, "1", nil, false, "kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics --entity-name a --add-config min.insync.replicas=2"},
		{"RF 1", []int32{0}, "1", nil, false, "kafka-reassign-partitions.sh"},
		{"allowed", []int32{0}, "1", nil, true, ""},
		{"loopback", []int32{0}, "1", []string{"127.0.0.1", "localhost", "::1"}, false, ""},
		{"single broker", []int32{0}, "1", []string{"kafka"}, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newModelCluster(t)
				ft := f.create("a", 2, "min.insync.replicas", c.minISR)
				for _, p := range ft.parts {
					p.replicas = c.replicas
				}
				if c.hosts != nil {
					f.hosts = c.hosts
				}
				p, log := newTestProducer(t, f, Config{AllowWeakTopics: c.allow})
				err := p.Check(t.Context(), "a")
				ok, reason := p.Healthy()
				var weak *WeakTopicError
				switch {
				case c.weak == "" && (err != nil || !ok):
					t.Error(err, reason)
				case c.weak != "" && (!errors.As(err, &weak) || !strings.Contains(err.Error(), c.weak) || ok || !strings.Contains(reason, c.weak)):
					t.Errorf("%v; healthy %v: %s", err, ok, reason)
				}
				// While running: no end, only a word.
				if n, err := p.Write(t.Context(), numbered("a", 10, 5)); n != 10 || err != nil {
					t.Fatal(n, err)
				}
				if want := c.name != "sound"; (log.count("with one broker") == 1) != want {
					t.Error(log)
				}
			})
		})
	}
}

// G8: a cluster that falls silent between two questions is not taken for one whose topics are weak.
func TestG8WeakTopicsOfASilentCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.hosts = []string{"kafka"}
		for _, p := range f.create("a", 2, "min.insync.replicas", "1").parts {
			p.replicas = []int32{0}
		}
		f.unlisted = 1
		p, _ := newTestProducer(t, f, Config{})
		if err := p.Check(t.Context(), "a"); err == nil || errors.As(err, new(*WeakTopicError)) {
			t.Fatal(err)
		}
		if err := p.Check(t.Context()); err != nil { // what is known is not old yet, and not asked for again
			t.Fatal(err)
		}
		if ok, why := p.Healthy(); !ok {
			t.Error(why)
		}
	})
}

// G1: at the start, the topics that events are expected to go to are looked at; those that they merely may go to are not.
func TestG1WeakTopicsAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("orders", 2, "min.insync.replicas", "1")
		f.create("payments", 2)
		f.create("elsewhere", 2, "min.insync.replicas", "1")
		p, _ := newTestProducer(t, f, Config{
			Allowed: func(string) bool { return true }, Expected: func(topic string) bool { return topic != "elsewhere" },
		})
		err := p.Check(t.Context())
		var weak *WeakTopicError
		if !errors.As(err, &weak) || len(weak.Topics) != 1 || weak.Topics[0] != "orders" || len(weak.Remedy) != 1 {
			t.Errorf("%v", err)
		}
		if err := p.Check(t.Context()); err != nil { // later only what is in use
			t.Error(err)
		}
	})
}

// G1: a topic that is weakened while we run is noticed, told of once, and forgiven when it is mended.
func TestG1TopicIsWeakened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		ft := f.create("a", 2)
		p, log := newTestProducer(t, f, Config{})
		if n, err := p.Write(t.Context(), numbered("a", 10, 5)); n != 10 || err != nil {
			t.Fatal(n, err)
		}
		ticker := time.NewTicker(2 * time.Second)
		defer ticker.Stop()
		for i := range 60 {
			<-ticker.C
			f.mu.Lock()
			switch i {
			case 10:
				ft.config["min.insync.replicas"] = "1"
			case 40:
				ft.config["min.insync.replicas"] = "2"
			}
			f.mu.Unlock()
			err := p.Check(t.Context())
			ok, _ := p.Healthy()
			switch {
			case i < 10 || i > 50:
				if err != nil || !ok {
					t.Errorf("%d: %v", i, err)
				}
			case i > 20 && i < 40:
				if err == nil || ok {
					t.Errorf("%d: nothing noticed", i)
				}
			}
		}
		if log.count("min.insync.replicas=2") != 1 || log.count("durable again") != 1 {
			t.Error(log)
		}
	})
}

// G8: Reset forgets identity and trouble; what comes then is delivered under a new id.
func TestG8Reset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 2)
		p, _ := newTestProducer(t, f, Config{})
		events := numbered("a", 10, 5)
		if _, err := p.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		f.down = true
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := p.Write(ctx, events); err == nil {
			t.Fatal("delivered to nobody")
		}
		p.Reset()
		if ok, reason := p.Healthy(); !ok {
			t.Error(reason)
		}
		f.down = false
		if _, err := p.Write(t.Context(), events); err != nil || f.ids != 2 {
			t.Fatal(err, f.ids)
		}
	})
}
