package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/relay"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("gave up"), 1},
		{usagef("wrong"), 2},
		{&decode.ConfigError{}, 2},
		{&replication.SetupError{}, 2},
		{&sink.WeakTopicError{}, 2},
		{&sink.CodeError{Code: 76}, 2},
		{&replication.ContinuityError{}, 10},
		{&checkpoint.StateError{}, 10},
		{&relay.ReachError{}, 10},
		{&relay.PendingReplayError{}, 2},
		{relay.ErrReplayUnfinished, 1},
		{&decode.PoisonError{}, 11},
		{&replication.AuthError{Err: errors.New("28P01")}, 12},
		{&sink.AuthError{}, 12},
		{&decode.MappingError{}, 13},
		{relay.ErrDrainTimeout, 14},
		{relay.ErrUnsaved, 14},
		{relay.ErrBeforeGoal, 1},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%T: exit %d, want %d", c.err, got, c.want)
		}
		if c.err != nil {
			if got := exitCode(fmt.Errorf("relay: %w", c.err)); got != c.want {
				t.Errorf("%T, wrapped: exit %d, want %d", c.err, got, c.want)
			}
		}
	}
}

func TestReportIsOneLineInTheLogsFormat(t *testing.T) {
	err := fmt.Errorf("replication: connect:\n\tfirst\n\tsecond; %w", usagef("do this"))
	for format, want := range map[string]string{"console": "walrelay: replication: connect: first second; do this\n", "": "walrelay: "} {
		var out bytes.Buffer
		s := newSettings(&out)
		s.logFormat = format
		report(&out, err, s)
		if !strings.HasPrefix(out.String(), want) || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%q: %q", format, out.String())
		}
	}
	for _, format := range []string{"json", "auto"} { // a buffer is no terminal
		var out bytes.Buffer
		s := newSettings(&out)
		s.logFormat = format
		s.log = newLogger(&out, "error", format)
		report(&out, err, s)
		var line struct {
			Level, Error, Message, Time string
			Exit                        int
		}
		if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Exit != 2 || line.Level != "error" || !strings.HasSuffix(line.Error, "do this") {
			t.Errorf("%q: %q: %v", format, out.String(), err)
		}
	}
}
