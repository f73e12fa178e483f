package kafkaconsumer

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	handled, duplicates, retries, parked *prometheus.CounterVec
	lag                                  *prometheus.GaugeVec
}

// newMetrics registers the metrics of one group; registering two consumers of a group with one registry shares them.
func newMetrics(r prometheus.Registerer, group string) *metrics {
	labels := prometheus.Labels{"group": group}
	counter := func(name, help string) *prometheus.CounterVec {
		return register(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "walrelay_consumer_" + name + "_total", Help: help, ConstLabels: labels}, []string{"topic"}))
	}
	return &metrics{
		handled:    counter("handled", "Events whose effect was committed."),
		duplicates: counter("duplicates", "Events that the inbox knew already."),
		retries:    counter("retries", "Attempts after one that failed."),
		parked:     counter("parked", "Events that went to a dead-letter topic."),
		lag: register(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "walrelay_consumer_lag",
			Help: "Records between what is dealt with and the end of the partition.", ConstLabels: labels}, []string{"topic", "partition"})),
	}
}

func register[C prometheus.Collector](r prometheus.Registerer, c C) C {
	if r == nil {
		return c
	}
	if err := r.Register(c); err != nil {
		if known, ok := err.(prometheus.AlreadyRegisteredError); ok {
			return known.ExistingCollector.(C)
		}
		panic(err) // two metrics of one name and other labels: a mistake of the program
	}
	return c
}

func (m *metrics) lagOf(topic string, partition int) prometheus.Gauge {
	return m.lag.WithLabelValues(topic, strconv.Itoa(partition))
}

// forget drops the lag of a partition that is not ours any more.
func (m *metrics) forget(topic string, partition int) {
	m.lag.DeleteLabelValues(topic, strconv.Itoa(partition))
}
