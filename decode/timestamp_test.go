package decode

import (
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

func TestParseTime(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64
		ok   bool
	}{
		{"2026-01-02 03:04:05.678901+00", 1767323045678, true},
		{"2026-01-02 03:04:05+00", 1767323045000, true},
		{"2026-01-02 03:04:05.6+00", 1767323045600, true},
		{"2026-01-02 03:04:05.06789+00", 1767323045067, true},
		{"2026-01-02 08:34:05.678+05:30", 1767323045678, true},
		{"2026-01-01 23:34:05.678-03:30", 1767323045678, true},
		{"1900-01-01 00:53:28+00:53:28", -2208988800000, true},
		{"1969-12-31 23:59:59.999+00", -1, true},
		{"2000-02-29 00:00:00+00", 951782400000, true},
		{"2000-03-01 00:00:00+00", 951868800000, true},
		{"0001-01-01 00:00:00+00", -62135596800000, true},
		{"10000-01-01 00:00:00+00", 253402300800000, true},
		{"294276-12-31 23:59:59.999999+00", 9224318015999999, true},
		{"0044-03-15 12:00:00+00 BC", -1, true},
		{"infinity", -1, true},
		{"-infinity", -1, true},
		{"", 0, false},
		{"2026-01-02", 0, false},
		{"2026-01-02 03:04:05", 0, false},
		{"2026-01-02 03:04:05+0", 0, false},
		{"2026-01-02 03:04:05+00 AD", 0, false},
		{"2026-01-02 03:04:05.+00", 0, false},
		{"2026-01-02 03:04:05.1234567+00", 0, false},
		{"2026-01-02T03:04:05+00", 0, false},
		{"2026-13-02 03:04:05+00", 0, false},
		{"2026-00-02 03:04:05+00", 0, false},
		{"2026-01-00 03:04:05+00", 0, false},
		{"2026-01-02 25:04:05+00", 0, false},
		{"0000-01-02 03:04:05+00", 0, false},
		{"1000000-01-02 03:04:05+00", 0, false},
		{"2026-01-02 03:04:05+00:", 0, false},
		{"2026-01-02 03:04:05+00:00:00:00", 0, false},
		{"02.01.2026 03:04:05+00", 0, false},
	} {
		ms, ok := parseTime([]byte(c.text), true)
		if ok != c.ok || ok && ms != c.want {
			t.Errorf("%s: %d, %v; want %d", c.text, ms, ok, c.want)
		}
	}
	if ms, ok := parseTime([]byte("2026-01-02 03:04:05.678901"), false); !ok || ms != 1767323045678 {
		t.Errorf("without a zone: %d, %v", ms, ok)
	}
	if _, ok := parseTime([]byte("2026-01-02 03:04:05.678901+00"), false); ok {
		t.Error("a zone where there is none")
	}
}

func TestDays(t *testing.T) {
	for at := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC); at.Year() < 2500; at = at.AddDate(0, 0, 1) {
		if got := days(int64(at.Year()), int64(at.Month()), int64(at.Day())); got*86400 != at.Unix() {
			t.Fatalf("%s is day %d", at, got)
		}
	}
}

func TestAppendLSN(t *testing.T) {
	for _, lsn := range []pglogrepl.LSN{0, 1, 0x16B374D848, 0x100000000, 0xffffffff, 0xffffffffffffffff, 0x10000000000, 0xA0B0C0D0} {
		if got := string(appendLSN(nil, lsn)); got != lsn.String() {
			t.Errorf("%s, want %s", got, lsn)
		}
	}
}
