package relay

import (
	"sync"
	"time"
)

// state is what readiness and metrics say of the relay.
type state struct {
	mu        sync.Mutex
	streaming bool
	reason    string    // why not
	saving    error     // why the checkpoint cannot be saved
	oldest    time.Time // commit time of the oldest event in flight; zero: none

	fault   string // the newest error of any side, also when it has passed
	faultAt time.Time
}

func (s *state) up() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streaming, s.reason, s.saving = true, "", nil
}

func (s *state) lost(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streaming, s.reason = false, "stopped"
	if err != nil {
		s.reason = err.Error()
		s.noteFault(err)
	}
}

// note keeps an error that ended nothing for who asks for the newest one.
func (s *state) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteFault(err)
}

// noteFault is note under the lock.
func (s *state) noteFault(err error) {
	if err != nil {
		s.fault, s.faultAt = err.Error(), time.Now()
	}
}

func (s *state) unsaved(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saving = err
	s.noteFault(err)
}

func (s *state) flying(oldest time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.oldest = oldest
}

func (s *state) oldestInFlight() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.oldest
}

func (s *state) isStreaming() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streaming
}

// Ready says whether the relay is streaming and able to deliver, and if not, why.
func (r *Relay) Ready() (ok bool, reason string) {
	r.state.mu.Lock()
	streaming, why, saving := r.state.streaming, r.state.reason, r.state.saving
	r.state.mu.Unlock()
	switch {
	case !streaming && why == "":
		return false, "starting"
	case !streaming:
		return false, why
	case saving != nil:
		return false, saving.Error()
	}
	return r.cfg.Producer.Healthy()
}
