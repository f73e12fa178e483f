package sink

import "fmt"

// Finding is one line of a check.
type Finding struct {
	Name  string // what was looked at: stable, for scripts
	Level string // ok, warn or fail
	Text  string // what was found
	Mend  string // the command or option that mends it
}

// findings collects them.
type findings []Finding

func (f *findings) ok(name, format string, args ...any) {
	*f = append(*f, Finding{Name: name, Level: "ok", Text: fmt.Sprintf(format, args...)})
}

func (f *findings) warn(name, mend, format string, args ...any) {
	*f = append(*f, Finding{Name: name, Level: "warn", Text: fmt.Sprintf(format, args...), Mend: mend})
}

func (f *findings) fail(name, mend, format string, args ...any) {
	*f = append(*f, Finding{Name: name, Level: "fail", Text: fmt.Sprintf(format, args...), Mend: mend})
}
