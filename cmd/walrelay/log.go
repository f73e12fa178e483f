package main

import (
	"io"
	"os"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// newLogger writes for people on a terminal and JSON lines elsewhere, unless the
// format says which.
func newLogger(w io.Writer, level, format string) zerolog.Logger {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	zerolog.TimestampFunc = func() time.Time { return time.Now().UTC() }
	zerolog.DurationFieldInteger = true // of milliseconds
	zerolog.ErrorMarshalFunc = func(err error) any { return shorten(err.Error()) }
	if !asJSON(w, format) {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: "15:04:05.000", NoColor: !isTerminal(w)}
	}
	parsed, err := zerolog.ParseLevel(level)
	if err != nil || level == "" {
		parsed = zerolog.InfoLevel // the flag is refused; its refusal has to be seen
	}
	return zerolog.New(w).Level(parsed).With().Timestamp().Logger()
}

// shorten bounds what servers may put into a line of ours.
func shorten(text string) string {
	const most = 2000
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + " …"
}

func asJSON(w io.Writer, format string) bool {
	return format == "json" || format == "auto" && !isTerminal(w)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
