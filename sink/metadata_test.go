package sink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

// asked is how often any broker was asked for metadata.
func (f *fakeCluster) askedMetadata() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.brokers {
		n += b.asked[protocol.Metadata]
	}
	return n
}

// G8: discovered brokers answer when no seed does.
func TestG8MetadataFromDiscoveredBrokers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, nil)
		f.leaders["t"] = []int32{1}
		c := f.client(func(cfg *ClientConfig) { cfg.Brokers = []string{"b1:9092"} })
		mustKnow(t, c, "t")
		f.set(func() { f.broker(1).down = true; f.leaders["t"] = []int32{2}; f.listed = []int32{2, 3} })
		f.hangUp(1)
		c.Refresh("t")
		if l := mustKnow(t, c, "t")["t"].Partitions[0].Leader; l != 2 {
			t.Errorf("leader %d", l)
		}
		if f.broker(2).dials+f.broker(3).dials == 0 {
			t.Error("nobody else was asked")
		}
	})
}

// G8: a seed that refuses or is silent costs a bounded time, and the next one is asked.
func TestG8DeadSeedsAreSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 4, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			if s.broker.node == 2 {
				return nil, nil // half-open: accepts and is silent
			}
			return nil, errDefault
		})
		f.broker(1).down, f.broker(3).down = true, true
		f.leaders["t"], f.leaders["u"] = []int32{4}, []int32{4}
		c := f.client(nil)
		start := time.Now()
		mustKnow(t, c, "t")
		if took := time.Since(start); took > quickAnswer {
			t.Errorf("took %v", took)
		}
		start = time.Now()
		mustKnow(t, c, "u")
		if took := time.Since(start); took != 0 {
			t.Errorf("asked a dead one again for %v", took)
		}
		late := 0
		for range 20 { // also without a connection to prefer; as a broker, the silent one is tried once more
			c.Reset()
			start = time.Now()
			if mustKnow(t, c, "u"); time.Since(start) > askAgainMax {
				late++
			}
		}
		if late > 1 {
			t.Errorf("a dead one was asked again %d times", late)
		}
	})
}

// The connection that is there is used again; a broker known to be down comes after a seed that is not.
func TestMetadataPrefersWhatWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, nil)
		f.leaders["t"], f.listed = []int32{1}, []int32{1, 2}
		c := f.client(func(cfg *ClientConfig) { cfg.Brokers = []string{"b3:9092"} })
		ask := func() {
			c.Refresh("t")
			mustKnow(t, c, "t")
		}
		for range 10 {
			ask()
		}
		if n := f.broker(1).dials + f.broker(2).dials + f.broker(3).dials; n != 1 {
			t.Errorf("%d connections", n)
		}
		f.set(func() { f.broker(1).down, f.broker(2).down = true, true })
		for range 10 {
			c.Reset()
			ask()
		}
		if n := f.broker(1).dials + f.broker(2).dials; n != 2 {
			t.Errorf("%d attempts at the two that are down", n)
		}
	})
}

// Brokers that need longer than the quick limit are not called dead for ever.
func TestG8SlowBrokersGetMoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			if req.ApiKey() == protocol.Metadata {
				pass(5 * time.Second) // the broker is slow
			}
			return nil, errDefault
		})
		f.leaders["t"] = []int32{1}
		c := f.client(nil)
		for range 5 {
			if _, err := c.Metadata(t.Context(), "t"); err == nil {
				return
			}
		}
		t.Error("never answered")
	})
}

// A hundred callers that miss the same topics make one request; memory answers the next.
func TestMetadataSingleFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, nil)
		f.leaders["t"], f.leaders["u"] = []int32{1}, []int32{1}
		c := f.client(nil)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if known := mustKnow(t, c, "t", "u"); len(known) != 2 {
					t.Errorf("%v", known)
				}
			})
		}
		wg.Wait()
		mustKnow(t, c, "u")
		if n := f.askedMetadata(); n != 1 {
			t.Errorf("%d requests", n)
		}
	})
}

// Refresh makes the next call ask, at once the first time, then by a back-off.
func TestRefreshIsBackedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, nil)
		f.leaders["t"] = []int32{1}
		c := f.client(nil)
		mustKnow(t, c, "t")
		pass(10 * time.Second)
		n, start := f.askedMetadata(), time.Now()
		c.Refresh("t")
		mustKnow(t, c, "t")
		if f.askedMetadata() != n+1 || time.Since(start) != 0 {
			t.Errorf("%d requests after %v", f.askedMetadata()-n, time.Since(start))
		}
		for n, start = f.askedMetadata(), time.Now(); time.Since(start) < 10*time.Second; {
			c.Refresh()
			mustKnow(t, c, "t")
		}
		if n = f.askedMetadata() - n; n < 18 || n > 32 {
			t.Errorf("%d requests in 10 s of refreshing", n)
		}
	})
}

// An answer to a request that began before Refresh does not count as fresh.
func TestRefreshOutdatesTheRequestUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := newFakeCluster(t, 1, nil)
		f.leaders["t"] = []int32{1}
		c := f.client(nil)
		mustKnow(t, c, "t")
		c.Refresh("t")
		f.set(func() {
			f.broker(1).script = func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
				if r, ok := req.(*metadata.Request); ok && len(r.TopicNames) > 0 {
					res := f.metadata(r)
					<-release
					return res, nil
				}
				return nil, errDefault
			}
		})
		done := make(chan struct{})
		go func() { mustKnow(t, c, "t"); close(done) }()
		synctest.Wait()
		// While that answer is on its way: somebody was told NOT_LEADER.
		f.set(func() { f.leaders["t"] = []int32{5} })
		c.Refresh("t")
		close(release)
		<-done
		if l := mustKnow(t, c, "t")["t"].Partitions[0].Leader; l != 5 {
			t.Errorf("leader %d", l)
		}
	})
}

