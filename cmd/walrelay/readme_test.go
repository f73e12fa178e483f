package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// optionTable is the README's list of options, as the binary declares them.
func optionTable() string {
	var table strings.Builder
	group := ""
	for _, o := range newSettings(new(bytes.Buffer)).options {
		if o.group != group {
			group = o.group
			fmt.Fprintf(&table, "\n| %s | default | |\n|---|---|---|\n", strings.ToUpper(group[:1])+strings.ToLower(group[1:]))
		}
		name, text := strings.TrimSpace("--"+o.name+" "+o.arg), o.usage
		if o.list {
			text += "; repeatable"
		}
		def := "–"
		if o.shown != "" {
			def = o.shown
		} else if o.def != "" {
			def = "`" + o.def + "`"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", name, def, text)
	}
	return table.String()
}

// The README's tables of options are what the binary declares.
func TestReadmeListsEveryOption(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(readme), "<!-- options: cmd/walrelay compares this with what the binary declares -->\n")
	section, _, end := strings.Cut(after, "\n`setup` also takes")
	if !ok || !end {
		t.Fatal("README.md has no section of options")
	}
	if want := optionTable(); section != want {
		t.Errorf("README.md and the declared options differ; the README should have\n%s", want)
	}
}

// The README's table of exit codes has a row for each of the binary's.
func TestReadmeListsEveryExitCode(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(readme), "## Exit codes")
	section, _, _ := strings.Cut(after, "\n## ")
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(section, -1) {
		got = append(got, m[1])
	}
	codes := []int{exitOK, exitFailed, exitUsage, exitContinuity, exitPoison, exitAuth, exitMapping, exitDrain}
	if fmt.Sprint(got) != fmt.Sprint(codes) {
		t.Errorf("README.md lists %v, the binary has %v", got, codes)
	}
}

// Every environment variable of ours that the README names exists.
func TestReadmeNamesNoUnknownVariable(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, o := range newSettings(new(bytes.Buffer)).options {
		known[o.env()] = true
	}
	for _, name := range regexp.MustCompile(`WALRELAY_[A-Z_]+`).FindAllString(string(readme), -1) {
		if !known[name] {
			t.Errorf("README.md names %s, which is not read", name)
		}
	}
}
