package nemesis

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

var relayFaults = []fault{
	{name: "relay killed", lane: relays, weight: 4, least: 0, most: 2 * time.Second, do: (*world).killRelay, repeats: true},
	{name: "relay killed while it starts", lane: relays, weight: 1, least: 0, most: 500 * time.Millisecond, do: (*world).killStarting, repeats: true},
	{name: "relay stopped in good order", lane: relays, weight: 2, least: 0, most: time.Second, do: (*world).stopRelay},
	{name: "relay paused", lane: relays, weight: 4, least: 200 * time.Millisecond, most: 10 * time.Second, do: (*world).pauseRelay},
	{name: "checkpoint's disk full", lane: relays, weight: 2, least: 200 * time.Millisecond, most: 5 * time.Second, do: (*world).fillCheckpoint, disk: true},
}

// active is the relay that streams, else the first one.
func (w *world) active() int {
	for i, r := range w.relays {
		if r.Running() && r.Ready(w.ctx) == nil {
			return i
		}
	}
	return 0
}

// aim picks a relay: mostly the one that streams.
func (w *world) aim(s Step) int {
	if s.A%4 == 0 {
		return s.B % len(w.relays)
	}
	return w.active()
}

func (w *world) killRelay(s Step) (func() error, error) {
	i := w.aim(s)
	w.expected[i] = false
	if err := w.relays[i].Kill(w.ctx); err != nil {
		return nil, err
	}
	return func() error { return w.startRelay(i) }, nil
}

func (w *world) killStarting(s Step) (func() error, error) {
	i := w.aim(s)
	for n := range 1 + s.B%3 {
		w.expected[i] = false
		if err := w.relays[i].Kill(w.ctx); err != nil {
			return nil, err
		}
		if err := w.startRelay(i); err != nil {
			return nil, err
		}
		w.pass(time.Duration(30+s.A*n) * time.Millisecond)
	}
	return nil, nil
}

// stopRelay sends SIGTERM. While other faults last, a stop may have to leave something
// unsaved; the exit code says so.
func (w *world) stopRelay(s Step) (func() error, error) {
	i := w.aim(s)
	w.expected[i] = false
	code, err := w.relays[i].Stop(w.ctx)
	switch {
	case err != nil:
		return nil, err
	case code == exitUndrained:
		w.mayRepeat()
	case code == -1 && len(w.relays[i].Log()) == w.logged[i]: // the signal came before the program had begun
	case code != 0:
		w.violated("G8: relay %d, stopped in good order, exits with %d: %s", i, code, lastLine(w.relays[i].Log()))
	}
	return func() error { return w.startRelay(i) }, nil
}

// exitUndrained is the exit code of a stop that had to leave something in flight or unsaved.
const exitUndrained = 14

// pauseRelay is SIGSTOP. When it lasts, Postgres gives the slot to whoever asks for it.
func (w *world) pauseRelay(s Step) (func() error, error) {
	i := w.aim(s)
	if len(w.relays) > 1 {
		w.mayRepeat()
	}
	r := w.relays[i]
	if err := r.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	return func() error { return r.Signal(syscall.SIGCONT) }, nil
}

func (w *world) startRelay(i int) error {
	w.expected[i], w.logged[i] = true, len(w.relays[i].Log())
	return w.relays[i].Start()
}

func (w *world) fillCheckpoint(Step) (func() error, error) { return fill(w.state) }

// fill leaves no byte free on the disk of a folder.
func fill(dir string) (end func() error, err error) {
	name := filepath.Join(dir, "ballast")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	end = func() error { return os.Remove(name) }
	for block := make([]byte, 1<<20); len(block) > 0; {
		n, err := f.Write(block)
		switch {
		case errors.Is(err, syscall.ENOSPC):
			block = block[:min(n, len(block)/2)]
			if n == 0 {
				return end, nil
			}
		case err != nil:
			return nil, errors.Join(fmt.Errorf("fill %s: %w", dir, err), end())
		}
	}
	return end, nil
}