// A topic that does not exist, or has no leader, is asked for again each time (by the back-off), until it is well.
func TestIncompleteTopicsAreNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, nil)
		c := f.client(nil)
		if topic := mustKnow(t, c, "t")["t"]; topic.Err != kafka.UnknownTopicOrPartition {
			t.Errorf("%+v", topic)
		}
		f.set(func() { f.leaders["t"] = []int32{-1, 1} })
		if topic := mustKnow(t, c, "t")["t"]; topic.Err != nil || topic.complete() {
			t.Errorf("%+v", topic)
		}
		f.set(func() { f.leaders["t"] = []int32{1, 1} })
		if topic := mustKnow(t, c, "t")["t"]; !topic.complete() {
			t.Errorf("%+v", topic)
		}
		n := f.askedMetadata()
		mustKnow(t, c, "t")
		if f.askedMetadata() != n {
			t.Error("a complete topic was asked for again")
		}
	})
}

// Old knowledge is renewed when it is used, and stands if nobody answers.
func TestMetadataMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, nil)
		f.leaders["t"] = []int32{1}
		c := f.client(func(cfg *ClientConfig) { cfg.metadataMaxAge = time.Minute })
		mustKnow(t, c, "t")
		f.set(func() { f.leaders["t"] = []int32{1, 1} })
		pass(59 * time.Second)
		if n := len(mustKnow(t, c, "t")["t"].Partitions); n != 1 {
			t.Errorf("%d partitions", n)
		}
		pass(time.Second)
		if n := len(mustKnow(t, c, "t")["t"].Partitions); n != 2 {
			t.Errorf("%d partitions after the partition was added", n)
		}
		f.set(func() { f.broker(1).down = true })
		f.hangUp(1)
		pass(time.Minute)
		start := time.Now()
		for range 10 {
			if n := len(mustKnow(t, c, "t")["t"].Partitions); n != 2 {
				t.Errorf("%d partitions", n)
			}
		}
		if took := time.Since(start); took > quickAnswer {
			t.Errorf("old knowledge took %v", took)
		}
		// What is known to be wrong is another matter.
		c.Refresh("t")
		if _, err := c.Metadata(t.Context(), "t"); err == nil {
			t.Error("no broker answers, and the topic was marked stale")
		}
	})
}

// G8: a request to a broker that left the cluster ends when that is known, not at its deadline.
func TestG8RequestToADepartedBrokerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			if s.broker.node == 1 && req.ApiKey() == protocol.Produce {
				return nil, nil
			}
			return nil, errDefault
		})
		f.leaders["t"] = []int32{1}
		c := f.client(nil)
		mustKnow(t, c, "t")
		sent := make(chan error)
		go func() {
			_, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x")))
			sent <- err
		}()
		synctest.Wait()
		start := time.Now()
		f.set(func() { f.listed = []int32{2}; f.leaders["t"] = []int32{2} })
		c.Refresh("t")
		mustKnow(t, c, "t")
		if err := <-sent; !errors.Is(err, errMoved) || time.Since(start) > time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); !errors.Is(err, errUnknownBroker) {
			t.Errorf("%v", err)
		}
	})
}

// A broker that comes back under another address is found there.
func TestG8BrokerMovesToAnotherAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, nil)
		f.leaders["t"] = []int32{1}
		c := f.client(nil)
		mustKnow(t, c, "t")
		if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); err != nil {
			t.Fatal(err)
		}
		f.set(func() {
			moved := f.broker(1)
			delete(f.brokers, moved.addr)
			moved.addr = "c1:9092"
			f.brokers[moved.addr] = moved
		})
		c.Refresh()
		mustKnow(t, c, "t")
		if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); err != nil {
			t.Errorf("%v", err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.brokers["c1:9092"].dials == 0 {
			t.Error("not over the new address")
		}
	})
}

// Nobody answers: the error says why the most telling broker did not, within a bounded time, and ctx ends the wait.
func TestMetadataWithoutAnyBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, nil)
		f.broker(1).down, f.broker(2).down = true, true
		c := f.client(nil)
		start := time.Now()
		if _, err := c.Metadata(t.Context(), "t"); err == nil || time.Since(start) > time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		f.set(func() {
			for _, b := range f.brokers {
				b.down, b.script = false, func(*fakeSession, protocol.Message) (protocol.Message, error) { return nil, nil }
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if _, err := c.Metadata(ctx, "t"); err == nil || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// What a broken broker may say about partitions does no harm.
func TestTopicOfOddAnswers(t *testing.T) {
	odd := topicOf(&metadata.ResponseTopic{Name: "t", Partitions: []metadata.ResponsePartition{
		{PartitionIndex: 1, LeaderID: 7}, {PartitionIndex: -1, LeaderID: 8}, {PartitionIndex: 1 << 30, LeaderID: 9},
	}})
	if got := fmt.Sprint(len(odd.Partitions), odd.Partitions[0].Leader, odd.Partitions[1].Leader); got != "2 -1 7" || odd.complete() {
		t.Error(got)
	}
}
