package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walrelay/walrelay/sink"
)

// The functions here return an option's set: parse, check, store. Their errors
// say what is wanted; the source and the value are put in front by resolve.

func text(dst *string) func(string) error {
	return func(v string) error {
		if v == "" {
			return errors.New("must not be empty")
		}
		*dst = v
		return nil
	}
}

// add collects what another package checks.
func add(dst *[]string) func(string) error {
	return func(v string) error {
		*dst = append(*dst, v)
		return nil
	}
}

func oneOf(dst *string, choices ...string) func(string) error {
	return func(v string) error {
		if !slices.Contains(choices, v) {
			last := len(choices) - 1
			return fmt.Errorf("want %s or %s", strings.Join(choices[:last], ", "), choices[last])
		}
		*dst = v
		return nil
	}
}

func boolean(dst *bool) func(string) error {
	return func(v string) (err error) {
		if *dst, err = strconv.ParseBool(v); err != nil {
			return errors.New("want true or false")
		}
		return nil
	}
}

func duration(dst *time.Duration) func(string) error {
	return func(v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 {
			return errors.New("want a duration like 500ms, 30s or 5m")
		}
		*dst = d
		return nil
	}
}

// readable is a file that can be opened now. Whoever uses it reads it again later.
func readable(dst *string) func(string) error {
	return func(v string) error {
		f, err := os.Open(v)
		if err != nil {
			return fmt.Errorf("cannot be read: %w", errors.Unwrap(err))
		}
		*dst = v
		return f.Close()
	}
}

// size is bytes, or a number with KiB, MiB or GiB.
func size(dst *int) func(string) error {
	return func(v string) error {
		n, err := parseSize(v)
		*dst = n
		return err
	}
}

// sizeOrZero is size where 0 turns something off.
func sizeOrZero(dst *int) func(string) error {
	return func(v string) error {
		if v == "0" {
			*dst = 0
			return nil
		}
		return size(dst)(v)
	}
}

func parseSize(v string) (int, error) {
	number, unit := v, 1
	for suffix, u := range map[string]int{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if cut, ok := strings.CutSuffix(v, suffix); ok {
			number, unit = cut, u
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || n == 0 || n > uint64(math.MaxInt/unit) {
		return 0, errors.New("want a size in bytes, or like 64KiB, 16MiB, 1GiB")
	}
	return int(n) * unit, nil
}

// parseLSN is strict where pglogrepl.ParseLSN ignores what follows the number.
func parseLSN(v string) (pglogrepl.LSN, error) {
	high, low, _ := strings.Cut(v, "/")
	h, errHigh := strconv.ParseUint(high, 16, 32)
	l, errLow := strconv.ParseUint(low, 16, 32)
	if errHigh != nil || errLow != nil {
		return 0, errors.New("want an LSN as Postgres prints it, like 16/B374D848")
	}
	return pglogrepl.LSN(h<<32 | l), nil
}

// lsnOrNow is LSN|now.
func lsnOrNow(dst *pglogrepl.LSN, now *bool) func(string) error {
	return func(v string) (err error) {
		if *now = v == "now"; *now {
			return nil
		}
		if *dst, err = parseLSN(v); err == nil && *dst == 0 {
			err = errors.New("0/0 is the position of nothing")
		} else if err != nil {
			err = fmt.Errorf("%w, or now", err)
		}
		return err
	}
}

// lsnValue is an LSN of something.
func lsnValue(dst *pglogrepl.LSN) func(string) error {
	return func(v string) (err error) {
		if *dst, err = parseLSN(v); err == nil && *dst == 0 {
			err = errors.New("0/0 is the position of nothing")
		}
		return err
	}
}

// timestamp is a time as in RFC 3339.
func timestamp(dst *time.Time) func(string) error {
	return func(v string) (err error) {
		if *dst, err = time.Parse(time.RFC3339Nano, v); err != nil {
			err = errors.New("want a time as in RFC 3339, like 2026-03-01T12:00:00Z")
		}
		return err
	}
}

// address is host:port; the host may be empty where it is one to listen on.
func address(v string, listen bool) error {
	host, port, err := net.SplitHostPort(v)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || (n == 0 || host == "") && !listen || strings.ContainsAny(host, "/@ ") {
		return errors.New("want host:port")
	}
	return nil
}

func brokers(dst *[]string) func(string) error {
	return func(v string) error {
		if err := address(v, false); err != nil {
			return fmt.Errorf("%w, several separated by commas", err)
		}
		*dst = append(*dst, v)
		return nil
	}
}

func listenAddress(dst *string) func(string) error {
	return func(v string) error {
		if v != "off" && address(v, true) != nil {
			return errors.New("want host:port to listen on, or off")
		}
		*dst = v
		return nil
	}
}

// postgresURL checks the form. Its errors tell no part of the value, for any part
// of a malformed one may be the password.
func postgresURL(dst *string) func(string) error {
	return func(v string) error {
		if _, err := pgconn.ParseConfig(v); err != nil {
			return errors.New("not a libpq URL or keywords" + unquoted(err.Error()) + "; the form is postgres://USER@HOST:PORT/DATABASE")
		}
		*dst = v
		return nil
	}
}

// unquoted is the reason of a "cannot parse `…`: reason", up to where it may quote the value.
func unquoted(text string) string {
	reason := text[strings.LastIndex(text, "`: ")+len("`: "):]
	if i := strings.IndexAny(reason, `:"'`+"`"); i >= 0 {
		reason = strings.TrimSpace(reason[:i])
	}
	if strings.Contains(reason, "(") && !strings.Contains(reason, ")") {
		reason += ")"
	}
	return ": " + reason
}

// holdsPassword says whether a connection string has a password in it.
func holdsPassword(v string) bool {
	u, err := url.Parse(v)
	if err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			return true
		}
	}
	return strings.Contains(v, "password=")
}

