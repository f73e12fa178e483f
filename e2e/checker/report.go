package checker

import (
	"errors"
	"fmt"
	"strings"
)

// Report is the outcome of a comparison. Repeats are allowed, within their own rule:
// how many there may be is for the test to say.
type Report struct {
	Committed int // events
	Delivered int // events that are in Kafka at least once
	Records   int
	Repeats   int // records beyond the first of an event
	Rewinds   int // times at which a partition went back to an earlier event
	Again     []Spot
	Samples   int // of the confirmed LSN

	Lost           Finding // committed, not in Kafka
	Phantom        Finding // in Kafka, never committed
	Reordered      Finding // first publications against the commit order
	BrokenRun      Finding // repeats that skip events or stop before the newest one
	Late           Finding // repeats of a producer after another has taken its place: a relay that was paused and did not know
	WrongPlace     Finding // topic or partition
	WrongKey       Finding
	WrongValue     Finding
	WrongHeaders   Finding
	WrongTimestamp Finding
	WrongPosition  Finding // walrelay-lsn, walrelay-seq, walrelay-source
	ConfirmedAhead Finding // confirmed LSN beyond what could be read
}

// Spot is where a repeat lies.
type Spot struct {
	Place
	Offset int64
}

// Finding counts the violations of one rule and keeps the first few.
type Finding struct {
	Count    int
	Examples []string
}

const maxExamples = 5

func (f *Finding) add(format string, args ...any) {
	f.Count++
	if len(f.Examples) < maxExamples {
		f.Examples = append(f.Examples, fmt.Sprintf(format, args...))
	}
}

func (r *Report) findings() []struct {
	name string
	*Finding
} {
	return []struct {
		name string
		*Finding
	}{
		{"lost", &r.Lost}, {"phantom", &r.Phantom}, {"reordered", &r.Reordered}, {"broken runs", &r.BrokenRun}, {"late", &r.Late},
		{"wrong place", &r.WrongPlace}, {"wrong key", &r.WrongKey}, {"wrong value", &r.WrongValue},
		{"wrong headers", &r.WrongHeaders}, {"wrong timestamp", &r.WrongTimestamp},
		{"wrong position", &r.WrongPosition}, {"confirmed ahead", &r.ConfirmedAhead},
	}
}

// Err is nil if no rule is violated.
func (r *Report) Err() error {
	for _, f := range r.findings() {
		if f.Count > 0 {
			return errors.New(r.String())
		}
	}
	return nil
}

// String is one line of counts, then one for each rule that is violated.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d committed, %d delivered, %d lost, %d phantom, %d reordered, %d repeats in %d rewinds, %d samples",
		r.Committed, r.Delivered, r.Lost.Count, r.Phantom.Count, r.Reordered.Count, r.Repeats, r.Rewinds, r.Samples)
	for _, f := range r.findings() {
		if f.Count > 0 {
			fmt.Fprintf(&b, "\n  %s: %d\n    %s", f.name, f.Count, strings.Join(f.Examples, "\n    "))
		}
	}
	return b.String()
}
