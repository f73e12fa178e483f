package demo

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

// A style is the parameter of a terminal's SGR sequence.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	cyan   style = "36"
)

// view is the terminal: lines that scroll by, and on a terminal a footer below them that
// is drawn again in place. Elsewhere there are plain lines only. It may be used from
// several goroutines.
type view struct {
	Live bool // a terminal: there is a footer
	out  *os.File

	mu      sync.Mutex
	colours bool
	footer  []string
	drawn   int // lines of the footer on the screen
}

func newView(out *os.File) *view {
	live := columns(out) > 0 && os.Getenv("TERM") != "dumb"
	return &view{Live: live, out: out, colours: live && os.Getenv("NO_COLOR") == ""}
}

// columns is the terminal's width; 0: not a terminal.
func columns(f *os.File) int {
	var size struct{ rows, columns, x, y uint16 }
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return 0
	}
	if size.columns == 0 {
		return 80
	}
	return int(size.columns)
}

// room is what is left of a line behind its first characters.
func (v *view) room(used int) int {
	if !v.Live {
		return 1 << 20
	}
	return columns(v.out) - 1 - used
}

// paint styles s, where there are colours.
func (v *view) paint(s style, text string) string {
	if !v.colours || s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// say prints one line.
func (v *view) say(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.draw(fmt.Sprintf(format, args...))
}

// title prints the heading of an act.
func (v *view) title(format string, args ...any) {
	v.say("\n%s", v.paint(bold, "── "+fmt.Sprintf(format, args...)+" "+strings.Repeat("─", 8)))
}

// status replaces the footer; without a terminal it does nothing.
func (v *view) status(lines ...string) {
	if !v.Live {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.footer = lines
	v.draw("")
}

// close removes the footer.
func (v *view) close() { v.status() }

// draw is one write, so that nothing flickers: away with the footer, the new line, the
// footer again. Above a footer lines are cut at the terminal's width: a wrapped one would be
// two.
func (v *view) draw(text string) {
	var b strings.Builder
	if v.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r\x1b[J", v.drawn)
	}
	width := columns(v.out) - 1
	if text != "" {
		for line := range strings.SplitSeq(text, "\n") {
			if len(v.footer) > 0 {
				line = cut(line, width)
			}
			b.WriteString(line + "\n")
		}
	}
	for _, line := range v.footer {
		b.WriteString(cut(line, width) + "\n")
	}
	v.drawn = len(v.footer)
	v.out.WriteString(b.String())
}

// cut shortens a styled line to a number of visible characters.
func cut(line string, width int) string {
	visible, escape := 0, false
	for i, r := range line {
		switch {
		case escape:
			escape = r != 'm'
		case r == '\x1b':
			escape = true
		case visible == width-1 && visibleLength(line[i:]) > 1:
			return line[:i] + "…\x1b[0m"
		default:
			visible++
		}
	}
	return line
}

func visibleLength(line string) (n int) {
	escape := false
	for _, r := range line {
		switch {
		case escape:
			escape = r != 'm'
		case r == '\x1b':
			escape = true
		default:
			n++
		}
	}
	return n
}
