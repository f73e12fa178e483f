package checker

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Layout says how a row becomes a record: the outbox contract, told a second time and
// independently of the relay.
type Layout struct {
	Topic   string            // template; "": outbox.event.{aggregate_type}
	Columns map[string]string // role → column, where it is not the default's
	Headers map[string]string // further headers: name → column
}

// The default column of each role is its own name, but for these.
var defaultColumns = map[string]string{"id": "event_id", "key": "aggregate_id", "type": "event_type", "timestamp": "created_at"}

// The standard headers and the role that each shows.
var standardHeaders = map[string]string{
	"event-id": "id", "event-type": "type", "aggregate-type": "aggregate_type", "aggregate-id": "key",
	"correlation-id": "correlation_id", "idempotency-key": "idempotency_key",
}

// row is a decoded row: column → text; an absent column and NULL are both nil.
type row map[string][]byte

func (l Layout) role(r row, role string) []byte {
	if c, ok := l.Columns[role]; ok {
		return r[c]
	}
	if c, ok := defaultColumns[role]; ok {
		return r[c]
	}
	return r[role]
}

// content tells what the record of a row must be. committed is the fallback timestamp.
func (l Layout) content(r row, committed time.Time) (Content, error) {
	key := l.role(r, "key")
	c := Content{
		ID: string(l.role(r, "id")), Topic: l.topic(r), Partition: -1,
		Key: string(key), NoKey: key == nil, Value: digest(l.role(r, "payload")), Timestamp: committed.UnixMilli(),
	}
	if p := l.role(r, "partition"); p != nil {
		if _, err := fmt.Sscan(string(p), &c.Partition); err != nil {
			return c, fmt.Errorf("checker: partition of event %s: %w", c.ID, err)
		}
	}
	// Infinite, pre-1970 and zoneless times fall back to the commit time.
	if t, err := time.Parse("2006-01-02 15:04:05.999999-07", string(l.role(r, "timestamp"))); err == nil && t.UnixMilli() >= 0 {
		c.Timestamp = t.UnixMilli()
	}
	headers, err := l.headers(r, c.ID)
	c.Headers = headers
	return c, err
}

func (l Layout) topic(r row) string {
	if t := l.role(r, "topic"); len(t) > 0 {
		return string(t)
	}
	template := l.Topic
	if template == "" {
		template = "outbox.event.{aggregate_type}"
	}
	for {
		before, rest, ok := strings.Cut(template, "{")
		if !ok {
			return template
		}
		name, after, _ := strings.Cut(rest, "}")
		template = before + string(l.role(r, name)) + after
	}
}

func (l Layout) headers(r row, id string) ([]Header, error) {
	set := map[string][]byte{}
	if column := l.role(r, "headers"); column != nil {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(column, &object); err != nil {
			return nil, fmt.Errorf("checker: headers of event %s are no object", id)
		}
		for name, raw := range object {
			value := []byte(raw)
			var s string
			switch {
			case string(raw) == "null":
				value = nil
			case json.Unmarshal(raw, &s) == nil:
				value = []byte(s)
			}
			if !strings.HasPrefix(strings.ToLower(name), "walrelay-") {
				set[name] = value
			}
		}
	}
	for name, column := range l.Headers {
		if v := r[column]; v != nil {
			set[name] = v
		}
	}
	for name, role := range standardHeaders {
		delete(set, name)
		if v := l.role(r, role); v != nil {
			set[name] = v
		}
	}
	if set["idempotency-key"] == nil {
		set["idempotency-key"] = []byte(id)
	}
	var list []Header
	for name, v := range set {
		list = append(list, Header{name, digest(v)})
	}
	slices.SortFunc(list, compareHeaders)
	return list, nil
}
