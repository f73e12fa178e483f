package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Result is what a run brought.
type Result struct {
	Plan     Plan
	Failure  *Failure // nil: every guarantee held
	Timeline *timeline
	Took     time.Duration // virtual
	Events   int
	Repeats  int
}

// Run carries a plan out in a bubble of its own.
func Run(t *testing.T, plan Plan) (res *Result) {
	res = &Result{Plan: plan, Timeline: &timeline{}}
	dir, err := os.MkdirTemp(scratch(), "walrelay-sim-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	defer func() {
		if r := recover(); r != nil { // a goroutine is left over, or everything waits for nothing
			res.Failure = &Failure{Rule: "leak", Text: fmt.Sprintf("%v\n%s", r, stacks())}
		}
	}()
	synctest.Test(t, func(*testing.T) {
		time.Sleep(time.Until(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)))
		w := newWorld(plan, filepath.Join(dir, "checkpoint"))
		res.Timeline = &w.timeline
		w.run()
		w.close()
		if w.broken() == nil {
			res.Repeats = w.analyse()
		}
		res.Failure, res.Took, res.Events = w.broken(), time.Since(w.began), len(w.truth.order)
	})
	return res
}

// stacks are those of all goroutines in bubbles.
func stacks() string {
	buf := make([]byte, 1<<20)
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return !strings.Contains(s, "synctest bubble") }), "\n\n")
}

// scratch is a folder in memory where there is one: the checkpoint is saved for real.
func scratch() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}
