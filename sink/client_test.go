package sink

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/endtxn"
	"github.com/segmentio/kafka-go/protocol/findcoordinator"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
)

// mustKnow makes the client learn the cluster.
func mustKnow(t *testing.T, c *Client, topics ...string) map[string]Topic {
	t.Helper()
	known, err := c.Metadata(t.Context(), topics...)
	if err != nil {
		t.Fatal(err)
	}
	return known
}

func TestSendReachesTheBrokerByItsNodeID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, nil)
		f.leaders["t"] = []int32{2, 3, -1}
		c := f.client(nil)
		topic := mustKnow(t, c, "t")["t"]
		if topic.Err != nil || len(topic.Partitions) != 3 || topic.Partitions[0].Leader != 2 || topic.Partitions[1].Leader != 3 ||
			topic.Partitions[2].Leader != -1 || topic.Partitions[2].Err != kafka.LeaderNotAvailable {
			t.Fatalf("%+v", topic)
		}
		res, err := c.Send(t.Context(), 3, produceTo("t", 1, recordSet(t, "x")))
		if err != nil {
			t.Fatal(err)
		}
		if p := res.(*produce.Response).Topics[0].Partitions[0]; p.Partition != 1 || p.BaseOffset != 7 {
			t.Errorf("%+v", p)
		}
		if f.count(3, protocol.Produce) != 1 || f.count(2, protocol.Produce) != 0 {
			t.Error("wrong broker")
		}
		if _, err := c.Send(t.Context(), 9, produceTo("t", 1, recordSet(t, "x"))); !errors.Is(err, errUnknownBroker) {
			t.Errorf("unknown node: %v", err)
		}
	})
}

// G8: a request that is never answered ends at its deadline, and the connection with it.
func TestG8SilentBrokerEndsAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			if req.ApiKey() == protocol.Produce && s.nth == 2 {
				return nil, nil
			}
			return nil, errDefault
		})
		f.leaders["t"] = []int32{1}
		c := f.client(func(cfg *ClientConfig) { cfg.requestTimeout = 15 * time.Second })
		mustKnow(t, c, "t")
		if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x")))
		if took := time.Since(start); !isTimeout(err) || took != 16*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		var broken *BrokerError
		if !errors.As(err, &broken) || broken.Node != 1 || broken.Op != "Produce" || !strings.Contains(err.Error(), "no answer in time") {
			t.Errorf("%v", err)
		}
		if c.brokers[1].failures != 1 {
			t.Error("a silent broker counts as well as before")
		}
		if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); err != nil {
			t.Errorf("over a new connection: %v", err)
		}
	})
}

// G8: a blocked produce request does not keep metadata from being read.
func TestG8BlockedProduceDoesNotBlockMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := newFakeCluster(t, 1, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			if req.ApiKey() == protocol.Produce {
				<-release
			}
			return nil, errDefault
		})
		f.leaders["t"], f.leaders["u"] = []int32{1}, []int32{1}
		c := f.client(nil)
		mustKnow(t, c, "t")
		sent := make(chan error)
		go func() {
			_, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x")))
			sent <- err
		}()
		synctest.Wait()
		start := time.Now()
		mustKnow(t, c, "u")
		if took := time.Since(start); took != 0 {
			t.Errorf("metadata waited %v", took)
		}
		close(release)
		if err := <-sent; err != nil {
			t.Error(err)
		}
	})
}

// Requests of one connection do not wait for each other's answers, and each caller gets its own.
func TestRequestsArePipelined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held []func()
		f := newFakeCluster(t, 1, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			r, ok := req.(*produce.Request)
			if !ok {
				return nil, errDefault
			}
			id, version := s.id, s.version
			held = append(held, func() { protocol.WriteResponse(s.conn, version, id, produced(r)) })
			if len(held) == 3 {
				for _, answer := range held {
					answer()
				}
			}
			return nil, nil
		})
		f.leaders["t"] = []int32{1, 1, 1}
		c := f.client(nil)
		mustKnow(t, c, "t")
		var wg sync.WaitGroup
		for p := range int32(3) {
			wg.Go(func() {
				res, err := c.Send(t.Context(), 1, produceTo("t", p, recordSet(t, "x")))
				if err != nil {
					t.Error(err)
				} else if got := res.(*produce.Response).Topics[0].Partitions[0].Partition; got != p {
					t.Errorf("partition %d got the answer of %d", p, got)
				}
			})
		}
		wg.Wait()
		if n := f.broker(1).dials; n > 2 {
			t.Errorf("%d connections", n)
		}
	})
}

