package replication

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pglogrepl"
)

// SwitchPoint returns where timeline from was left on the way to timeline to: what
// was written to from beyond it is not part of to. It needs a connection of its own.
func SwitchPoint(ctx context.Context, cfg Config, from, to int32) (pglogrepl.LSN, error) {
	pc, err := cfg.parse()
	if err != nil {
		return 0, err
	}
	conn, _, err := connectStream(ctx, cfg, pc)
	if err != nil {
		return 0, err
	}
	defer hangUp(context.WithoutCancel(ctx), conn)
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	history, err := pglogrepl.TimelineHistory(ctx, conn, to)
	if err != nil {
		return 0, classify(fmt.Sprintf("read the history of timeline %d", to), err)
	}
	return switchPoint(history.Content, from, to)
}

// switchPoint reads a history file: a line for each ancestor, with its number, the
// LSN where it was left, and why.
func switchPoint(history []byte, from, to int32) (pglogrepl.LSN, error) {
	for line := range bytes.Lines(history) {
		f := bytes.Fields(line)
		if len(f) < 2 || string(f[0]) != strconv.Itoa(int(from)) {
			continue
		}
		return parseLSN(f[1])
	}
	return 0, &ContinuityError{
		Fault:  TimelineForked,
		Reason: fmt.Sprintf("replication: timeline %d does not descend from timeline %d", to, from),
		Remedy: "the server that was followed until now and this one have gone different ways; rows may be missing on this one",
	}
}
