package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// env reads a number; without one it is otherwise.
func env(name string, otherwise int) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		return otherwise
	}
	return n
}

// TestSimulation runs SIM_SEEDS plans (1000), from SIM_FROM on (0), or the one of SIM_SEED,
// and SIM_TRIES times that one (20). G1 to G8.
func TestSimulation(t *testing.T) {
	if os.Getenv("SIM_SEED") != "" {
		for range env("SIM_TRIES", 20) {
			if once(t, uint64(env("SIM_SEED", 0))).Failure != nil {
				return
			}
		}
		return
	}
	seeds := 1000
	if testing.Short() || raceEnabled {
		seeds = 40
	}
	from, n := env("SIM_FROM", 0), env("SIM_SEEDS", seeds)
	sweep(t, uint64(from), 3, func(i int) bool { return i < n }, nil)
}

// TestSoak goes on for SIM_SOAK seconds, with seeds that no other run has used.
func TestSoak(t *testing.T) {
	seconds := env("SIM_SOAK", 0)
	if seconds == 0 {
		t.Skip("set SIM_SOAK to a number of seconds")
	}
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	sweep(t, uint64(time.Now().UnixMilli())*1000, 3, func(int) bool { return time.Now().Before(end) }, nil)
}

// sweep runs plans in as many goroutines as there are processors, until goesOn says
// otherwise, or enough have failed. A failure is reported, and told to found if that is set.
func sweep(t *testing.T, from uint64, enough int64, goesOn func(i int) bool, found func(i int, res *Result)) {
	var next, failed atomic.Int64
	t.Run("seeds", func(t *testing.T) {
		for k := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(k), func(t *testing.T) {
				t.Parallel()
				for failed.Load() < enough {
					i := int(next.Add(1) - 1)
					if !goesOn(i) {
						return
					}
					res := once(t, from+uint64(i))
					if res.Failure != nil && failed.Add(1) <= enough && found != nil {
						found(i, res)
					}
				}
			})
		}
	})
	t.Logf("%d plans", next.Load())
}

// once runs the plan of a seed and reports what it broke, if anything.
func once(t *testing.T, seed uint64) *Result {
	res := Run(t, New(seed))
	if res.Failure == nil {
		return res
	}
	whole := len(res.Plan.Faults) + len(res.Plan.Ops)
	if os.Getenv("SIM_SHRINK") != "" {
		res = Shrink(t, res, env("SIM_SHRINK", 5))
	}
	t.Error(report(res, whole))
	return res
}

// report writes the whole story into a file and returns the end of it.
func report(res *Result, whole int) string {
	name := filepath.Join(os.TempDir(), fmt.Sprintf("walrelay-sim-%d.txt", res.Plan.Seed))
	var ops strings.Builder
	for _, op := range res.Plan.Ops {
		fmt.Fprintln(&ops, " ", op)
	}
	story := fmt.Sprintf("%s\n%s%s\n%s", res.Failure, res.Plan, &ops, res.Timeline)
	if err := os.WriteFile(name, []byte(story), 0o600); err != nil {
		name = err.Error()
	}
	lines := strings.Split(strings.TrimSpace(res.Timeline.String()), "\n")
	return fmt.Sprintf("%s\n%s(of %d operations and faults)\n…\n%s\nwhole timeline: %s\nagain: SIM_SEED=%d go test ./sim -run TestSimulation; SIM_SHRINK=5 leaves away what it does not need",
		res.Failure, res.Plan, whole, strings.Join(lines[max(0, len(lines)-env("SIM_LINES", 25)):], "\n"), name, res.Plan.Seed)
}
