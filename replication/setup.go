package replication

import (
	"context"
	"io"
)

// SetupOptions says what Setup creates.
type SetupOptions struct {
	CreateTable bool
	Role        string // "": no role
}

// Step is one named SQL statement of a setup.
type Step struct {
	Name string // what it makes: "table public.outbox_event"
	SQL  string
	Done bool   // already there
	Note string // what differs from a fresh install, or what must be run by hand
}

// Plan returns the statements of a fresh install, in order, without connecting.
func Plan(cfg Config, opts SetupOptions) ([]Step, error) { panic("not yet") }

// WriteSQL writes steps as a script for psql.
func WriteSQL(w io.Writer, steps []Step) error { panic("not yet") }

// Setup creates what is missing and returns what it found and did, also beside an error.
func Setup(ctx context.Context, cfg Config, opts SetupOptions) ([]Step, error) { panic("not yet") }
