package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/walrelay/walrelay/sink"
)

// dltCommand looks at dead letters, the relay's and those of consumers, and sends them again.
func dltCommand(s *settings) *cli.Command {
	dlt := &cli.Command{
		Name:            "dlt",
		Usage:           "list, show and redrive dead letters",
		Subcommands:     []*cli.Command{dltList(s), dltShow(s), dltRedrive(s)},
		HideHelpCommand: true,
		Action: func(c *cli.Context) error {
			return usagef("dlt takes one of list, show and redrive; walrelay dlt --help lists them")
		},
	}
	for _, sub := range dlt.Subcommands {
		sub.HideHelpCommand = true
		sub.OnUsageError = func(c *cli.Context, err error, _ bool) error { return usageHint(c, err) }
	}
	return dlt
}

func fromOption(topic *string) *option {
	return &option{local: true, name: "from", arg: "TOPIC", set: text(topic), usage: "the dead-letter topic"}
}

func dltList(s *settings) *cli.Command {
	var from string
	var all, asJSON bool
	return &cli.Command{
		Name:  "list",
		Usage: "list the dead letters that were not redriven",
		Flags: asFlags(append([]*option{
			fromOption(&from),
			{local: true, name: "all", set: boolean(&all), usage: "list those that were redriven too"},
			{local: true, name: "json", set: boolean(&asJSON), usage: "print a JSON document in each line"},
		}, s.options...)),
		Action: func(c *cli.Context) error {
			return s.letters(c, "dlt list", &from, func(ctx context.Context, letters *sink.Letters) error {
				if asJSON {
					enc := json.NewEncoder(c.App.Writer)
					return letters.Each(ctx, all, func(l *sink.Letter) error { return enc.Encode(describe(l)) })
				}
				table := tabwriter.NewWriter(c.App.Writer, 0, 8, 2, ' ', 0)
				defer table.Flush()
				return letters.Each(ctx, all, func(l *sink.Letter) error {
					d := describe(l)
					_, err := fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", d.At, d.Time, plain(d.EventID), plain(d.Origin), d.state(), plain(d.Cause))
					return err
				})
			})
		},
	}
}

func dltShow(s *settings) *cli.Command {
	var from, at string
	var payload bool
	return &cli.Command{
		Name:  "show",
		Usage: "show the headers of one dead letter, and its payload on request",
		Flags: asFlags(append([]*option{
			fromOption(&from),
			{local: true, name: "at", arg: "PARTITION:OFFSET", set: text(&at), usage: "which one, as list names it"},
			{local: true, name: "payload", set: boolean(&payload), usage: "show key and value too"},
		}, s.options...)),
		Action: func(c *cli.Context) error {
			return s.letters(c, "dlt show", &from, func(ctx context.Context, letters *sink.Letters) error {
				partition, offset, ok := parseAt(at)
				if !ok {
					return usagef("--at %q: want PARTITION:OFFSET, as dlt list names a letter", at)
				}
				l, err := letters.At(ctx, partition, offset)
				if err != nil {
					return err
				}
				return writeLetter(c.App.Writer, l, payload)
			})
		},
	}
}

func dltRedrive(s *settings) *cli.Command {
	var from, most string
	var opts sink.RedriveOptions
	return &cli.Command{
		Name:  "redrive",
		Usage: "send dead letters back to the topics that they come from, in order",
		Flags: asFlags(append([]*option{
			fromOption(&from),
			{local: true, name: "max", arg: "N", set: text(&most), usage: "send at most so many", shown: "all"},
			{local: true, name: "skip-incomplete", set: boolean(&opts.SkipIncomplete), usage: "leave out letters that were too large to be kept whole"},
		}, s.options...)),
		Action: func(c *cli.Context) error {
			return s.letters(c, "dlt redrive", &from, func(ctx context.Context, letters *sink.Letters) (err error) {
				if most != "" {
					if opts.Max, err = strconv.Atoi(most); err != nil || opts.Max < 1 {
						return usagef("--max %q: want a number of letters", most)
					}
				}
				opts.Timeout, s.producer.Poison = s.timeout, sink.PoisonStop // a letter that is refused again must not become another
				producer, err := sink.NewProducer(s.producer)
				if err != nil {
					return usagef("%v", err)
				}
				sent, err := letters.Redrive(ctx, producer, opts)
				fmt.Fprintf(c.App.Writer, "redriven %d\n", sent)
				return err
			})
		},
	}
}

