package replication

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
)

// statements are a script's, without comments, empty lines and line ends' spaces.
func statements(script string) (all []string) {
	var b strings.Builder
	for line := range strings.Lines(script) {
		if !strings.HasPrefix(line, "--") {
			b.WriteString(line)
		}
	}
	for s := range strings.SplitSeq(b.String(), ";\n\n") {
		if s = strings.TrimSuffix(strings.TrimSpace(s), ";"); s != "" {
			all = append(all, s)
		}
	}
	return all
}

// sql/publication.sql is what setup does.
func TestPublicationFileIsThePlan(t *testing.T) {
	file, err := os.ReadFile("../sql/publication.sql")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Table: Table{"public", "outbox_event"}, Publication: "walrelay", Slot: "walrelay"}
	steps, err := Plan(cfg, SetupOptions{CreateTable: true, Role: "walrelay"})
	if err != nil {
		t.Fatal(err)
	}
	var printed bytes.Buffer
	if err := WriteSQL(&printed, steps); err != nil {
		t.Fatal(err)
	}
	want, got := statements(printed.String()), statements(string(file))
	if len(want) != len(steps) || !slices.Equal(want, got) {
		t.Errorf("setup:\n%s\n\nthe file:\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}

// The order is part of the plan: a slot that is older than its publication never
// gets past the WAL in between. And names are quoted where they must be.
func TestPlan(t *testing.T) {
	cfg := Config{Table: Table{"App", "out'box"}, Publication: `P"ub`, Slot: "s1"}
	steps, err := Plan(cfg, SetupOptions{CreateTable: true, Role: "re-lay'"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		`CREATE SCHEMA IF NOT EXISTS "App"`,
		`CREATE TABLE IF NOT EXISTS "App"."out'box" (`,
		`CREATE PUBLICATION "P""ub" FOR TABLE "App"."out'box" WITH (publish = 'insert', publish_via_partition_root = true)`,
		`SELECT pg_create_logical_replication_slot('s1', 'pgoutput')`,
		`CREATE ROLE "re-lay'" LOGIN REPLICATION`,
		`'re-lay'''`,
		`GRANT USAGE ON SCHEMA "App" TO "re-lay'"`,
	} {
		if !strings.Contains(steps[i].SQL, want) {
			t.Errorf("step %d is %s, want %s", i, steps[i].SQL, want)
		}
	}
	if len(steps) != 7 {
		t.Errorf("%d steps", len(steps))
	}
	if _, err := Plan(cfg, SetupOptions{Role: strings.Repeat("r", 64)}); typeOf(err) != "setup" {
		t.Error(err)
	}
}

// The anchor is a copy of the slot, so it comes behind it; dropping it is a plan of its own.
func TestPlanOfTheAnchor(t *testing.T) {
	cfg := Config{Table: Table{"public", "o"}, Publication: "p", Slot: "s", ReplayRetain: 1}
	steps, err := Plan(cfg, SetupOptions{})
	if err != nil || len(steps) != 3 || steps[2].SQL != "SELECT pg_copy_logical_replication_slot('s', 's_anchor')" {
		t.Errorf("%+v, %v", steps, err)
	}
	steps, err = Plan(cfg, SetupOptions{DropAnchor: true, CreateTable: true})
	if err != nil || len(steps) != 1 || steps[0].SQL != "SELECT pg_drop_replication_slot('s_anchor')" {
		t.Errorf("%+v, %v", steps, err)
	}
	cfg.Slot = strings.Repeat("s", 57)
	if _, err := Plan(cfg, SetupOptions{}); typeOf(err) != "setup" {
		t.Error(err)
	}
}
