package main

import (
	"os"
	"runtime"

	"github.com/walrelay/walrelay/sink"
)

// boundProcessors gives the relay one processor, or two where a codec keeps one busy.
// GOMAXPROCS overrides it.
//
// Reader, sink and connection hand each batch on and then wait for the next: they take
// turns more than they overlap. With a second processor each hand-over wakes a sleeping
// thread and leaves another one looking for work, and that cost a third of all that the relay
// used. The processors that it does not take are left to Postgres and Kafka.
func boundProcessors(producer sink.Config) {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	n := 1
	if producer.Compression != "none" {
		n = 2
	}
	runtime.GOMAXPROCS(min(n, runtime.NumCPU()))
}
