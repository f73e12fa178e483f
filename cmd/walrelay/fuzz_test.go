package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
)

// FuzzLSN: what is taken is an LSN to Postgres' own client too, and prints as itself.
func FuzzLSN(f *testing.F) {
	for _, text := range []string{"16/B374D848", "0/0", "FFFFFFFF/FFFFFFFF", "1/2/3", "/", "+1/0", "0x1/2", "16/B374D848 "} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		lsn, err := parseLSN(text)
		if err != nil {
			return
		}
		theirs, err := pglogrepl.ParseLSN(text)
		if err != nil || theirs != lsn {
			t.Errorf("%q is %s, and to Postgres %s, %v", text, lsn, theirs, err)
		}
		if again, err := parseLSN(lsn.String()); err != nil || again != lsn {
			t.Errorf("%q prints as %s, which is %s, %v", text, lsn, again, err)
		}
	})
}

// FuzzSize: a size is positive, no less than its number, and never wraps.
func FuzzSize(f *testing.F) {
	for _, text := range []string{"1", "64KiB", "16MiB", "8589934591GiB", "8589934592GiB", "9223372036854775807", "-1", "1.5MiB", "KiB", "1KiBKiB"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseSize(text)
		if err != nil {
			return
		}
		number := strings.TrimRight(text, "KMGiB")
		if want := fmt.Sprint(n); n <= 0 || len(number) > len(want) && strings.TrimLeft(number, "0") != want {
			t.Errorf("%q is %d", text, n)
		}
	})
}

// secretText stands for a password in the fuzz tests.
const secretText = "s3cr3tpa55"

// FuzzPostgresURL: whatever is wrong with a connection string, its refusal does not tell the
// password that is in it, and one that is taken and has a password is known to have it.
func FuzzPostgresURL(f *testing.F) {
	for _, around := range [][2]string{
		{"postgres://u:", "@h/db"}, {"postgres://u:", "/db"}, {"postgres://u:", "%zz@h/db"}, {"postgres://u@h:", "/db"}, {"host=h password='", ""},
		{"host=h password=", " port=x"}, {"host=h connect_timeout=10;password=", ""}, {"host=h target_session_attrs=any,password=", ""},
		{"postgres://h/db?connect_timeout=1;password=", ""}, {"password=", `\`}, {"x`: ", "`: "}, {"postgres://[", "/db"}, {"host=h password = ", ""},
	} {
		f.Add(around[0], around[1])
	}
	for _, name := range []string{"PGHOST", "PGSERVICE", "PGPASSFILE", "PGSSLROOTCERT", "PGSERVICEFILE"} {
		f.Setenv(name, "")
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		for _, keyword := range []string{"service", "passfile", "ssl"} {
			if strings.Contains(before+after, keyword) { // names of files, which are read and named
				return
			}
		}
		var url string
		value := before + secretText + after
		if err := postgresURL(&url)(value); err != nil {
			if strings.Contains(err.Error(), secretText) {
				t.Errorf("%q: %v", value, err)
			}
		} else if url != value {
			t.Errorf("%q is stored as %q", value, url)
		}
	})
}

// FuzzConfigFile: no document panics; a refusal does not quote values, among which may be a
// password; and what is taken is a value of a known option.
func FuzzConfigFile(f *testing.F) {
	for _, text := range []string{"slot: walrelay\n", "kafka-brokers: [a:1, b:2]\n", "postgres-url: " + secretText + "\nnonsense: 1\n", "a: &a [*a]\n",
		"slot: !!binary " + secretText, "postgres-url: {a: " + secretText + "}\n", "? [" + secretText + "]\n: x\n", "slot: x\n---\nslot: y\n", "<<: {slot: x}\n",
		"postgres-url: \"" + secretText, "header: [a=b, [" + secretText + "]]\n", "slot: *" + secretText + "\n"} {
		f.Add([]byte(text))
	}
	options := newSettings(io.Discard).options
	f.Fuzz(func(t *testing.T, data []byte) {
		values, err := parseConfig(data, options)
		if err != nil {
			return
		}
		for name, list := range values {
			if len(list) == 0 || name == "config" {
				t.Errorf("%s: %q", name, list)
			}
		}
	})
}

// A value that the config file cannot have is not quoted: it may be the password.
func TestConfigFileRefusalsQuoteNoValue(t *testing.T) {
	for _, text := range []string{
		"postgres-url: {a: " + secretText + "}\n", "postgres-url: [" + secretText + "]\n", "postgres-url: \"" + secretText, "postgres-url: '" + secretText + "' x\n",
		"postgres-url: " + secretText + "\npostgres-url: " + secretText + "\n", "postgres-url: *" + secretText + "\n",
		"postgres-url: a\n\t" + secretText, "postgres-url: " + secretText + ": x\n",
	} {
		if _, err := parseConfig([]byte(text), newSettings(io.Discard).options); err == nil || strings.Contains(err.Error(), secretText) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
