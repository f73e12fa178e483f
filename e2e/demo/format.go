package demo

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// number groups digits: 12,345.
func number[T int | int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func size(bytes int64) string {
	switch {
	case bytes < 10<<10:
		return number(bytes) + " B"
	case bytes < 10<<20:
		return number(bytes>>10) + " KiB"
	}
	return number(bytes>>20) + " MiB"
}

func duration(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// sparkline shows values from 0 to the largest of them.
func sparkline(values []int64) string {
	const bars = "▁▂▃▄▅▆▇█"
	top := max(1, slices.Max(append([]int64{1}, values...)))
	var b strings.Builder
	for _, v := range values {
		i := int(max(v, 0) * 7 / top)
		b.WriteString(string([]rune(bars)[i]))
	}
	return b.String()
}

const eventColumns = "  %-8s %-8s %-11s %-16s %-15s %8s  %s"

// legend is the heading of the events.
func (v *view) legend() {
	v.say("%s", v.paint(dim, fmt.Sprintf(eventColumns, "topic …", "part@off", "key", "event-type", "commit LSN+row", "age", "more headers")))
}

// event prints a record as a consumer sees it.
func (v *view) event(r *kgo.Record, again bool) {
	h := headers(r)
	topic := strings.TrimPrefix(r.Topic, topicPrefix)
	place := fmt.Sprintf("%d@%d", r.Partition, r.Offset)
	position := h["walrelay-lsn"] + "+" + h["walrelay-seq"]
	line := fmt.Sprintf(eventColumns, topic, place, r.Key, h["event-type"], position, duration(max(0, time.Since(r.Timestamp))), moreHeaders(r))
	if again {
		line = v.paint(yellow, line) + v.paint(yellow, "  (again)")
	} else if topic != "order" {
		line = v.paint(cyan, line)
	}
	v.say("%s", line)
}

func headers(r *kgo.Record) map[string]string {
	m := make(map[string]string, len(r.Headers))
	for _, h := range r.Headers {
		m[h.Key] = string(h.Value)
	}
	return m
}

// moreHeaders are those that no other column shows.
func moreHeaders(r *kgo.Record) string {
	var list []string
	for _, h := range r.Headers {
		switch h.Key {
		case "event-type", "aggregate-type", "aggregate-id", "idempotency-key", "walrelay-lsn", "walrelay-seq", "walrelay-source":
			continue
		}
		value := string(h.Value)
		if len(value) == 36 { // a uuid
			value = value[:8] + "…"
		}
		list = append(list, h.Key+"="+value)
	}
	slices.SortStableFunc(list, func(a, b string) int { return len(a) - len(b) })
	return strings.Join(list, " ")
}

// logLine is a line of the relay's JSON log, for people.
func logLine(v *view, line string) string {
	keys := json.NewDecoder(strings.NewReader(line))
	keys.UseNumber()
	var level, message string
	var fields []string
	if t, err := keys.Token(); err != nil || t != json.Delim('{') {
		return "  " + v.paint(dim, "walrelay:") + " " + line
	}
	for keys.More() {
		key, err := keys.Token()
		var value any
		if err == nil {
			err = keys.Decode(&value)
		}
		if err != nil {
			break
		}
		switch key {
		case "level":
			level = fmt.Sprint(value)
		case "message":
			message = fmt.Sprint(value)
		case "time":
		default:
			fields = append(fields, fmt.Sprintf("%v=%v", key, value))
		}
	}
	paint := plain
	if level != "info" {
		paint, message = yellow, level+": "+message
	}
	text := "  " + v.paint(dim, "walrelay:") + " " + v.paint(paint, message)
	for i, line := range fold(strings.Join(fields, " "), v.room(len(message)+14), v.room(6)) {
		if i > 0 {
			text += "\n     "
		}
		text += " " + v.paint(dim, line)
	}
	return text
}

// fold breaks a text at spaces: the first line to one width, the others to another.
func fold(text string, first, others int) (lines []string) {
	for width := first; len(text) > width; width = others {
		at := strings.LastIndexByte(text[:max(width, 0)], ' ')
		if at < 0 {
			at = 0
			if width == others { // a word that is too long for any line
				break
			}
		}
		lines, text = append(lines, text[:at]), strings.TrimLeft(text[at:], " ")
	}
	return append(lines, text)
}
