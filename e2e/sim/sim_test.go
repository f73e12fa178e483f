package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func env(name string, otherwise int) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		return otherwise
	}
	return n
}

func TestSimulation(t *testing.T) {
	for i := range env("SIM_SEEDS", 10) {
		i += env("SIM_FROM", 0)
		t.Run(fmt.Sprintf("seed=%d", i), func(t *testing.T) {
			t.Parallel()
			plan := New(uint64(i))
			if os.Getenv("SIM_CALM") != "" {
				plan.Faults = nil
			}
			if res := Run(t, plan); res.Failure != nil {
				t.Error(report(res))
			}
		})
	}
}

// report writes the whole story into a file and returns the end of it.
func report(res *Result) string {
	story := fmt.Sprintf("%s\n%s%s", res.Failure, res.Plan, res.Timeline)
	name := filepath.Join(os.TempDir(), fmt.Sprintf("walrelay-sim-%d.txt", res.Plan.Seed))
	if err := os.WriteFile(name, []byte(story), 0o600); err != nil {
		name = err.Error()
	}
	lines := strings.Split(strings.TrimSpace(res.Timeline.String()), "\n")
	return fmt.Sprintf("%s\n%s…\n%s\nwhole timeline: %s\nagain: SIM_SEED=%d go test ./sim -run TestSimulation", res.Failure, res.Plan,
		strings.Join(lines[max(0, len(lines)-env("SIM_LINES", 25)):], "\n"), name, res.Plan.Seed)
}
