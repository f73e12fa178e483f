package main

import (
	"bufio"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/relay"
)

// tailCommand shows events as they are committed.
func tailCommand(s *settings) *cli.Command {
	var (
		cfg     relay.TailConfig
		asJSON  bool
		count   int
		payload = payloadAll
	)
	return &cli.Command{
		Name:  "tail",
		Usage: "show the events that are committed from now on; neither Kafka nor the relay's slot is touched",
		Flags: asFlags(append([]*option{
			{local: true, name: "json", set: boolean(&asJSON), usage: "print a JSON line for each event"},
			{local: true, name: "count", arg: "N", set: number(&count), shown: "until stopped", usage: "stop after this many events"},
			{local: true, name: "payload", arg: "all|none|SIZE", def: "all", set: payloadPart(&payload), usage: "how much of each payload to show"},
			{local: true, name: "filter-key", arg: "KEY", list: true, set: add(&cfg.Filter.Keys), usage: "only events with this key"},
			{local: true, name: "filter-event-type", arg: "TYPE", list: true, set: add(&cfg.Filter.EventTypes), usage: "only events of this type"},
			{local: true, name: "filter-topic", arg: "GLOB", list: true, set: add(&cfg.Filter.Topics), usage: "only events that go to a topic like this"},
		}, s.options...)),
		Action: func(c *cli.Context) error {
			if err := cmp.Or(s.load(c), s.needPostgres()); err != nil {
				return err
			}
			cfg.Config, cfg.Patience = s.relay, s.timeout
			out := bufio.NewWriter(c.App.Writer)
			t := tail{screen: newScreen(c.App.Writer, false), out: out, json: asJSON, payload: payload, left: count}
			cfg.Show, cfg.Rest = t.show, out.Flush
			return relay.Tail(c.Context, cfg)
		},
	}
}

const payloadAll = -1

// payloadPart is all, none or a size.
func payloadPart(dst *int) func(string) error {
	return func(v string) (err error) {
		switch v {
		case "all":
			*dst = payloadAll
		case "none":
			*dst = 0
		default:
			if *dst, err = parseSize(v); err != nil {
				return errors.New("want all, none, or a size like 512 or 4KiB")
			}
		}
		return nil
	}
}

func number(dst *int) func(string) error {
	return func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return errors.New("want a number, 1 or more")
		}
		*dst = n
		return nil
	}
}

// tail writes events.
type tail struct {
	screen  *screen
	out     io.Writer
	json    bool
	payload int // bytes of it to show; payloadAll
	left    int // events to show; 0: no end
}

// tailLine is an event as JSON. Names stay as they are.
type tailLine struct {
	LSN       string       `json:"lsn"` // the transaction's commit LSN
	Seq       uint64       `json:"seq"`
	Topic     string       `json:"topic"`
	Partition *int32       `json:"partition"` // the row's own choice; null: by the key
	Key       *string      `json:"key"`
	ID        string       `json:"event_id"`
	Type      *string      `json:"event_type"`
	Timestamp time.Time    `json:"timestamp"`
	Headers   []tailHeader `json:"headers"`
	Bytes     int          `json:"payload_bytes"`
	Payload   *string      `json:"payload"` // null: a tombstone, or not shown, or not UTF-8
	Base64    *string      `json:"payload_base64"`
	Cut       bool         `json:"payload_cut"`
	Poison    string       `json:"poison"` // why it can't be published
}

type tailHeader struct {
	Name  string  `json:"name"`
	Value *string `json:"value"`
}

func textOf(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}

func (t *tail) show(ev *decode.Event, eventType []byte) error {
	line := tailLine{
		LSN: ev.Commit.String(), Seq: ev.Seq, Topic: ev.Topic, Key: textOf(ev.Key), ID: string(ev.ID), Type: textOf(eventType),
		Timestamp: time.UnixMilli(ev.Timestamp).UTC(), Bytes: len(ev.Value), Headers: []tailHeader{},
	}
	if ev.Partition >= 0 {
		line.Partition = &ev.Partition
	}
	for name, value := range ev.Headers.All() {
		line.Headers = append(line.Headers, tailHeader{string(name), textOf(value)})
	}
	if ev.Poison != nil {
		line.Poison = ev.Poison.Reason
	}
	t.fillPayload(&line, ev.Value)
	var err error
	if t.json {
		enc := json.NewEncoder(t.out)
		enc.SetEscapeHTML(false)
		err = enc.Encode(line)
	} else {
		err = t.page(&line)
	}
	if err != nil {
		return fmt.Errorf("tail: %w", err)
	}
	if t.left--; t.left == 0 {
		return relay.ErrEnough
	}
	return nil
}

// fillPayload takes as much of the payload as is wanted, without cutting a character in two.
func (t *tail) fillPayload(line *tailLine, value []byte) {
	if value == nil || t.payload == 0 {
		line.Cut = len(value) > 0
		return
	}
	text := utf8.Valid(value)
	if t.payload != payloadAll && len(value) > t.payload {
		value, line.Cut = value[:t.payload], true
		for text && len(value) > 0 && !utf8.Valid(value) {
			value = value[:len(value)-1]
		}
	}
	if text {
		line.Payload = textOf(value)
		return
	}
	encoded := base64.StdEncoding.EncodeToString(value)
	line.Base64 = &encoded
}

// standardHeaders are not shown to people: what they say is there, or the relay's own.
const standardHeaders = " event-id event-type aggregate-type aggregate-id idempotency-key id walrelay-lsn walrelay-seq walrelay-source "

// page writes an event for people: what and where, further headers, and the payload.
func (t *tail) page(line *tailLine) error {
	s := t.screen
	s.out.Reset()
	key, kind := "(no key)", ""
	if line.Key != nil {
		key = plain(*line.Key)
	}
	if line.Type != nil {
		kind = "  " + s.paint(green, plain(*line.Type))
	}
	fmt.Fprintf(&s.out, "%s  %s  %s%s  %s\n", s.paint(dim, line.Timestamp.Format("15:04:05.000")), s.paint(bold, plain(line.Topic)), key, kind,
		s.paint(dim, fmt.Sprintf("%s+%d  %s", line.LSN, line.Seq, plain(line.ID))))
	var more []string
	for _, h := range line.Headers {
		switch {
		case strings.Contains(standardHeaders, " "+h.Name+" "):
		case h.Value == nil:
			more = append(more, plain(h.Name)+" (null)")
		default:
			more = append(more, plain(h.Name)+"="+plain(*h.Value))
		}
	}
	if more != nil {
		fmt.Fprintf(&s.out, "    %s\n", s.paint(dim, strings.Join(more, "  ")))
	}
	if line.Poison != "" {
		fmt.Fprintf(&s.out, "    %s\n", s.paint(red, "can't be published: "+plain(line.Poison)))
	}
	if text := t.payloadText(line); text != "" {
		fmt.Fprintf(&s.out, "    %s\n", text)
	}
	_, err := t.out.Write(s.out.Bytes())
	return err
}

func (t *tail) payloadText(line *tailLine) string {
	text := ""
	switch {
	case line.Payload != nil:
		text = plain(strings.NewReplacer("\n", " ", "\t", " ", "\r", "").Replace(*line.Payload))
	case line.Base64 != nil:
		text = "base64 " + *line.Base64
	case line.Bytes == 0:
		return t.screen.paint(dim, "(tombstone)")
	}
	if line.Cut && t.payload != 0 {
		text += t.screen.paint(dim, " … of "+bytesText(int64(line.Bytes)))
	}
	return text
}
