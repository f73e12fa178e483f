package sim

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// timeline is what happened, for people. Lines are rendered only when they are read.
type timeline struct {
	mu    sync.Mutex
	began time.Time
	lines []line
}

type line struct {
	at     time.Time
	format string
	args   []any
}

// maxLines keeps the timeline of a run that spins in bounds; the newest are kept.
const maxLines = 20_000

func (t *timeline) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) >= maxLines {
		t.lines = append(t.lines[:0], t.lines[maxLines/2:]...)
	}
	t.lines = append(t.lines, line{time.Now(), format, args})
}

func (t *timeline) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	for _, l := range t.lines {
		fmt.Fprintf(&b, "%10.4f  ", l.at.Sub(t.began).Seconds())
		fmt.Fprintf(&b, l.format+"\n", l.args...)
	}
	return b.String()
}
