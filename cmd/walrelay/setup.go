package main

import (
	"context"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/walrelay/walrelay/replication"
)

// setupCommand creates what run needs in Postgres.
func setupCommand(s *settings) *cli.Command {
	var (
		opts  replication.SetupOptions
		print bool
	)
	return &cli.Command{
		Name:  "setup",
		Usage: "create publication and slot, and on request the table and a role with least privileges",
		Flags: asFlags(append([]*option{
			{local: true, name: "create-table", set: boolean(&opts.CreateTable), usage: "create the outbox table too"},
			{local: true, name: "role", arg: "NAME", set: text(&opts.Role), usage: "create a role with what run needs, and no more"},
			{local: true, name: "drop-anchor", set: boolean(&opts.DropAnchor), usage: "drop the anchor, and do nothing else"},
			{local: true, name: "print", set: boolean(&print), usage: "print the SQL; connect to nothing"},
		}, s.options...)),
		Action: func(c *cli.Context) error {
			err := s.load(c)
			if err != nil {
				return err
			}
			if opts.DropAnchor && s.relay.Postgres.ReplayRetain > 0 {
				return usagef("--drop-anchor is for --replay-retain 0; run would miss the anchor")
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
			var steps []replication.Step
			err = s.within(c.Context, "setup", func(ctx context.Context) (err error) {
				steps, err = replication.Setup(ctx, s.relay.Postgres, opts)
				return err
			})
			writeSteps(c.App.Writer, steps)
			return err
		},
	}
}

// writeSteps tells what was found and what was made.
func writeSteps(w io.Writer, steps []replication.Step) {
	for _, step := range steps {
		state := map[bool]string{false: "missing", true: "exists"}[step.Done != step.Drop]
		if step.Made {
			state = map[bool]string{false: "created", true: "dropped"}[step.Drop]
		}
		fmt.Fprintf(w, "%-8s %s\n", state, step.Name)
		if step.Note != "" {
			fmt.Fprintf(w, "         %s\n", step.Note)
		}
	}
}
