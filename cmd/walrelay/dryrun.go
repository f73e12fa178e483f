package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/relay"
)

// listWindow is a replay that goes to stdout: a line for each event, and then how many there
// are of each topic. For people on a terminal, JSON lines elsewhere.
func (s *settings) listWindow(c *cli.Context, cfg relay.ReplayConfig) error {
	err := s.prepareReplay(&cfg)
	if err != nil {
		return err
	}
	if cfg.Store, _, err = s.openToRead(); err != nil {
		return err
	}
	out := bufio.NewWriter(c.App.Writer)
	defer out.Flush()
	list := listing{out: out, json: asJSON(c.App.Writer, s.logFormat), topics: map[string]*topicCount{}}
	cfg.List = list.add
	if err := relay.NewReplay(cfg).Run(c.Context); err != nil {
		return err
	}
	list.sum()
	return nil
}

type listing struct {
	out    *bufio.Writer
	json   bool
	topics map[string]*topicCount
}

type topicCount struct {
	Events int   `json:"events"`
	Bytes  int64 `json:"bytes"` // of the values
}

// line is an event as it is listed, without its payload.
type line struct {
	LSN   string    `json:"lsn"`
	Seq   uint64    `json:"seq"`
	Topic string    `json:"topic"`
	Key   *string   `json:"key"`
	ID    string    `json:"event_id"`
	Time  time.Time `json:"timestamp"`
	Bytes int       `json:"bytes"`
}

func (l *listing) add(events []decode.Event) {
	for i := range events {
		ev := &events[i]
		n := l.topics[ev.Topic]
		if n == nil {
			n = &topicCount{}
			l.topics[ev.Topic] = n
		}
		n.Events++
		n.Bytes += int64(len(ev.Value))
		at := line{LSN: ev.Commit.String(), Seq: ev.Seq, Topic: ev.Topic, ID: string(ev.ID), Time: time.UnixMilli(ev.Timestamp).UTC(), Bytes: len(ev.Value)}
		if ev.Key != nil {
			key := string(ev.Key)
			at.Key = &key
		}
		if l.json {
			json.NewEncoder(l.out).Encode(at)
			continue
		}
		fmt.Fprintf(l.out, "%-22s  %s  %-30s %-20s %s\n", fmt.Sprintf("%s+%d", at.LSN, at.Seq), at.Time.Format("2006-01-02 15:04:05.000"), printable(at.Topic), printable(string(ev.Key)), printable(at.ID))
	}
}

// printable keeps a row's bytes from steering a terminal.
func printable(s string) string {
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return fmt.Sprintf("%q", s)
		}
	}
	return s
}

func (l *listing) sum() {
	all := topicCount{}
	for _, n := range l.topics {
		all.Events += n.Events
		all.Bytes += n.Bytes
	}
	if l.json {
		json.NewEncoder(l.out).Encode(map[string]any{"events": all.Events, "bytes": all.Bytes, "topics": l.topics})
		return
	}
	for _, topic := range slices.Sorted(maps.Keys(l.topics)) {
		fmt.Fprintf(l.out, "%8d events, %d bytes: %s\n", l.topics[topic].Events, l.topics[topic].Bytes, printable(topic))
	}
	fmt.Fprintf(l.out, "%8d events in all; nothing was published\n", all.Events)
}
