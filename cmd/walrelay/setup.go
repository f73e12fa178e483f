package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/walrelay/walrelay/replication"
)

// setupCommand creates what run needs in Postgres.
func setupCommand(s *settings) *cli.Command {
	var (
		opts    replication.SetupOptions
		print   bool
		timeout time.Duration
	)
	return &cli.Command{
		Name:  "setup",
		Usage: "create publication and slot, and on request the table and a role with least privileges",
		Flags: asFlags(append([]*option{
			{local: true, name: "create-table", set: boolean(&opts.CreateTable), usage: "create the outbox table too"},
			{local: true, name: "role", arg: "NAME", set: text(&opts.Role), usage: "create a role with what run needs, and no more"},
			{local: true, name: "print", set: boolean(&print), usage: "print the SQL; connect to nothing"},
			{local: true, name: "timeout", arg: "TIME", def: "30s", set: duration(&timeout), usage: "give up after this time"},
		}, s.options...)),
		Action: func(c *cli.Context) error {
			err := s.load(c)
			if err != nil {
				return err
			}
			if print {
				steps, err := replication.Plan(s.relay.Postgres, opts)
				if err != nil {
					return err
				}
				return replication.WriteSQL(c.App.Writer, steps)
			}
			if err := s.needPostgres(); err != nil {
				return err
			}
			steps, err := setup(c.Context, timeout, s.relay.Postgres, opts)
			writeSteps(c.App.Writer, steps)
			return err
		},
	}
}

// setup tries again until the timeout, but only what can pass by itself.
func setup(ctx context.Context, timeout time.Duration, cfg replication.Config, opts replication.SetupOptions) ([]replication.Step, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		steps, err := replication.Setup(ctx, cfg, opts)
		if exitCode(err) != exitFailed {
			return steps, err
		}
		select {
		case <-ctx.Done():
			return steps, fmt.Errorf("setup: gave up after --timeout %s: %w", timeout, err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// writeSteps tells what was found and what was made.
func writeSteps(w io.Writer, steps []replication.Step) {
	for _, step := range steps {
		state := "missing"
		if step.Done {
			state = "exists"
		} else if step.Made {
			state = "created"
		}
		fmt.Fprintf(w, "%-8s %s\n", state, step.Name)
		if step.Note != "" {
			fmt.Fprintf(w, "         %s\n", step.Note)
		}
	}
}
