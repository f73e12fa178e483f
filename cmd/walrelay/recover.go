package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/urfave/cli/v2"

	"github.com/walrelay/walrelay/relay"
)

// recoverCommand gets out of what run refuses with 10.
func recoverCommand(s *settings) *cli.Command {
	var accept *pglogrepl.LSN
	return &cli.Command{
		Name:  "recover",
		Usage: "show why run refuses to go on (10), or get out of it, as an operator decides",
		Flags: asFlags(append([]*option{
			{local: true, name: "accept-gap", arg: "LSN", set: givenLSN(&accept), shown: "no", usage: "go on without what is in the gap that begins here, as the refusal printed it"},
		}, s.options...)),
		Action: func(c *cli.Context) error {
			if err := cmp.Or(s.load(c), s.needPostgres()); err != nil {
				return err
			}
			var err error
			if s.relay.Store, err = s.openCheckpoint(c.Context); err != nil {
				return err
			}
			return s.within(c.Context, "recover", func(ctx context.Context) error {
				r, err := relay.Examine(ctx, s.relay)
				switch {
				case err != nil:
					return err
				case accept != nil:
					return r.AcceptGap(ctx, *accept)
				}
				if r.Refusal == nil {
					fmt.Fprintln(c.App.Writer, "nothing to recover: the position is proven to continue")
				}
				return r.Refusal
			})
		},
	}
}

// givenLSN tells 0/0 from no LSN at all.
func givenLSN(dst **pglogrepl.LSN) func(string) error {
	return func(v string) error {
		lsn, err := parseLSN(v)
		*dst = &lsn
		return err
	}
}
