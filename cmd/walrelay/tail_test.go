package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/relay"
)

func tailEvent(value string) *decode.Event {
	return &decode.Event{
		Topic: "outbox.event.order", Key: []byte("order-1"), Value: []byte(value), ID: []byte("e1"), Timestamp: 1772366400123, Partition: -1,
		Commit: 0x1968A38, Seq: 2,
		Headers: decode.NewHeaders(decode.Header{Key: "event-id", Value: []byte("e1")}, decode.Header{Key: "trace", Value: []byte("t\x1b[2J")}, decode.Header{Key: "none"}),
	}
}

// shown is what a tail writes about one event.
func shown(t *testing.T, asJSON bool, payload int, ev *decode.Event) string {
	t.Helper()
	var out bytes.Buffer
	tail := tail{screen: newScreen(&out, false), out: &out, json: asJSON, payload: payload}
	if err := tail.show(ev, []byte("OrderPaid")); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestTailPage(t *testing.T) {
	const first = "12:00:00.123  outbox.event.order  order-1  OrderPaid  0/1968A38+2  e1\n    trace=t�[2J  none (null)\n"
	poisoned := tailEvent("{}")
	poisoned.Poison = &decode.PoisonError{Reason: "the topic is not allowed"}
	tombstone := tailEvent("")
	tombstone.Value = nil
	for _, c := range []struct {
		ev      *decode.Event
		payload int
		want    string
	}{
		{tailEvent(`{"id":
4711}`), payloadAll, "    {\"id\": 4711}\n"},
		{tailEvent("äbc"), 1, "     … of 4 B\n"},
		{tailEvent("äbc"), 2, "    ä … of 4 B\n"},
		{tailEvent("secret"), 0, ""},
		{tailEvent("\xff\x00"), payloadAll, "    base64 /wA=\n"},
		{tombstone, payloadAll, "    (tombstone)\n"},
		{poisoned, payloadAll, "    can't be published: the topic is not allowed\n    {}\n"},
	} {
		if got := shown(t, false, c.payload, c.ev); got != first+c.want {
			t.Errorf("got\n%s\nwant\n%s", got, first+c.want)
		}
	}
}

// Scripts read this: a name that changes breaks them.
func TestTailJSON(t *testing.T) {
	const head = `{"lsn":"0/1968A38","seq":2,"topic":"outbox.event.order","partition":null,"key":"order-1","event_id":"e1","event_type":"OrderPaid","timestamp":"2026-03-01T12:00:00.123Z",` +
		`"headers":[{"name":"event-id","value":"e1"},{"name":"trace","value":"t\u001b[2J"},{"name":"none","value":null}],`
	for _, c := range []struct {
		value   string
		payload int
		want    string
	}{
		{`{"a":"<"}`, payloadAll, `"payload_bytes":9,"payload":"{\"a\":\"<\"}","payload_base64":null,"payload_cut":false,"poison":""}`},
		{`{"a":1}`, 3, `"payload_bytes":7,"payload":"{\"a","payload_base64":null,"payload_cut":true,"poison":""}`},
		{`{"a":1}`, 0, `"payload_bytes":7,"payload":null,"payload_base64":null,"payload_cut":true,"poison":""}`},
		{"\xff", payloadAll, `"payload_bytes":1,"payload":null,"payload_base64":"/w==","payload_cut":false,"poison":""}`},
	} {
		if got := shown(t, true, c.payload, tailEvent(c.value)); got != head+c.want+"\n" {
			t.Errorf("got\n%s\nwant\n%s", got, head+c.want)
		}
	}
}

func TestTailCounts(t *testing.T) {
	var out bytes.Buffer
	tail := tail{screen: newScreen(&out, false), out: &out, left: 2}
	if err := tail.show(tailEvent("1"), nil); err != nil {
		t.Fatal(err)
	}
	if err := tail.show(tailEvent("2"), nil); !errors.Is(err, relay.ErrEnough) {
		t.Errorf("the second of two: %v", err)
	}
	if strings.Contains(out.String(), "OrderPaid") {
		t.Error("a type where there is none")
	}
}
