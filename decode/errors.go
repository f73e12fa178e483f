package decode

import (
	"fmt"
	"strings"
)

// ProtocolError is returned for a message that pgoutput's protocol version 1
// does not allow. It never holds bytes of a row. The decoder must be started anew.
type ProtocolError struct {
	Type   byte // the message's type byte, 0 for an empty message
	Offset int  // where in the message it was noticed
	Reason string
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("decode: pgoutput message %q at byte %d: %s", e.Type, e.Offset, e.Reason)
}

// MappingError is returned when the table does not fit the mapping: waiting
// won't help, somebody has to change one of them.
type MappingError struct {
	Role   string // the role, or "header NAME" for a column named by --header
	Column string
	Table  string
	Reason string
	Remedy string // what to do
}

func (e *MappingError) Error() string {
	if e.Column == "" {
		return fmt.Sprintf("decode: table %s: %s; %s", e.Table, e.Reason, e.Remedy)
	}
	return fmt.Sprintf("decode: column %q of table %s (%s) %s; %s", e.Column, e.Table, e.Role, e.Reason, e.Remedy)
}

// ConfigError is returned by [New] for a setting that can't be used.
type ConfigError struct {
	Flag   string // as on the command line, with its value: --topic "…"
	Reason string
}

func (e *ConfigError) Error() string { return e.Flag + ": " + e.Reason }

func (e *PoisonError) Error() string {
	return fmt.Sprintf("decode: event %q (commit LSN %s, row %d) can't be published: %s", e.EventID, e.Commit, e.Seq, e.Reason)
}

func configError(flag, value, format string, args ...any) error {
	return &ConfigError{Flag: fmt.Sprintf("%s %q", flag, value), Reason: fmt.Sprintf(format, args...)}
}

// quoted makes text from a row safe and short enough for a log line.
func quoted(text string) string {
	const most = 64
	if len(text) > most {
		return fmt.Sprintf("%q (cut, %d bytes)", strings.ToValidUTF8(text[:most], "?"), len(text))
	}
	return fmt.Sprintf("%q", text)
}
