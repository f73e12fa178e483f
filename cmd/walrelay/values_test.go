package main

import (
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
)

func TestParseSize(t *testing.T) {
	for v, want := range map[string]int{"1": 1, "65536": 65536, "64KiB": 64 << 10, "16MiB": 16 << 20, "1GiB": 1 << 30} {
		if got, err := parseSize(v); err != nil || got != want {
			t.Errorf("%q = %d, %v", v, got, err)
		}
	}
	for _, v := range []string{"", "0", "-1", "1.5MiB", "1MB", "1 MiB", "MiB", "1mib", "9223372036854775807KiB", "99999999999999999999"} {
		if got, err := parseSize(v); err == nil {
			t.Errorf("%q = %d", v, got)
		}
	}
}

func TestParseLSN(t *testing.T) {
	for v, want := range map[string]pglogrepl.LSN{"16/B374D848": 0x16_B374D848, "0/0": 0, "FFFFFFFF/FFFFFFFF": ^pglogrepl.LSN(0), "a/b": 0xA_0000000B} {
		if got, err := parseLSN(v); err != nil || got != want {
			t.Errorf("%q = %s, %v", v, got, err)
		}
	}
	for _, v := range []string{"", "1", "1/", "/1", "1/2x", "1/2/3", "100000000/0", "0/100000000", " 1/2", "-1/2", "0x1/2", "g/1"} {
		if got, err := parseLSN(v); err == nil {
			t.Errorf("%q = %s", v, got)
		}
	}
}

func TestLSNOrNow(t *testing.T) {
	var lsn pglogrepl.LSN
	var now bool
	set := lsnOrNow(&lsn, &now)
	if err := set("now"); err != nil || !now {
		t.Errorf("now: %v, %v", now, err)
	}
	if err := set("1/2"); err != nil || now || lsn != 1<<32|2 {
		t.Errorf("1/2: %s, %v, %v", lsn, now, err)
	}
	for v, want := range map[string]string{"0/0": "nothing", "later": "or now"} {
		if err := set(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", v, err)
		}
	}
}

func TestAddress(t *testing.T) {
	for _, v := range []string{"h:1", "10.0.0.1:9092", "[::1]:9092", "a.b-c:65535"} {
		if err := address(v, false); err != nil {
			t.Errorf("%q: %v", v, err)
		}
	}
	for _, v := range []string{"", "h", "h:", ":1", "h:0", "h:65536", "h:x", "kafka://h:1", "u@h:1", "::1:9092"} {
		if address(v, false) == nil {
			t.Errorf("%q was accepted", v)
		}
	}
	for _, v := range []string{":9464", "127.0.0.1:0"} {
		if err := address(v, true); err != nil {
			t.Errorf("listen on %q: %v", v, err)
		}
	}
}
