package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// An option is declared once and is three things: a command-line flag, an
// environment variable, and a key of the config file. The first of them that is
// given wins, in this order.
//
// It is a cli.Flag and its own flag.Value: while the command line is read it only
// notes what was given, so that every source is parsed, checked and complained
// about in one place, and a secret is echoed in none.
type option struct {
	name  string
	group string // heading in --help
	arg   string // what the value is; "" = a switch
	def   string // applied when no source gives a value
	shown string // the default in words, where it is computed elsewhere
	usage string

	list   bool // may be repeated; any value is split at its commas
	secret bool // the value is shown nowhere
	local  bool // of one command: neither environment variable nor key

	set func(value string) error // stores a checked value; for a list called once for each

	given []string // from the command line
	isSet bool     // by any source
	argv  bool     // by the command line
}

// usageError is what only a changed command line, environment or config file mends.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// env is the option's environment variable: --batch-bytes is WALRELAY_BATCH_BYTES.
func (o *option) env() string {
	return "WALRELAY_" + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
}

// resolve stores the value of the first source that has one. An empty environment
// variable counts as absent: that is how compose files and unit files unset one.
func (o *option) resolve(file map[string][]string, path string) error {
	values, from := o.given, "--"+o.name
	o.argv = len(values) > 0
	if env := os.Getenv(o.env()); len(values) == 0 && !o.local && env != "" {
		values, from = []string{env}, o.env()
	}
	if fromFile, ok := file[o.name]; len(values) == 0 && ok {
		values, from = fromFile, path+": "+o.name
	}
	o.isSet = len(values) > 0
	if !o.isSet {
		if o.def == "" {
			return nil
		}
		values, from = []string{o.def}, "default of --"+o.name
	}
	if o.list {
		values = strings.Split(strings.Join(values, ","), ",")
	} else {
		values = values[len(values)-1:]
	}
	for _, value := range values {
		value = strings.TrimSpace(value)
		if err := o.set(value); err != nil {
			if o.secret {
				return usagef("%s: %v", from, err)
			}
			return usagef("%s %q: %v", from, value, err)
		}
	}
	return nil
}

// Apply and the methods below make an option a cli.Flag that --help can show.
func (o *option) Apply(set *flag.FlagSet) error { set.Var(o, o.name, o.usage); return nil }
func (o *option) Names() []string               { return []string{o.name} }
func (o *option) IsSet() bool                   { return o.isSet }
func (o *option) IsVisible() bool               { return true }
func (o *option) GetCategory() string           { return o.group }
func (o *option) IsBoolFlag() bool              { return o.arg == "" }

// Set is flag.Value's: it only notes.
func (o *option) Set(value string) error { o.given = append(o.given, value); return nil }

// String is the option's line in --help: never a value that was given.
func (o *option) String() string {
	line := strings.TrimSpace("--"+o.name+" "+o.arg) + "\t" + o.usage
	if o.list {
		line += "; repeatable"
	}
	if d := o.defaultText(); d != "" {
		line += " (default: " + d + ")"
	}
	if !o.local {
		line += " [$" + o.env() + "]"
	}
	return line
}

func (o *option) defaultText() string {
	if o.shown != "" {
		return o.shown
	}
	return o.def
}

// asFlags is the options as the CLI library takes them.
func asFlags(options []*option) []cli.Flag {
	flags := make([]cli.Flag, len(options))
	for i, o := range options {
		flags[i] = o
	}
	return flags
}

// nearest is the option whose name a mistyped one most likely means.
func nearest(flags []cli.Flag, name string) string {
	name = strings.ReplaceAll(strings.ToLower(strings.TrimLeft(name, "-")), "_", "-")
	return strings.TrimPrefix(cli.SuggestFlag(flags, name, true), "--")
}

// mistypedEnv lists the environment variables that are one or two letters away
// from an option's, so that a typing error does not pass for a default. Others with our prefix
// are somebody else's: Kubernetes sets WALRELAY_SERVICE_HOST by itself.
func mistypedEnv(options []*option, environ []string) (warnings []string) {
	var known []string
	for _, o := range options {
		known = append(known, o.env())
	}
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, "WALRELAY_") || slices.Contains(known, name) {
			continue
		}
		for _, k := range known {
			if distance(name, k) <= 2 {
				warnings = append(warnings, fmt.Sprintf("%s is not read; did you mean %s?", name, k))
				break
			}
		}
	}
	return warnings
}

// distance is the number of letters to add, drop or change to get from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
