package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/walrelay/walrelay/relay"
)

// showProgress tells how far a replay has come, until stop: a line that is drawn again and
// again on a terminal, else one of the log now and then.
func showProgress(w io.Writer, log zerolog.Logger, progress func() relay.ReplayProgress) (stop func()) {
	terminal := isTerminal(w)
	every := 10 * time.Second
	if terminal {
		every = 200 * time.Millisecond
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		began, first := time.Now(), progress().Events
		for {
			select {
			case <-done:
				if terminal {
					fmt.Fprint(w, clearLine)
				}
				return
			case <-tick.C:
			}
			p := progress()
			if p.Limit == 0 {
				continue // not known yet
			}
			if terminal {
				fmt.Fprint(w, clearLine+progressLine(p, float64(p.Events-first)/time.Since(began).Seconds()))
				continue
			}
			log.Info().Stringer("position", p.At).Stringer("limit", p.Limit).Uint64("events", p.Events).Msg("replaying")
		}
	})
	return func() { close(done); wg.Wait() }
}

const clearLine = "\r\x1b[K"

// progressLine has room on 80 columns.
func progressLine(p relay.ReplayProgress, rate float64) string {
	const width = 24
	part := 1.0
	if p.Limit > p.From {
		part = min(max(float64(p.At-min(p.From, p.At))/float64(p.Limit-p.From), 0), 1)
	}
	full := int(part * width)
	return fmt.Sprintf("[%s%s] %3.0f %%  %d events, %.0f/s, at %s", strings.Repeat("#", full), strings.Repeat(".", width-full), part*100, p.Events, rate, p.At)
}