// A caller that gives up takes the connection with it: nothing queues behind the silent broker.
func TestGivingUpClosesTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			if req.ApiKey() == protocol.Produce && s.nth == 1 {
				return nil, nil
			}
			return nil, errDefault
		})
		f.leaders["t"] = []int32{1}
		c := f.client(nil)
		mustKnow(t, c, "t")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		if _, err := c.Send(ctx, 1, produceTo("t", 0, recordSet(t, "x"))); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); err != nil || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// Two callers share one connect.
func TestOneConnectionPerBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, nil)
		f.leaders["t"] = []int32{1}
		c := f.client(nil)
		mustKnow(t, c, "t")
		dials := f.broker(1).dials
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := f.broker(1).dials - dials; n != 1 {
			t.Errorf("%d connections for 20 requests", n)
		}
	})
}

// G8: the connects to a broker that is down are spaced out, with jitter.
func TestG8ReconnectsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, nil)
		f.leaders["t"] = []int32{1}
		c := f.client(nil)
		mustKnow(t, c, "t")
		f.set(func() { f.broker(1).down = true; f.broker(1).dials = 0 })
		f.hangUp(1)
		synctest.Wait()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); err == nil {
				t.Fatal("the broker is down")
			}
		}
		if n := f.broker(1).dials; n < 50 || n > 150 {
			t.Errorf("%d connects in a minute", n)
		}
		f.set(func() { f.broker(1).down = false })
		start := time.Now()
		if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); err != nil || time.Since(start) > time.Second {
			t.Errorf("back after %v: %v", time.Since(start), err)
		}
		// A connection that worked and is lost is opened again at once.
		f.hangUp(1)
		synctest.Wait()
		start = time.Now()
		if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); err != nil || time.Since(start) != 0 {
			t.Errorf("back after %v: %v", time.Since(start), err)
		}
	})
}

// A broker that accepts connections and never answers on them is not connected to in a loop.
func TestG8BrokerThatHangsUpIsBackedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, nil)
		f.leaders["t"] = []int32{1}
		c := f.client(nil)
		mustKnow(t, c, "t")
		f.set(func() {
			f.broker(1).script = func(_ *fakeSession, req protocol.Message) (protocol.Message, error) {
				if req.ApiKey() == protocol.ApiVersions {
					return nil, errDefault
				}
				return nil, errHangUp
			}
			f.broker(1).dials = 0
		})
		var last error
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			_, last = c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x")))
		}
		if n := f.broker(1).dials; n > 150 {
			t.Errorf("%d connects in a minute", n)
		}
		if !strings.Contains(last.Error(), "--kafka-sasl") {
			t.Errorf("%v", last)
		}
	})
}

// The pause that a broker asks for is kept, and only towards that broker (KIP-219).
func TestThrottleTimeIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			if r, ok := req.(*produce.Request); ok && s.broker.node == 1 {
				res := produced(r)
				res.ThrottleTimeMs = 3000
				return res, nil
			}
			return nil, errDefault
		})
		f.leaders["t"] = []int32{1, 2}
		c := f.client(nil)
		mustKnow(t, c, "t")
		start := time.Now()
		send := func(node int32) {
			if _, err := c.Send(t.Context(), node, produceTo("t", node-1, recordSet(t, "x"))); err != nil {
				t.Error(err)
			}
		}
		send(1)
		send(2)
		if took := time.Since(start); took != 0 {
			t.Errorf("waited %v before it was throttled", took)
		}
		send(1)
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("the second request waited %v", took)
		}
	})
}

