package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
)

// screen writes for people. Colour is for terminals, and NO_COLOR turns it off
// (https://no-color.org).
type screen struct {
	out     bytes.Buffer
	w       io.Writer
	colour  bool
	redraws bool // each page replaces the one before
}

type colour string

const (
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
	bold   colour = "1"
	dim    colour = "2"
)

func newScreen(w io.Writer, redraws bool) *screen {
	terminal := isTerminal(w)
	return &screen{w: w, colour: terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb", redraws: redraws && terminal}
}

// paint colours text, where there is colour.
func (s *screen) paint(c colour, text string) string {
	if !s.colour || text == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// line writes a labelled line. Empty text leaves it out.
func (s *screen) line(label, format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != "" {
		fmt.Fprintf(&s.out, "%s  %s\n", s.paint(dim, fmt.Sprintf("%-11s", label)), text)
	}
}

// flush shows the page.
func (s *screen) flush() error {
	page := s.out.String()
	if s.redraws {
		// Each line is cleared behind its text, and what was below: no flicker.
		page = "\x1b[H" + strings.ReplaceAll(page, "\n", "\x1b[K\n") + "\x1b[J"
	}
	_, err := io.WriteString(s.w, page)
	return err
}

// plain is text from elsewhere, in which nothing commands the terminal.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, text)
}

// bytesText is a size for people: 512 B, 633 KiB, 1.2 GiB.
func bytesText(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1024, 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if f < 10 {
		return fmt.Sprintf("%.1f %ciB", f, units[i])
	}
	return fmt.Sprintf("%.0f %ciB", f, units[i])
}

// countText groups digits: 1,234,567.
func countText(n int64) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// ageText is a duration for people: 0.3 s, 12 s, 4 min, 3 h, 2 days.
func ageText(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

// clockText is a moment of today without the date.
func clockText(t, now time.Time) string {
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}
