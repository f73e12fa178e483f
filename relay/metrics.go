package relay

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the relay's own: positions, lags and the time from commit to
// acknowledgement. The sink counts what it published.
type metrics struct {
	walEnd      atomic.Uint64 // as last asked
	headroom    atomic.Int64  // as last asked
	dropped     atomic.Uint64 // headers of rows that are not theirs to give
	commitToAck prometheus.Histogram
}

// register makes the relay's positions and state visible.
func (r *Relay) register(reg prometheus.Registerer) {
	r.metrics.headroom.Store(-1)
	r.metrics.commitToAck = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "walrelay_commit_to_ack_seconds",
		Help:    "From the commit, by the server's clock, to the acknowledgement by the brokers, per transaction.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30, 120, 600, 3600},
	})
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
	}
	truth := func(ok bool) float64 {
		if ok {
			return 1
		}
		return 0
	}
	reg.MustRegister(
		r.metrics.commitToAck,
		gauge("walrelay_acked_lsn", "Below it every outbox row is acknowledged by the brokers, in bytes of WAL.", nil, func() float64 {
			delivered, _ := r.track.positions()
			return float64(delivered.Safe)
		}),
		gauge("walrelay_confirmed_lsn", "What Postgres is told that it need not keep, in bytes of WAL.", nil, func() float64 {
			_, saved := r.track.positions()
			return float64(saved.Safe)
		}),
		gauge("walrelay_wal_end_lsn", "The server's WAL end when it was last asked, in bytes of WAL.", nil, func() float64 {
			return float64(r.metrics.walEnd.Load())
		}),
		gauge("walrelay_lag_bytes", "WAL between the confirmed position and the server's WAL end.", nil, func() float64 {
			_, saved := r.track.positions()
			return max(float64(r.metrics.walEnd.Load())-float64(saved.Safe), 0)
		}),
		gauge("walrelay_slot_wal_headroom_bytes", "WAL that may still be written before the server gives the slot up; -1: without limit, or not known yet.", nil, func() float64 {
			return float64(r.metrics.headroom.Load())
		}),
		gauge("walrelay_oldest_unpublished_seconds", "Age of the oldest event that was read and is not acknowledged, since its commit.", nil, func() float64 {
			if t := r.state.oldestInFlight(); !t.IsZero() {
				return max(time.Since(t).Seconds(), 0)
			}
			return 0
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "walrelay_headers_dropped_total", Help: "Headers that rows set and that are not theirs to set: left out."}, func() float64 {
			return float64(r.metrics.dropped.Load())
		}),
		gauge("walrelay_connected", "1 while the side is connected and able to do its work.", prometheus.Labels{"side": "postgres"}, func() float64 {
			return truth(r.state.isStreaming())
		}),
		gauge("walrelay_connected", "1 while the side is connected and able to do its work.", prometheus.Labels{"side": "kafka"}, func() float64 {
			ok, _ := r.cfg.Producer.Healthy()
			return truth(ok)
		}),
	)
}

// acked observes the transactions that ended within the first n events of b.
func (m *metrics) acked(b *batch, n int) {
	now := time.Now()
	for _, e := range b.ends {
		if e.events > n {
			break
		}
		m.commitToAck.Observe(max(now.Sub(e.txn.Time).Seconds(), 0))
	}
}
