package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/walrelay/walrelay/relay"
	"github.com/walrelay/walrelay/replication"
)

// watchEvery is the pause between two looks of --watch.
const watchEvery = 2 * time.Second

// statusCommand tells where the relay stands; it changes nothing.
func statusCommand(s *settings) *cli.Command {
	var asJSON, watch bool
	return &cli.Command{
		Name:  "status",
		Usage: "show positions, lag, and who holds the slot",
		Flags: asFlags(append([]*option{
			{local: true, name: "json", set: boolean(&asJSON), usage: "print one JSON document"},
			{local: true, name: "watch", set: boolean(&watch), usage: "look again every two seconds, until stopped"},
		}, s.options...)),
		Action: func(c *cli.Context) error {
			if err := cmp.Or(s.load(c), s.needPostgres()); err != nil {
				return err
			}
			from, err := s.sources()
			if err != nil {
				return err
			}
			defer from.Server.Close(context.Background())
			look := func() error {
				return s.within(c.Context, "status", func(ctx context.Context) error {
					report, err := from.Look(ctx)
					if err != nil {
						return err
					}
					return writeReport(c.App.Writer, report, asJSON, watch)
				})
			}
			if !watch {
				return look()
			}
			return s.watch(c.Context, look)
		},
	}
}

// watch looks until ctx ends. What can pass by itself ends nothing.
func (s *settings) watch(ctx context.Context, look func() error) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		err := look()
		switch {
		case ctx.Err() != nil:
			return nil
		case exitCode(err) != exitFailed && err != nil:
			return err
		case err != nil:
			report(s.stderr, err, s)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// sources are what a report is made from.
func (s *settings) sources() (relay.Sources, error) {
	observer, err := replication.NewObserver(s.relay.Postgres)
	if err != nil {
		return relay.Sources{}, err
	}
	from := relay.Sources{Server: observer, Config: s.relay}
	if from.Config.Store, from.Place, err = s.openToRead(); err != nil {
		return relay.Sources{}, err
	}
	if s.http != "off" {
		from.Ask = func(ctx context.Context) (*relay.Live, error) { return askRelay(ctx, s.http) }
	}
	return from, nil
}

func writeReport(w io.Writer, r *relay.Report, asJSON, watch bool) error {
	if !asJSON {
		return newScreen(w, watch).report(r)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if !watch { // a line for each look
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	return nil
}
