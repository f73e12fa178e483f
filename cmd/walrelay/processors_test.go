package main

import (
	"runtime"
	"testing"

	"github.com/walrelay/walrelay/sink"
)

func TestProcessorsAreBounded(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	for _, c := range []struct {
		env, codec string
		want       int
	}{{"", "none", 1}, {"", "zstd", min(2, runtime.NumCPU())}, {"3", "none", before}} {
		t.Setenv("GOMAXPROCS", c.env)
		runtime.GOMAXPROCS(before)
		boundProcessors(sink.Config{Compression: c.codec})
		if n := runtime.GOMAXPROCS(0); n != c.want {
			t.Errorf("GOMAXPROCS=%q, codec %s: %d processors, want %d", c.env, c.codec, n, c.want)
		}
	}
}