// Reset ends what is in flight and being connected; the client works on. Close is for good.
func TestResetAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := true
		f := newFakeCluster(t, 2, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			if silent && (req.ApiKey() == protocol.Produce || s.broker.node == 2) {
				return nil, nil
			}
			return nil, errDefault
		})
		f.leaders["t"] = []int32{1, 2}
		c := f.client(func(cfg *ClientConfig) { cfg.Brokers = []string{"b1:9092"} })
		mustKnow(t, c, "t")
		errs := make(chan error, 2)
		start := func() {
			for node := range int32(2) { // one waits for its answer, one connects
				go func() {
					_, err := c.Send(t.Context(), node+1, produceTo("t", node, recordSet(t, "x")))
					errs <- err
				}()
			}
			synctest.Wait()
		}
		start()
		c.Reset()
		for range 2 {
			if err := <-errs; !errors.Is(err, errReset) {
				t.Errorf("after Reset: %v", err)
			}
		}
		silent = false
		for node := range int32(2) {
			if _, err := c.Send(t.Context(), node+1, produceTo("t", node, recordSet(t, "x"))); err != nil {
				t.Errorf("after Reset: %v", err)
			}
		}
		silent = true
		f.hangUp(2)
		synctest.Wait()
		start()
		c.Close()
		for range 2 {
			if err := <-errs; !errors.Is(err, errClientClosed) {
				t.Errorf("after Close: %v", err)
			}
		}
		c.Close()
		c.Reset()
		if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); !errors.Is(err, errClientClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, err := c.Metadata(t.Context(), "t"); !errors.Is(err, errClientClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// Version negotiation: the highest that both speak; none = an error that says so and names both ranges.
func TestVersionNegotiation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got int16
		f := newFakeCluster(t, 1, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			if req.ApiKey() == protocol.Produce {
				got = s.version
			}
			return nil, errDefault
		})
		f.leaders["t"] = []int32{1}
		for _, tc := range []struct {
			lo, hi, want int16
			err          string
		}{
			{0, 5, 5, ""},
			{3, 12, 8, ""},
			{9, 12, 0, "no common version of Produce: the broker speaks v9 to v12, this build v0 to v8"},
			{0, -1, 0, "does not know Produce requests"},
		} {
			f.set(func() {
				f.broker(1).ranges = func(key protocol.ApiKey) (int16, int16) {
					if key == protocol.Produce {
						return tc.lo, tc.hi
					}
					return key.MinVersion(), key.MaxVersion()
				}
			})
			got = 0
			c := f.client(nil)
			mustKnow(t, c, "t")
			_, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x")))
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) || got != tc.want {
				t.Errorf("%v: v%d, %v", tc, got, err)
			}
			c.Close()
		}
	})
}

// Coordinators are remembered until one says that it is none, or is gone.
func TestCoordinatorCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		coordinator := int32(1)
		f := newFakeCluster(t, 2, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			switch req.(type) {
			case *findcoordinator.Request:
				return &findcoordinator.Response{NodeID: coordinator, Host: s.broker.addr[:1] + string('0'+byte(coordinator)), Port: 9092}, nil
			case *endtxn.Request:
				if s.broker.node != coordinator {
					return &endtxn.Response{ErrorCode: 16}, nil
				}
				return &endtxn.Response{}, nil
			}
			return nil, errDefault
		})
		c := f.client(nil)
		end := func() error {
			res, err := c.RoundTrip(t.Context(), nil, &endtxn.Request{TransactionalID: "x"})
			if err != nil {
				return err
			}
			return codeError(res.(*endtxn.Response).ErrorCode)
		}
		lookups := func() int {
			return f.count(1, protocol.FindCoordinator) + f.count(2, protocol.FindCoordinator)
		}
		for range 3 {
			if err := end(); err != nil {
				t.Fatal(err)
			}
		}
		if n := lookups(); n != 1 {
			t.Errorf("%d lookups", n)
		}
		coordinator = 2
		if err := end(); err != kafka.NotCoordinatorForGroup {
			t.Errorf("the code inside the answer is the caller's: %v", err)
		}
		if err := end(); err != nil || lookups() != 2 || f.count(2, protocol.EndTxn) != 1 {
			t.Errorf("not looked up again: %v", err)
		}
		f.set(func() { f.broker(2).down = true })
		f.hangUp(2)
		coordinator = 1
		if err := end(); err == nil {
			t.Error("the coordinator is down")
		}
		if err := end(); err != nil || lookups() != 3 {
			t.Errorf("not looked up after a disconnect: %v", err)
		}
		c.Reset()
		if err := end(); err != nil || lookups() != 4 {
			t.Errorf("not looked up after Reset: %v", err)
		}
	})
}

// The controller's requests go to the controller, also after it moved.
func TestControllerRouting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *fakeCluster
		f = newFakeCluster(t, 3, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			r, ok := req.(*createtopics.Request)
			if !ok {
				return nil, errDefault
			}
			code := int16(0)
			if s.broker.node != f.control {
				code = 41
			}
			return &createtopics.Response{Topics: []createtopics.ResponseTopic{{Name: r.Topics[0].Name, ErrorCode: code}}}, nil
		})
		admin := f.client(nil).Admin()
		create := func() error {
			res, err := admin.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: "t", NumPartitions: 1, ReplicationFactor: 1}}})
			if err != nil {
				return err
			}
			return res.Errors["t"]
		}
		if err := create(); err != nil {
			t.Error(err)
		}
		f.set(func() { f.control = 3 })
		if err := create(); !errors.Is(err, kafka.NotController) {
			t.Error(err)
		}
		if err := create(); err != nil || f.count(3, protocol.CreateTopics) != 1 {
			t.Error(err)
		}
	})
}

