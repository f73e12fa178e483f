package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/urfave/cli/v2"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/relay"
	"github.com/walrelay/walrelay/sink"
)

// replayCommand publishes a window again.
func replayCommand(s *settings) *cli.Command {
	var (
		cfg             relay.ReplayConfig
		dryRun, abandon bool
	)
	window := []*option{
		{local: true, name: "from-lsn", arg: "LSN", set: lsnValue(&cfg.From), usage: "publish again what committed at this LSN or later"},
		{local: true, name: "from-time", arg: "TIME", set: timestamp(&cfg.FromTime), usage: "or what committed at this time or later, as in RFC 3339"},
		{local: true, name: "to-lsn", arg: "LSN", set: lsnValue(&cfg.To), shown: "all that is delivered", usage: "and at this LSN or earlier"},
		{local: true, name: "topic-override", arg: "TOPIC", set: topicName(&cfg.Topic), usage: "publish to this topic instead"},
		{local: true, name: "filter-key", arg: "KEY", list: true, set: add(&cfg.Filter.Keys), usage: "only events with this key"},
		{local: true, name: "filter-event-type", arg: "TYPE", list: true, set: add(&cfg.Filter.EventTypes), usage: "only events of this type"},
		{local: true, name: "filter-topic", arg: "GLOB", list: true, set: add(&cfg.Filter.Topics), usage: "only events that went to a topic like this"},
	}
	asked := record(window)
	return &cli.Command{
		Name:  "replay",
		Usage: "publish a window of the past again; the live relay goes on",
		Flags: asFlags(append(append(window,
			&option{local: true, name: "dry-run", set: boolean(&dryRun), usage: "list and count the events; Kafka is not touched"},
			&option{local: true, name: "abandon", set: boolean(&abandon), usage: "give an unfinished replay up"},
		), s.options...)),
		Action: func(c *cli.Context) error {
			if err := s.load(c); err != nil {
				return err
			}
			if abandon {
				return s.abandonReplays(c)
			}
			if err := cmp.Or(s.needPostgres(), checkWindow(cfg)); err != nil {
				return err
			}
			cfg.Asked, cfg.Timeout = asked(), s.timeout
			if dryRun {
				return s.listWindow(c, cfg)
			}
			return s.replay(c, cfg)
		},
	}
}

// record returns what was given of options, as a command line, when they are resolved.
func record(options []*option) func() string {
	var given []string
	for _, o := range options {
		set := o.set
		o.set = func(v string) error {
			given = append(given, "--"+o.name+" "+shellQuote(v))
			return set(v)
		}
	}
	return func() string { return strings.Join(given, " ") }
}

// shellQuote quotes v where a shell would not take it as one word.
func shellQuote(v string) string {
	if v != "" && !strings.ContainsFunc(v, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:+", r))
	}) {
		return v
	}
	return "'" + strings.ReplaceAll(v, "'", `'\''`) + "'"
}

func checkWindow(cfg relay.ReplayConfig) error {
	switch {
	case (cfg.From == 0) == cfg.FromTime.IsZero():
		return usagef("give --from-lsn, or --from-time: where the window begins")
	case cfg.To != 0 && cfg.From > cfg.To:
		return usagef("--from-lsn %s is behind --to-lsn %s", cfg.From, cfg.To)
	}
	return nil
}

// replayFile is the record of replays of one kind, beside the checkpoint; where that is no
// file, where the default one would be.
func (s *settings) replayFile(suffix string) (*checkpoint.ReplayFile, error) {
	path := s.checkpointFile() + suffix
	file := checkpoint.OpenReplayFile(path)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	release, err := file.Lock(ctx)
	if err == nil {
		release()
	} else if ctx.Err() == nil { // nobody holds it: it can't be made
		return nil, usagef("%s: progress of replays can't be recorded there (%v); create the folder, or let this user write to it", path, err)
	}
	return file, nil
}

const (
	replaySuffix      = ".replay"       // of `walrelay replay`
	replayFirstSuffix = ".replay-first" // of `walrelay run --from-lsn`
)

// prepareReplay adds what all replays share. The decoder and the producer are their own.
func (s *settings) prepareReplay(cfg *relay.ReplayConfig) (err error) {
	cfg.Postgres, cfg.BufferBytes, cfg.DrainTimeout, cfg.Log = s.relay.Postgres, s.relay.BufferBytes, s.relay.DrainTimeout, s.log
	if cfg.Decoder, err = decode.New(s.decode); err != nil {
		return usagef("%v", err)
	}
	return nil
}

func (s *settings) replay(c *cli.Context, cfg relay.ReplayConfig) error {
	err := s.prepareReplay(&cfg)
	if err != nil {
		return err
	}
	if cfg.Store, _, err = s.openToRead(); err != nil {
		return err
	}
	if cfg.Record, err = s.replayFile(replaySuffix); err != nil {
		return err
	}
	var client *sink.Client
	if cfg.Producer, client, err = s.openReplayProducer(); err != nil {
		return err
	}
	defer client.Close()
	boundHeap(s.relay.BufferBytes)
	boundProcessors(s.producer)
	r := relay.NewReplay(cfg)
	defer showProgress(c.App.ErrWriter, s.log, r.Progress)()
	return r.Run(c.Context)
}

// abandonReplays forgets what is on record.
func (s *settings) abandonReplays(c *cli.Context) error {
	none := true
	for _, suffix := range []string{replaySuffix, replayFirstSuffix} {
		file, err := s.replayFile(suffix)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context, 5*time.Second)
		defer cancel()
		release, err := file.Lock(ctx)
		if err != nil {
			return fmt.Errorf("%w: %w", relay.ErrReplayRunning, err)
		}
		defer release()
		run, err := file.Load()
		if errors.Is(err, checkpoint.ErrNone) || err == nil && run.Done {
			continue
		}
		if err != nil {
			return err
		}
		if err := file.Remove(); err != nil {
			return err
		}
		none = false
		fmt.Fprintf(c.App.Writer, "abandoned replay %s (%s): %d events were published again, up to %s\n", run.RunID, run.Asked, run.Events, run.Position.Safe)
	}
	if none {
		fmt.Fprintln(c.App.Writer, "no replay is unfinished")
	}
	return nil
}

// replayFirst is the replay of `run --from-lsn`.
func (s *settings) replayFirst(from pglogrepl.LSN) (*relay.ReplayConfig, *sink.Client, error) {
	cfg := &relay.ReplayConfig{From: from, Asked: "--from-lsn " + from.String(), Remember: true}
	err := s.prepareReplay(cfg)
	if err != nil {
		return nil, nil, err
	}
	if cfg.Record, err = s.replayFile(replayFirstSuffix); err != nil {
		return nil, nil, err
	}
	var client *sink.Client
	cfg.Producer, client, err = s.openReplayProducer()
	return cfg, client, err
}

// openReplayProducer makes a producer that is plainly idempotent, whatever the live one is.
func (s *settings) openReplayProducer() (*sink.Producer, *sink.Client, error) {
	live := s.producer
	defer func() { s.producer = live }()
	s.producer.Transactional = false
	return s.openProducer(nil)
}
