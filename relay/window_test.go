package relay

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
)

func TestFilterHasToBeMatchedInEachKind(t *testing.T) {
	ev := &decode.Event{Topic: "outbox.event.order", Key: []byte("k1")}
	for _, c := range []struct {
		filter Filter
		keeps  bool
	}{
		{Filter{}, true},
		{Filter{Keys: []string{"k0", "k1"}}, true},
		{Filter{Keys: []string{"k"}}, false},
		{Filter{EventTypes: []string{"Placed"}}, true},
		{Filter{EventTypes: []string{"placed"}}, false},
		{Filter{Topics: []string{"outbox.event.pay*", "*.order"}}, true},
		{Filter{Topics: []string{"order"}}, false},
		{Filter{Keys: []string{"k1"}, EventTypes: []string{"Placed"}, Topics: []string{"*"}}, true},
		{Filter{Keys: []string{"k1"}, EventTypes: []string{"Paid"}, Topics: []string{"*"}}, false},
	} {
		if got := c.filter.keeps(ev, []byte("Placed")); got != c.keeps {
			t.Errorf("%+v: %v", c.filter, got)
		}
	}
	if (Filter{Keys: []string{""}}).keeps(&decode.Event{}, nil) {
		t.Error("no key is not an empty key")
	}
}

// What breaks the continuity of the live stream skips nothing of a replay: it has its own
// error, with no way out that would move the live slot.
func TestReplayDoesNotSpeakOfAGap(t *testing.T) {
	err := outOfReach(fmt.Errorf("wrapped: %w", &replication.ContinuityError{Fault: replication.SlotLost, Reason: "lost", From: 1, To: 2}))
	if !errors.As(err, new(*ReachError)) || !fatal(err) || strings.Contains(err.Error(), "recover") {
		t.Errorf("got %v", err)
	}
	if other := errors.New("other"); outOfReach(other) != other {
		t.Error("another error was changed")
	}
}
