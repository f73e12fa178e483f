package sink

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what a [Producer] does.
type Metrics struct {
	published *prometheus.CounterVec // by topic
	bytes     prometheus.Counter
	retries   prometheus.Counter
	parked    prometheus.Counter
	missing   prometheus.Gauge
	weak      prometheus.Gauge
}

// NewMetrics makes the counters and registers them; nil registers nowhere.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		published: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "walrelay_events_published_total",
			Help: "Events acknowledged by all in-sync replicas.",
		}, []string{"topic"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walrelay_published_bytes_total",
			Help: "Bytes of acknowledged record batches, as sent.",
		}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walrelay_produce_retries_total",
			Help: "Record batches sent again.",
		}),
		parked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "walrelay_events_parked_total",
			Help: "Events that could never be published and went to a dead-letter topic.",
		}),
		missing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "walrelay_topics_missing",
			Help: "Topics that events wait for because they do not exist.",
		}),
		weak: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "walrelay_topics_weak",
			Help: "Topics in use that lose acknowledged events with one broker.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.published, m.bytes, m.retries, m.parked, m.missing, m.weak)
	}
	return m
}
