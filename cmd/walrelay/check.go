package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/walrelay/walrelay/relay"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

// finding is one line of check. As JSON its names stay as they are.
type finding struct {
	Group string `json:"group"`
	Name  string `json:"check"`
	Level string `json:"status"`
	Text  string `json:"text"`
	Mend  string `json:"fix"`
}

// Groups of findings.
const (
	postgresGroup = "postgres"
	kafkaGroup    = "kafka"
)

// errChecks is returned when a check failed: what and why is on stdout.
var errChecks = errors.New("check: not everything is as it has to be; the lines marked fail say what to do")

// checkCommand looks at both ends, and changes nothing.
func checkCommand(s *settings) *cli.Command {
	var asJSON bool
	return &cli.Command{
		Name:  "check",
		Usage: "look whether Postgres and Kafka are as they have to be, before the first run or while one is going on",
		Flags: asFlags(append([]*option{
			{local: true, name: "json", set: boolean(&asJSON), usage: "print one JSON document"},
		}, s.options...)),
		Action: func(c *cli.Context) error {
			if err := cmp.Or(s.load(c), s.needPostgres()); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context, s.timeout)
			defer cancel()
			found, err := s.check(ctx)
			if err != nil {
				return err
			}
			if err := writeFindings(c.App.Writer, found, asJSON); err != nil {
				return err
			}
			for _, f := range found {
				if f.Level == "fail" {
					return errChecks
				}
			}
			return nil
		},
	}
}

// check asks both ends. Its errors are usage errors: whatever else is wrong is a finding.
func (s *settings) check(ctx context.Context) ([]finding, error) {
	producer, client, err := s.openProducer(nil)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	from, err := s.sources()
	if err != nil {
		return nil, err
	}
	defer from.Server.Close(context.WithoutCancel(ctx))

	var found []finding
	postgres := from.Server.Examine(ctx, replication.Needs{Fits: from.Config.Fits, Anchor: s.relay.Postgres.ReplayRetain > 0})
	for _, f := range postgres {
		found = append(found, finding{postgresGroup, f.Name, f.Level, f.Text, f.Mend})
	}
	known := sink.Known{Topics: s.literalTopics()}
	if report, err := from.Look(ctx); err == nil {
		found = append(found, checkpointFinding(report, from.Continues(ctx)))
		found = append(found, s.sample(ctx, from.Server, &known)...)
	}
	brokers, answered := client.Examine(ctx)
	if answered && s.positions != "" {
		found = append(found, s.transactionsFinding(ctx))
	}
	if answered {
		brokers = append(brokers, producer.Examine(ctx, known)...)
	}
	for _, f := range brokers {
		found = append(found, finding{kafkaGroup, f.Name, f.Level, f.Text, f.Mend})
	}
	return found, nil
}

// checkpointFinding says whether the saved position is one to go on from; refusal is why not.
func checkpointFinding(r *relay.Report, refusal error) finding {
	f := finding{Group: postgresGroup, Name: "checkpoint", Level: "ok"}
	switch c := r.Checkpoint; {
	case c == nil:
		f.Text = "none by choice: the slot's own position is trusted"
	case c.Error != "":
		f.Level, f.Text = "fail", c.Error
	case c.Safe == 0:
		f.Text = "none yet at " + c.Store + ": the slot's own position is trusted"
	case refusal != nil:
		f := replication.Failed("checkpoint", refusal)
		return finding{postgresGroup, f.Name, f.Level, f.Text, f.Mend}
	default:
		f.Text = c.Safe.String() + " in " + c.Store
	}
	return f
}

// transactionsFinding asks for a transactional id beside the relay's own, which must not be
// fenced, and which one permission covers with this one.
func (s *settings) transactionsFinding(ctx context.Context) finding {
	f := finding{Group: kafkaGroup, Name: "transactions", Level: "ok"}
	producer, err := sink.NewProducer(sink.Config{Client: s.producer.Client, Transactional: true, Log: zerolog.Nop()})
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err = producer.Fence(ctx, "walrelay-check-"+s.relay.Postgres.Slot)
	}
	switch {
	case err != nil:
		f.Level, f.Text = "fail", err.Error()
		f.Mend = "kafka-acls.sh --add --allow-principal User:NAME --operation Write --operation Describe --transactional-id walrelay- --resource-pattern-type prefixed"
	case s.delivery == exactlyOnce:
		f.Text = "the brokers take them; consumers see each event once if they read with isolation.level=read_committed"
	default:
		f.Text = "the brokers take them"
	}
	return f
}

// sample has the table tell which events to expect.
func (s *settings) sample(ctx context.Context, server *replication.Observer, known *sink.Known) []finding {
	decoder := s.relay.Decoder
	sample, err := server.Sample(ctx, decoder.Column)
	if err != nil {
		return []finding{{postgresGroup, "rows", "ok", "not looked at: " + strings.TrimPrefix(err.Error(), "replication: "), ""}}
	}
	found := []finding{{postgresGroup, "rows", "ok", fmt.Sprintf("the largest payload has %d bytes", sample.Largest), ""}}
	known.Largest, known.NullKeys = sample.Largest, sample.NullKeys
	for _, r := range sample.Routes {
		topic, reason := decoder.Topic(r.Topic, r.AggregateType, r.EventType)
		if reason != "" {
			found = append(found, finding{postgresGroup, "rows", "warn", "the table holds rows that can't be published: " + reason, "correct what writes them, --topic or --topic-allow; --poison says what becomes of such rows"})
			continue
		}
		known.Topics = append(known.Topics, topic)
	}
	return found
}

// literalTopics are those that the options name.
func (s *settings) literalTopics() (names []string) {
	if !strings.Contains(s.decode.Topic, "{") {
		names = append(names, s.decode.Topic)
	}
	for _, glob := range s.decode.TopicAllow {
		if !strings.ContainsAny(glob, "*?") {
			names = append(names, glob)
		}
	}
	return names
}

func writeFindings(w io.Writer, found []finding, asJSON bool) error {
	if !asJSON {
		return newScreen(w, false).findings(found)
	}
	doc := struct {
		OK     bool      `json:"ok"`
		Checks []finding `json:"checks"`
	}{true, found}
	for _, f := range found {
		doc.OK = doc.OK && f.Level != "fail"
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	return nil
}

// findings writes a line for each, and below it what mends it.
func (s *screen) findings(found []finding) error {
	width, count := 0, make(map[string]int)
	for _, f := range found {
		width = max(width, len(f.Name))
		count[f.Level]++
	}
	group := ""
	for _, f := range found {
		if f.Group != group {
			if group != "" {
				s.out.WriteByte('\n')
			}
			group = f.Group
			fmt.Fprintln(&s.out, s.paint(bold, strings.ToUpper(group[:1])+group[1:]))
		}
		tone := map[string]colour{"ok": green, "warn": yellow, "fail": red}[f.Level]
		fmt.Fprintf(&s.out, "  %s  %-*s  %s\n", s.paint(tone, fmt.Sprintf("%-4s", f.Level)), width, f.Name, plain(f.Text))
		if f.Mend != "" {
			fmt.Fprintf(&s.out, "        %*s  %s\n", width, "", s.paint(dim, "→ "+plain(f.Mend)))
		}
	}
	fmt.Fprintf(&s.out, "\n%d ok, %d warn, %d fail\n", count["ok"], count["warn"], count["fail"])
	return s.flush()
}
