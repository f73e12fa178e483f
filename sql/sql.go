// Package sql has the SQL of this folder for Go programs that create their own tables.
package sql

import _ "embed"

// Inbox creates what package inbox needs, unless it is there.
//
//go:embed inbox.sql
var Inbox string
