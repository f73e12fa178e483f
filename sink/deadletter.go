package sink

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/walrelay/walrelay/decode"
)

const (
	// deadLetterDefault is the dead-letter topic of a topic, lastResort that of events
	// whose own topic must not be built upon: rows are input, not trusted.
	deadLetterDefault = "{topic}.DLT"
	lastResort        = "walrelay.DLT"
)

// deadLetter is the record that is published in the place of an event that can't be:
// the same key, the value if it fits, the event's headers, and why.
type deadLetter struct {
	event   decode.Event
	dieted  int  // how much was left away to make it fit
	redated bool // the dead-letter topic refused its timestamp
}

// park makes event i a dead letter.
func (p *Producer) park(pr *Prepared, i int, reason string) {
	ev := &pr.events[i]
	d := &deadLetter{event: *ev}
	d.event.Topic = p.deadLetterTopic(ev.Topic)
	d.event.Partition = -1 // what the row chose is meant for its own topic
	d.event.Poison = nil
	h := ev.Headers
	add := func(name string, value []byte) {
		if !hasHeader(h, name) {
			h.Add(name, value)
		}
	}
	if ev.ID != nil {
		add("event-id", ev.ID)
	}
	if ev.Commit != 0 { // events read from the table have no place in the WAL
		add("walrelay-lsn", []byte(ev.Commit.String()))
		add("walrelay-seq", strconv.AppendUint(nil, ev.Seq, 10))
	}
	h.Add("walrelay-error", []byte(reason))
	h.Add("walrelay-original-topic", []byte(ev.Topic))
	d.event.Headers = h
	if pr.parked == nil {
		pr.parked = make(map[int]*deadLetter)
		p.log.Warn().Str("event_id", string(ev.ID)).Stringer("lsn", ev.Commit).Uint64("seq", ev.Seq).
			Str("topic", ev.Topic).Str("dead_letter_topic", d.event.Topic).Str("reason", reason).
			Msg("event can't be published: it goes to the dead-letter topic")
	}
	pr.parked[i] = d
}

// Dead letters keep the order of their events, whoever found out: the decoder, the topic's configuration or the
// broker, which is late. So they are held until nothing before them can become one any more, and taken
// back, to be planned again, when something does. Without dead letters this costs nothing.

// held reports whether b has to wait for what comes before its last event.
func (pr *Prepared) held(b *batch) bool {
	if !b.dead {
		return false
	}
	for _, s := range pr.shares {
		if s.waiting && s.first < b.last && pr.parked[s.first] == nil {
			return true
		}
		for _, r := range s.runs {
			for _, other := range r.queue {
				if other.dead {
					break // and what is behind it: nobody may wait for each other
				}
				if other.first < b.last {
					return true
				}
			}
		}
	}
	return false
}

// recall takes back the dead letters that were not sent yet.
func (pr *Prepared) recall() {
	if pr.parked == nil {
		return
	}
	for _, s := range pr.shares {
		for _, r := range s.runs {
			kept := r.queue[:0]
			for _, b := range r.queue {
				if b.dead && !b.sent {
					pr.unroute(b)
				} else {
					kept = append(kept, b)
				}
			}
			r.queue = kept
		}
	}
}

// slim leaves away what may be the reason that the dead letter is too large itself: first
// the value, then the event's own headers, then the key. It reports false when nothing is left.
func (d *deadLetter) slim() bool {
	d.dieted++
	ev := &d.event
	switch d.dieted {
	case 1:
		ev.Headers.Add("walrelay-value-omitted", size(ev.Value))
		ev.Value = nil
	case 2:
		var kept decode.Headers
		for name, value := range ev.Headers.All() {
			if string(name) == "event-id" || bytes.HasPrefix(name, []byte("walrelay-")) {
				kept.Add(string(name), value)
			}
		}
		ev.Headers = kept
	case 3:
		ev.Headers.Add("walrelay-key-omitted", size(ev.Key))
		ev.Key = nil
	default:
		return false
	}
	return true
}

// redate gives the dead letters of a batch the present time, and keeps what their rows
// said as a header. It reports false where that has been done before.
func (pr *Prepared) redate(b *batch) bool {
	changed := false
	for _, i := range pr.members(b) {
		if ev, d := pr.event(i); !d.redated {
			ev.Headers.Add("walrelay-original-timestamp", strconv.AppendInt(nil, ev.Timestamp, 10))
			ev.Timestamp = time.Now().UnixMilli()
			d.redated, changed = true, true
		}
	}
	return changed
}

// size says how many bytes are not there, so that nobody takes the record for a tombstone.
func size(p []byte) []byte { return strconv.AppendInt(nil, int64(len(p)), 10) }

func hasHeader(headers decode.Headers, name string) bool {
	for have := range headers.All() {
		if string(have) == name {
			return true
		}
	}
	return false
}

// deadLetterTopic returns where the dead letters of a topic go.
func (p *Producer) deadLetterTopic(topic string) string {
	if !strings.Contains(p.deadLetters, "{topic}") {
		return p.deadLetters
	}
	name := strings.ReplaceAll(p.deadLetters, "{topic}", topic)
	if !decode.LegalTopic(topic) || !p.allowed(topic) || !decode.LegalTopic(name) {
		return lastResort
	}
	return name
}
