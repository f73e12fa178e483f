package replication

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Finding is one line of a check.
type Finding struct {
	Name  string // what was looked at: stable, for scripts
	Level string // ok, warn or fail
	Text  string // what was found
	Mend  string // the SQL, command or option that mends it
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

// failed is a failure by an error of this package.
func (f *findings) failed(name string, err error) { *f = append(*f, Failed(name, err)) }

// Failed is the finding that an error of this package makes.
func Failed(name string, err error) Finding {
	var (
		continuity *ContinuityError
		setup      *SetupError
		auth       *AuthError
	)
	text, mend := err.Error(), ""
	switch {
	case errors.As(err, &continuity):
		text, mend = continuity.Reason, continuity.Remedy
		gap := "LSN"
		if continuity.From != 0 || continuity.To != 0 {
			gap = continuity.From.String()
			text += fmt.Sprintf("; in doubt: (%s, %s]", continuity.From, continuity.To)
		}
		if ways := continuity.Fault.commands(gap); mend == "" {
			mend = ways
		} else if ways != "" {
			mend += "; " + ways
		}
	case errors.As(err, &setup):
		text, mend = setup.Reason, setup.Remedy
	case errors.As(err, &auth):
		text, mend = auth.Op+": "+auth.Err.Error(), auth.Remedy
		if line := hbaLine(auth.Err.Error()); line != "" {
			mend = "add to pg_hba.conf, above lines that reject: " + line + " — then SELECT pg_reload_conf()"
		}
	}
	return Finding{Name: name, Level: "fail", Text: strings.TrimPrefix(text, "replication: "), Mend: mend}
}

var noHBA = regexp.MustCompile(`no pg_hba\.conf entry for (?:replication connection from )?host "([^"]+)", user "([^"]+)"(?:, database "([^"]+)")?, (no encryption|SSL encryption)`)

// hbaLine is the line of pg_hba.conf that a refusal asks for, "" if it is another
// refusal. A logical stream matches by its database.
func hbaLine(refusal string) string {
	m := noHBA.FindStringSubmatch(refusal)
	if m == nil {
		return ""
	}
	kind, database, bits := "hostssl", m[3], "/32"
	if m[4] == "no encryption" {
		kind = "host"
	}
	if database == "" {
		database = "replication"
	}
	if m[1] == "[local]" {
		return fmt.Sprintf("local  %s  %s  scram-sha-256", database, m[2])
	}
	if strings.Contains(m[1], ":") {
		bits = "/128"
	}
	if strings.Trim(m[1], "0123456789abcdef.:") != "" {
		bits = "" // a host name
	}
	return fmt.Sprintf("%s  %s  %s  %s%s  scram-sha-256", kind, database, m[2], m[1], bits)
}
