package main

import (
	"os"
	"runtime/debug"

	"cmp"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/urfave/cli/v2"

	"github.com/walrelay/walrelay/relay"
	"github.com/walrelay/walrelay/sink"
)

// runCommand is the relay itself.
func runCommand(s *settings) *cli.Command {
	var (
		from     pglogrepl.LSN
		backfill bool
	)
	return &cli.Command{
		Name:  "run",
		Usage: "relay committed outbox rows to Kafka until stopped",
		Flags: asFlags(append([]*option{
			{local: true, name: "until", arg: "LSN|now", set: lsnOrNow(&s.relay.Until, &s.relay.UntilNow), shown: "never",
				usage: "stop when all that was committed before this LSN is delivered and confirmed"},
			{local: true, name: "from-lsn", arg: "LSN", set: lsnValue(&from), shown: "nothing",
				usage: "before going live, publish again what committed at this LSN or later; once, also when it is started like this again"},
			{local: true, name: "backfill", set: boolean(&backfill),
				usage: "at the first start: create the slot, and publish the rows that are older than it before what comes after"},
		}, s.options...)),
		Action: func(c *cli.Context) error {
			if err := cmp.Or(s.load(c), s.needPostgres()); err != nil {
				return err
			}
			if backfill && s.checkpoint == checkpointNone {
				return usagef("--backfill needs a --checkpoint, which says that it is done")
			}
			return s.run(c, from, backfill)
		},
	}
}

func (s *settings) run(c *cli.Context, from pglogrepl.LSN, backfill bool) error {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	producer, client, err := s.openProducer(sink.NewMetrics(metrics))
	if err != nil {
		return err
	}
	defer client.Close()
	s.relay.Producer, s.relay.Metrics = producer, metrics
	if s.relay.Store, err = s.openCheckpoint(c.Context); err != nil {
		return err
	}
	if s.relay.Postgres.ReplayRetain > 0 {
		if s.relay.Replays, err = s.replayFile(replaySuffix); err != nil {
			return err
		}
	}
	if from != 0 {
		var own *sink.Client
		if s.relay.ReplayFirst, own, err = s.replayFirst(from); err != nil {
			return err
		}
		defer own.Close()
	}
	if backfill {
		var own *sink.Client
		if s.relay.Backfill, own, err = s.openReplayProducer(); err != nil {
			return err
		}
		defer own.Close()
	}
	boundHeap(s.relay.BufferBytes)
	boundProcessors(s.producer)
	r := relay.New(s.relay)
	stop, err := serveHTTP(s.http, s.pprof, metrics, r.Live, s.log)
	if err != nil {
		return err
	}
	defer stop()
	return r.Run(c.Context)
}

// boundHeap lets the collector work harder when what large rows leave behind would
// outgrow the buffer: a row is held by the driver, the batch and the sink in turn.
// GOMEMLIMIT overrides it.
func boundHeap(buffer int) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(buffer) + 48<<20)
	}
}