// An admin call that the client has to split and merge.
func TestListOffsetsGoesToEachLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f *fakeCluster
		f = newFakeCluster(t, 2, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			r, ok := req.(*listoffsets.Request)
			if !ok {
				return nil, errDefault
			}
			p := r.Topics[0].Partitions[0].Partition
			answer := listoffsets.ResponsePartition{Partition: p, Timestamp: -1, Offset: int64(100 + p)}
			if f.leaders["t"][p] != s.broker.node {
				answer = listoffsets.ResponsePartition{Partition: p, ErrorCode: 6}
			}
			return &listoffsets.Response{Topics: []listoffsets.ResponseTopic{{Topic: "t", Partitions: []listoffsets.ResponsePartition{answer}}}}, nil
		})
		f.leaders["t"] = []int32{1, 2}
		c := f.client(nil)
		admin := c.Admin()
		ask := func() (*kafka.ListOffsetsResponse, error) {
			return admin.ListOffsets(t.Context(), &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
				"t": {kafka.LastOffsetOf(0), kafka.LastOffsetOf(1)},
			}})
		}
		check := func() {
			t.Helper()
			res, err := ask()
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range res.Topics["t"] {
				if p.Error != nil || p.LastOffset != int64(100+p.Partition) {
					t.Errorf("%+v", p)
				}
			}
		}
		check()
		// Leaders change places: the codes in the answers make the client ask again.
		f.set(func() { f.leaders["t"] = []int32{2, 1} })
		if res, err := ask(); err != nil || res.Topics["t"][0].Error == nil && res.Topics["t"][1].Error == nil {
			t.Errorf("%+v, %v", res, err)
		}
		check()
		if _, err := admin.ListOffsets(t.Context(), &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
			"nope": {kafka.LastOffsetOf(0)},
		}}); !errors.Is(err, kafka.UnknownTopicOrPartition) {
			t.Errorf("%v", err)
		}
	})
}

func TestAdminMetadataOfAllTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			if r, ok := req.(*metadata.Request); ok && r.TopicNames == nil {
				return &metadata.Response{Brokers: []metadata.ResponseBroker{{NodeID: 1, Host: "b1", Port: 9092}}, Topics: []metadata.ResponseTopic{{Name: "all"}}}, nil
			}
			return nil, errDefault
		})
		res, err := f.client(nil).Admin().Metadata(t.Context(), &kafka.MetadataRequest{})
		if err != nil || len(res.Topics) != 1 || res.Topics[0].Name != "all" {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

func TestNewClientRefusesWhatCannotWork(t *testing.T) {
	for _, tc := range []struct {
		cfg  ClientConfig
		want string
	}{
		{ClientConfig{}, "--kafka-brokers"},
		{ClientConfig{Brokers: []string{"nohost"}}, `"nohost" is not host:port`},
		{ClientConfig{Brokers: []string{"h:1"}, TLS: &TLSConfig{CertFile: "c"}}, "--kafka-key-file"},
		{ClientConfig{Brokers: []string{"h:1"}, SASL: &SASLConfig{Mechanism: "gssapi"}}, `unknown --kafka-sasl "gssapi"`},
		{ClientConfig{Brokers: []string{"h:1"}, SASL: &SASLConfig{Mechanism: "plain"}}, "--kafka-password-file"},
		{ClientConfig{Brokers: []string{"h:1"}, SASL: &SASLConfig{Mechanism: "aws-msk-iam"}}, "this build has no AWS MSK IAM"},
		{ClientConfig{Brokers: []string{"h:1"}, SASL: &SASLConfig{Mechanism: "oauthbearer"}}, "token file or a token endpoint"},
		{ClientConfig{Brokers: []string{"h:1"}, SASL: &SASLConfig{Mechanism: "oauthbearer", OAuth: OAuthConfig{TokenURL: "http://idp/x"}}}, "must be https"},
	} {
		if _, err := NewClient(tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc.cfg, err)
		}
	}
}