// slotName is what Postgres takes for the name of a slot.
func slotName(dst *string) func(string) error {
	return func(v string) error {
		if v == "" || len(v) > 63 || strings.Trim(v, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			return errors.New("want 1 to 63 lower-case letters, digits and underscores")
		}
		*dst = v
		return nil
	}
}

// topicName is what Kafka takes for the name of a topic that is not its own.
func topicName(dst *string) func(string) error {
	return func(v string) error {
		legal := strings.Trim(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
		if v == "" || len(v) > 249 || !legal || v[0] == '_' || v == "." || v == ".." {
			return errors.New("want the name of a topic: 1 to 249 letters, digits, '.', '_' and '-', not beginning with _")
		}
		*dst = v
		return nil
	}
}

// partitionsReplication is PARTITIONS:REPLICATION.
func partitionsReplication(dst **sink.CreateTopics) func(string) error {
	return func(v string) error {
		p, r, _ := strings.Cut(v, ":")
		partitions, errP := strconv.ParseInt(p, 10, 32)
		replication, errR := strconv.ParseInt(r, 10, 16)
		if errP != nil || errR != nil || partitions < 1 || replication < 1 {
			return errors.New("want PARTITIONS:REPLICATION, like 12:3")
		}
		*dst = &sink.CreateTopics{Partitions: int32(partitions), Replication: int16(replication)}
		return nil
	}
}

// checkpointNone is what --checkpoint none is stored as: no path can be so named.
const checkpointNone = "\x00none"

// checkpointPlace is file:PATH, kafka:TOPIC or none.
func checkpointPlace(path, topic *string) func(string) error {
	return func(v string) error {
		kind, where, _ := strings.Cut(v, ":")
		switch {
		case v == "none":
			*path, *topic = checkpointNone, ""
		case kind == "file" && where != "":
			*path, *topic = where, ""
		case kind == "kafka" && where != "":
			*path, *topic = "", where
		default:
			return errors.New("want file:PATH, kafka:TOPIC or none")
		}
		return nil
	}
}