// letters opens the dead-letter topic and does something with it.
func (s *settings) letters(c *cli.Context, command string, from *string, do func(context.Context, *sink.Letters) error) error {
	if err := s.load(c); err != nil {
		return err
	}
	if *from == "" {
		return usagef("--from is missing: the dead-letter topic, as in --from outbox.event.order.DLT")
	}
	if len(s.client.Brokers) == 0 {
		return usagef("--kafka-brokers is missing: give one or more HOST:PORT, separated by commas")
	}
	client, err := sink.NewClient(s.client)
	if err != nil {
		return usagef("%v", err)
	}
	defer client.Close()
	s.producer.Client = client
	var letters *sink.Letters
	if err := s.within(c.Context, command, func(ctx context.Context) (err error) {
		letters, err = sink.OpenLetters(ctx, client, *from)
		return err
	}); err != nil {
		return err
	}
	return do(c.Context, letters)
}

// letterInfo is what list says of a letter. It holds nothing of the payload; the cause is what relay or consumer wrote.
type letterInfo struct {
	At       string `json:"at"`
	Time     string `json:"time"`
	EventID  string `json:"event_id"`
	Origin   string `json:"origin"` // topic-partition@offset; the relay's letters have a topic only
	ParkedBy string `json:"parked_by"`
	Attempts string `json:"attempts,omitempty"`
	Cause    string `json:"cause"`
	Redriven bool   `json:"redriven"`
}

func describe(l *sink.Letter) letterInfo {
	d := letterInfo{
		At: fmt.Sprintf("%d:%d", l.Partition, l.Offset), Time: l.Time.UTC().Format(time.RFC3339), EventID: l.Header("event-id"),
		Origin: l.Header("walrelay-original-topic"), ParkedBy: l.Header("walrelay-parked-by"),
		Attempts: l.Header("walrelay-attempts"), Cause: l.Header("walrelay-error"), Redriven: l.Redriven,
	}
	if partition := l.Header("walrelay-original-partition"); partition != "" {
		d.Origin += "-" + partition + "@" + l.Header("walrelay-original-offset")
	}
	if d.ParkedBy == "" {
		d.ParkedBy = "walrelay"
	}
	return d
}

func (d letterInfo) state() string {
	if d.Redriven {
		return "redriven"
	}
	return plain(d.ParkedBy)
}

func parseAt(s string) (partition int32, offset int64, ok bool) {
	p, o, found := strings.Cut(s, ":")
	number, err := strconv.ParseInt(p, 10, 32)
	offset, offsetErr := strconv.ParseInt(o, 10, 64)
	return int32(number), offset, found && err == nil && offsetErr == nil
}

func writeLetter(w io.Writer, l *sink.Letter, payload bool) error {
	fmt.Fprintf(w, "%s-%d@%d  %s\n", l.Topic, l.Partition, l.Offset, l.Time.UTC().Format(time.RFC3339Nano))
	for _, h := range l.Headers {
		value := plain(string(h.Value))
		if h.Value == nil {
			value = "(null)"
		}
		fmt.Fprintf(w, "%s: %s\n", plain(h.Key), value)
	}
	if !payload {
		_, err := fmt.Fprintf(w, "\nkey of %d bytes, value of %d; --payload shows them\n", len(l.Key), len(l.Value))
		return err
	}
	_, err := fmt.Fprintf(w, "\nkey: %s\n\n%s\n", l.Key, l.Value)
	return err
}
