package nemesis

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/walrelay/walrelay/e2e/harness"
)

func TestMain(m *testing.M) {
	if _, err := harness.Binary(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	harness.RemoveBinary()
	os.Exit(code)
}

func env(name string, otherwise int) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		return otherwise
	}
	return n
}

// G1 to G8 under faults of every kind at once, on real servers. NEMESIS is for how many
// seconds, NEMESIS_SEED, NEMESIS_POSTGRES, NEMESIS_BROKERS and NEMESIS_RELAYS choose one
// run, WALRELAY_LONG=1 makes it one for each version and both sizes of the cluster.
func TestNemesis(t *testing.T) {
	base := Plan{
		Seed: uint64(env("NEMESIS_SEED", 1)), For: time.Duration(env("NEMESIS", 8)) * time.Second,
		Postgres: os.Getenv("NEMESIS_POSTGRES"), Brokers: env("NEMESIS_BROKERS", 1), Relays: env("NEMESIS_RELAYS", 2), Disks: root(),
	}
	if base.Postgres == "" {
		base.Postgres = os.Getenv("WALRELAY_E2E_POSTGRES")
	}
	plans := []Plan{base}
	if os.Getenv("WALRELAY_LONG") == "1" && os.Getenv("NEMESIS") == "" {
		plans = nil
		for i, version := range []string{"15", "16", "17", "18"} {
			for _, brokers := range []int{1, 3} {
				p := base
				p.Seed, p.For, p.Postgres, p.Brokers, p.Relays = base.Seed+uint64(i), time.Minute, version, brokers, 1+(i+brokers/3)%2
				plans = append(plans, p)
			}
		}
	}
	for _, plan := range plans {
		t.Run(fmt.Sprintf("seed %d, Postgres %s, %d brokers, %d relays", plan.Seed, plan.Postgres, plan.Brokers, plan.Relays), func(t *testing.T) {
			run(t, NewPlan(plan))
		})
	}
}

func run(t *testing.T, plan Plan) {
	ctx, cancel := context.WithTimeout(t.Context(), plan.For+10*time.Minute)
	defer cancel()
	for _, s := range plan.Skipped() {
		t.Logf("left out: %s", s)
	}
	report, err := Run(ctx, plan, t.Logf)
	dir := os.Getenv("NEMESIS_REPORTS")
	if dir == "" {
		dir = os.TempDir()
	}
	if file, err := report.Write(dir); err != nil {
		t.Error(err)
	} else {
		t.Logf("report: %s", file)
	}
	if err != nil {
		t.Errorf("%v\nagain: %s", err, plan.again())
	} else if err := report.Err(); err != nil {
		t.Error(err)
	} else {
		t.Log(report)
	}
}

// The same seed makes the same plan, and every kind of fault is in some plan.
func TestPlan(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(40) {
		p := Plan{Seed: seed, For: time.Minute, Brokers: 3, Relays: 2, Disks: true}
		a, b := NewPlan(p), NewPlan(p)
		if fmt.Sprint(a) != fmt.Sprint(b) || len(a.Steps) < 15 {
			t.Fatalf("seed %d: %d steps, and %d", seed, len(a.Steps), len(b.Steps))
		}
		for _, s := range a.Steps {
			seen[s.Kind] = true
		}
	}
	for _, f := range faults {
		if !seen[f.name] {
			t.Errorf("no plan has %q", f.name)
		}
	}
}
