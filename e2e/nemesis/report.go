package nemesis

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/walrelay/walrelay/e2e/checker"
	"github.com/walrelay/walrelay/e2e/workload"
)

// Report is what a run brought.
type Report struct {
	Plan       Plan
	Postgres   string // major version
	Load       workload.Stats
	Healed     time.Duration // from the last fault until all was delivered and confirmed
	Checked    *checker.Report
	Points     int // moments after which two batches may be repeated
	Violations []string

	log   func(format string, args ...any)
	mu    sync.Mutex
	steps []string
	kinds map[string]int
	left  int // steps for which there was no time
}

func newReport(plan Plan, log func(format string, args ...any)) *Report {
	return &Report{Plan: plan, log: log, kinds: map[string]int{}}
}

func (r *Report) step(s Step, begin, end time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kinds[s.Kind]++
	line := fmt.Sprintf("%8.3f to %8.3f  %s (%d, %d)", begin.Seconds(), end.Seconds(), s.Kind, s.A, s.B)
	r.steps = append(r.steps, line)
	r.log("%s", line)
}

func (r *Report) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left++
}

// Faults is how many faults there were; load is none.
func (r *Report) Faults() (n int) {
	for kind, k := range r.kinds {
		if !strings.HasSuffix(kind, " (refused)") && kind != "a large transaction" {
			n += k
		}
	}
	return n
}

// Err is nil if every guarantee held.
func (r *Report) Err() error {
	if r.Checked == nil || len(r.Violations) > 0 {
		return fmt.Errorf("%s", r)
	}
	return nil
}

func (r *Report) String() string {
	p := r.Plan
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d faults in %s, Postgres %s, %d brokers, %d relays: %v, healed after %s\n", p.Seed, r.Faults(), p.For, r.Postgres,
		p.Brokers, p.Relays, r.Checked, r.Healed.Round(time.Millisecond))
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "VIOLATED %s\n", v)
	}
	fmt.Fprintf(&b, "again: %s\n", p.again())
	return b.String()
}

// Write leaves the whole story in a file of a folder.
func (r *Report) Write(dir string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nload: %+v\n%d times two batches may have been repeated\n", r, r.Load, r.Points)
	if r.left > 0 {
		fmt.Fprintf(&b, "left out: %d steps, since those before took too long\n", r.left)
	}
	for _, s := range r.Plan.Skipped() {
		fmt.Fprintf(&b, "left out: %s\n", s)
	}
	for _, kind := range slices.Sorted(func(yield func(string) bool) {
		for k := range r.kinds {
			if !yield(k) {
				return
			}
		}
	}) {
		fmt.Fprintf(&b, "%4d × %s\n", r.kinds[kind], kind)
	}
	fmt.Fprintf(&b, "\n%s\n", strings.Join(r.steps, "\n"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	name := filepath.Join(dir, fmt.Sprintf("nemesis-%d-%s-%dx%d.txt", r.Plan.Seed, r.Postgres, r.Plan.Brokers, r.Plan.Relays))
	return name, os.WriteFile(name, []byte(b.String()), 0o644)
}
