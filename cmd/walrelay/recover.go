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
	var (
		accept           *pglogrepl.LSN
		fromTable, adopt bool
	)
	return &cli.Command{
		Name:  "recover",
		Usage: "show why run refuses to go on (10), or get out of it, as an operator decides",
		Flags: asFlags(append([]*option{
			{local: true, name: "accept-gap", arg: "LSN", set: givenLSN(&accept), shown: "no", usage: "go on without what is in the gap that begins here, as the refusal printed it"},
			{local: true, name: "from-table", set: boolean(&fromTable), usage: "publish from the outbox table what is not proven to be delivered, then go on"},
			{local: true, name: "adopt", set: boolean(&adopt), usage: "go on behind pg_upgrade, which gives the cluster another system id"},
		}, s.options...)),
		Action: func(c *cli.Context) error {
			if err := cmp.Or(s.load(c), s.needPostgres()); err != nil {
				return err
			}
			if given := []bool{accept != nil, fromTable, adopt}; count(given) > 1 {
				return usagef("--accept-gap, --from-table and --adopt are different ways out: give one of them")
			}
			var err error
			if s.relay.Store, err = s.openCheckpoint(c.Context); err != nil {
				return err
			}
			if fromTable {
				s.producer.Transactional = false // an id of its own: the live relay's is not touched
				producer, client, err := s.openProducer(nil)
				if err != nil {
					return err
				}
				defer client.Close()
				s.relay.Producer = producer
			}
			var found *relay.Recovery
			err = s.within(c.Context, "recover", func(ctx context.Context) (err error) {
				if found, err = relay.Examine(ctx, s.relay); err != nil {
					return err
				}
				switch {
				case accept != nil:
					return found.AcceptGap(ctx, *accept)
				case adopt:
					return found.Adopt(ctx)
				}
				return nil
			})
			switch {
			case err != nil:
				return err
			case fromTable:
				return found.FromTable(c.Context)
			case accept == nil && !adopt && found.Refusal == nil:
				fmt.Fprintln(c.App.Writer, "nothing to recover: the position is proven to continue")
			case accept == nil && !adopt:
				return found.Refusal
			}
			return nil
		},
	}
}

func count(given []bool) (n int) {
	for _, g := range given {
		if g {
			n++
		}
	}
	return n
}

// givenLSN tells 0/0 from no LSN at all.
func givenLSN(dst **pglogrepl.LSN) func(string) error {
	return func(v string) error {
		lsn, err := parseLSN(v)
		*dst = &lsn
		return err
	}
}
