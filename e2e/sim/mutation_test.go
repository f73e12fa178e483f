package sim

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// quick are the mutations that every run plants; the others take SIM_MUTATIONS=all, or a
// part of a name.
var quick = []string{"confirm-before-ack", "resume-skips-a-row", "new-id-on-a-lost-answer"}

// TestMutations proves that the simulation, or a test of the package, notices every planted
// bug.
func TestMutations(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("builds and runs the simulation many times")
	}
	all, err := Mutations("mutations")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	want := os.Getenv("SIM_MUTATIONS")
	var table strings.Builder
	for _, m := range all {
		t.Run(m.Name, func(t *testing.T) {
			dir := t.TempDir()
			overlay, err := m.Overlay(root, dir)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case want == "all", want != "" && strings.Contains(m.Name, want), want == "" && slices.Contains(quick, m.Name):
				by := m.caught(t, root, dir, overlay)
				fmt.Fprintf(&table, "| %s | %s |\n", m.What, by)
				t.Logf("%s: %s", m.What, by)
			}
		})
	}
	if want != "" { // for DESIGN.md
		fmt.Printf("| planted bug | caught by |\n|---|---|\n%s", table.String())
	}
}

// caught builds and runs the tests with the bug in place, and returns how they failed.
func (m Mutation) caught(t *testing.T, root, dir, overlay string) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	folder, pkg := root, m.By
	if m.By == "sim" {
		folder, pkg = filepath.Join(root, "e2e"), "./sim"
	}
	binary := filepath.Join(dir, "mutated.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", overlay, "-o", binary, pkg)
	build.Dir = folder
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the mutated product doesn't build: %s", out)
	}
	run := exec.CommandContext(ctx, binary, "-test.timeout=1h")
	run.Dir = filepath.Join(folder, pkg)
	if m.By == "sim" {
		tests := "^(TestFound|TestHunt)$"
		if m.Scenario != "" {
			tests = "^TestFound$/^" + regexp.QuoteMeta(strings.ReplaceAll(m.Scenario, " ", "_")) + "$"
		}
		run.Args = append(run.Args, "-test.run="+tests, "-test.failfast")
		run.Env = append(os.Environ(), "SIM_HUNT="+fmt.Sprint(env("SIM_HUNT", 3000)))
	}
	out, err := run.CombinedOutput()
	if err == nil {
		t.Fatalf("nobody noticed: %s", m.What)
	}
	if m.By != "sim" {
		if failed := regexp.MustCompile(`--- FAIL: (\S+)`).FindSubmatch(out); failed != nil {
			return fmt.Sprintf("`%s` in `%s`", failed[1], strings.TrimPrefix(m.By, "./"))
		}
	} else if found := regexp.MustCompile(`hunted down: (.*)`).FindSubmatch(out); found != nil {
		return string(found[1])
	}
	t.Fatalf("it failed otherwise: %s", out)
	return ""
}

// TestHunt runs at most SIM_HUNT plans and says after how many the first one failed.
func TestHunt(t *testing.T) {
	n := env("SIM_HUNT", 0)
	if n == 0 {
		t.Skip("for TestMutations")
	}
	sweep(t, 0, 1, func(i int) bool { return i < n }, func(i int, res *Result) {
		caught(res.Failure, fmt.Sprintf("after %d seeds", i+1))
	})
}

// caught tells TestMutations of a failure.
func caught(f *Failure, when string) {
	if os.Getenv("SIM_HUNT") != "" {
		fmt.Printf("hunted down: simulation, %s, %s\n", f.Rule, when)
	}
}
