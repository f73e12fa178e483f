package sink

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
)

// G8: what Healthy says is the newest cause: the step that is waited for now, and not the one that failed first.
func TestG8NewestCauseIsNamed(t *testing.T) {
	untrusted := &AuthError{Broker: "broker 1 at kafka-1:9092", Reason: "its certificate is signed by an authority that is not trusted", Remedy: "give the CA"}
	known := func(t *testing.T, f *modelCluster, p *Producer) { // a partition's leader is known, and its producer id
		f.create("a", 1)
		if _, err := p.Write(t.Context(), numbered("a", 1, 1)); err != nil {
			t.Fatal(err)
		}
	}
	// Each breaks the cluster in a first way, and ten seconds later in a second one.
	for name, c := range map[string]struct {
		set   func(t *testing.T, f *modelCluster, p *Producer)
		first func(f *modelCluster)
		then  func(f *modelCluster)
		want  string
	}{
		"a request is cut, then nobody lets us in": {
			set: known,
			first: func(f *modelCluster) {
				f.fault = func(arrival) fault { f.refusal = untrusted; return fault{link: errReset} }
			},
			want: "not trusted",
		},
		"a topic is missing, then nobody lets us in": {
			set:  func(*testing.T, *modelCluster, *Producer) {},
			then: func(f *modelCluster) { f.refusal = untrusted },
			want: "not trusted",
		},
		"nobody lets us in, then the topic is missing": {
			set:   func(*testing.T, *modelCluster, *Producer) {},
			first: func(f *modelCluster) { f.refusal = untrusted },
			then:  func(f *modelCluster) { f.refusal = nil },
			want:  "UNKNOWN_TOPIC_OR_PARTITION",
		},
		"a partition is refused, then its leader is silent": {
			set: known,
			first: func(f *modelCluster) {
				f.fault = func(arrival) fault { return fault{code: kafka.TopicAuthorizationFailed} }
			},
			then: func(f *modelCluster) { f.fault = func(arrival) fault { return fault{slow: 40 * time.Second} } },
			want: "Produce: no answer in time",
		},
		"a leader is silent from the start": {
			set:   known,
			first: func(f *modelCluster) { f.fault = func(arrival) fault { return fault{silent: true} } },
			want:  "broker 0",
		},
		"a leader is gone, then nobody lets us in": {
			set: known,
			first: func(f *modelCluster) {
				f.topics["a"].parts[0].leader = -1
				f.fault = func(arrival) fault { return fault{code: kafka.NotLeaderForPartition} }
			},
			then: func(f *modelCluster) { f.refusal = untrusted },
			want: "not trusted",
		},
		"no producer id is given out": {
			set: func(_ *testing.T, f *modelCluster, _ *Producer) { f.create("a", 1) },
			first: func(f *modelCluster) {
				for range 10_000 {
					f.idCodes = append(f.idCodes, kafka.ClusterAuthorizationFailed)
				}
			},
			want: "CLUSTER_AUTHORIZATION_FAILED",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newModelCluster(t)
				p, log := newTestProducer(t, f, Config{})
				c.set(t, f, p)
				f.mu.Lock()
				if c.first != nil {
					c.first(f)
				}
				f.mu.Unlock()
				if c.then != nil {
					f.after(10*time.Second, func() { c.then(f) })
				}
				said := healthyIn(25*time.Second, p)
				f.after(30*time.Second, func() { // all is well again
					f.refusal, f.fault, f.idCodes = nil, nil, nil
					if f.topics["a"] == nil {
						f.createLocked("a", 1)
					}
					f.topics["a"].parts[0].leader = 0
				})
				if _, err := p.Write(t.Context(), numbered("a", 5, 1)); err != nil {
					t.Fatal(err)
				}
				if reason := <-said; !strings.Contains(reason, "events wait for Kafka") || !strings.Contains(reason, c.want) {
					t.Errorf("not the newest cause, %q: %s\n%s", c.want, reason, log)
				}
				if ok, reason := p.Healthy(); !ok {
					t.Errorf("delivered, and not healthy: %s", reason)
				}
			})
		})
	}
}

// G8: what a delivery gives up itself when it ends is not told of as an outage.
func TestG8EndedDeliveryTellsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newModelCluster(t)
		f.create("a", 1)
		p, log := newTestProducer(t, f, Config{})
		if _, err := p.Write(t.Context(), numbered("a", 1, 1)); err != nil {
			t.Fatal(err)
		}
		looking := false
		f.fault = func(arrival) fault { return fault{slow: 1500 * time.Millisecond, appended: true} }
		f.after(500*time.Millisecond, func() { f.delay = func() time.Duration { looking = true; return time.Minute } })
		if _, err := p.Write(t.Context(), numbered("a", 5, 1)); err != nil {
			t.Fatal(err)
		}
		if said := log.String(); said != "" || !looking {
			t.Errorf("a look was under way: %v; told of an outage where there was none: %s", looking, said)
		}
	})
}
