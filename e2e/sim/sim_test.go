package sim

import (
	"fmt"
	"os"
	"strconv"
	"testing"
)

func seeds(name string, otherwise int) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		return otherwise
	}
	return n
}

func TestSimulation(t *testing.T) {
	for i := range seeds("SIM_SEEDS", 10) {
		t.Run(fmt.Sprintf("seed=%d", i), func(t *testing.T) {
			plan := New(uint64(i))
			plan.Faults = nil
			res := Run(t, plan)
			if res.Failure != nil {
				t.Errorf("%s\n%s%s", res.Failure, res.Plan, res.Timeline)
			}
			t.Logf("took %s, %d events, %d repeats", res.Took, res.Events, res.Repeats)
		})
	}
}
