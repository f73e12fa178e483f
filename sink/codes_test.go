package sink

import (
	"strconv"
	"testing"
)

// G8: every code of the protocol has a row (list made by kafka-clients 4.3.1), and
// what the Java client calls retriable is never given up here.
func TestG8EveryErrorCodeHasARow(t *testing.T) {
	_, rows := table(t, "errors.tsv")
	if len(rows) != len(codes) {
		t.Errorf("%d rows, Kafka has %d codes", len(codes), len(rows))
	}
	for i, row := range rows {
		number, _ := strconv.Atoi(row[0])
		c := lookup(int16(number))
		if int(c.number) != number || c.name != row[1] || c != codes[i] {
			t.Errorf("code %d %s: found %d %s", number, row[1], c.number, c.name)
		}
		if c.why == "" {
			t.Errorf("%s: no reason", c.name)
		}
		if row[2] == "true" && c.action != retry && c.action != refresh {
			t.Errorf("%s is retriable, the table says %v", c.name, c.action)
		}
	}
}

// G8: a code that a later Kafka adds is tried again, never the end.
func TestG8UnknownCodeIsTriedAgain(t *testing.T) {
	for _, n := range []int16{-2, int16(len(codes)) + firstCode, 999} {
		if c := lookup(n); c.action != retry || c.number != n || c.name == "" {
			t.Errorf("code %d: %+v", n, c)
		}
	}
}

// G1: two answers mean that a batch is in the log, and no other.
func TestG1OnlyTwoCodesAreSuccess(t *testing.T) {
	for _, c := range codes {
		if want := c.name == "NONE" || c.name == "DUPLICATE_SEQUENCE_NUMBER"; (c.action == done) != want {
			t.Errorf("%s: %v", c.name, c.action)
		}
	}
}
