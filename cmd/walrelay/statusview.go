package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/walrelay/walrelay/relay"
)

// report writes a report as a page.
func (s *screen) report(r *relay.Report) error {
	tone, state := s.headline(r)
	fmt.Fprintf(&s.out, "%s  %s   %s\n", s.paint(bold, "walrelay"), s.paint(tone, state), s.paint(dim, r.Time.Format(time.DateTime)+" UTC"))
	srv := r.Server
	version, _, _ := strings.Cut(srv.Version, " ")
	s.line("Postgres", "%s, database %s, system id %s, timeline %d", version, srv.Database, srv.SystemID, srv.Timeline)
	if r.Slot != nil {
		s.line("Slot", "%s, %s", r.Slot.Name, s.holder(r))
		s.line("Confirmed", "%s", r.Slot.Confirmed)
	}
	s.line("Checkpoint", "%s", checkpointText(r))
	if r.Delivered != 0 {
		s.line("Delivered", "%s", r.Delivered)
	}
	s.line("WAL end", "%s", srv.WALEnd)
	s.line("Lag", "%s", s.lag(r))
	if r.Slot != nil {
		s.line("WAL kept", "%s", s.headroom(r.Slot))
	}
	if w := r.Replay; w != nil {
		if w.Lost {
			s.line("Replay", "%s", s.paint(red, "nothing: the server gave the anchor "+w.Anchor+" up"))
		} else {
			s.line("Replay", "from %s to %s (anchor %s)", w.From, w.To, w.Anchor)
		}
	}
	s.line("Source", "%s (header walrelay-source)", r.Source)
	s.relay(r)
	return s.flush()
}

// headline is the state in a few words.
func (s *screen) headline(r *relay.Report) (colour, string) {
	switch r.State {
	case relay.Standby:
		return yellow, "the server is a standby: it cannot be streamed from before it is promoted"
	case relay.Missing:
		return red, "the slot does not exist: create it with `walrelay setup`"
	case relay.Lost:
		return red, "the server gave the slot up: WAL that it needs may be gone"
	case relay.Stopped:
		return yellow, "stopped: nobody holds the slot"
	}
	switch {
	case r.Relay != nil && !r.Relay.Ready:
		return red, "streaming, not ready: " + r.Relay.Reason
	case r.Lag.Exact:
		return green, "streaming, everything delivered"
	}
	return green, "streaming"
}

func (s *screen) holder(r *relay.Report) string {
	status := r.Slot.WALStatus
	switch {
	case r.Slot.Invalid != "":
		status += " (" + r.Slot.Invalid + ")"
		fallthrough
	case r.Slot.WALStatus == "lost":
		return s.paint(red, status)
	case r.Slot.WALStatus == "unreserved":
		status = s.paint(red, "unreserved: about to be given up")
	}
	h := r.Holder
	if h == nil {
		return status + ", free"
	}
	text := fmt.Sprintf("%s, held by pid %d", status, h.PID)
	if h.Application != "" {
		text += ", " + h.Application
	}
	if h.User != "" {
		text += ", user " + h.User
	}
	if h.Address != "" {
		text += ", " + h.Address
	}
	if h.Since != nil {
		text += fmt.Sprintf(", since %s (%s)", clockText(*h.Since, r.Time), ageText(r.Time.Sub(*h.Since)))
	}
	return text
}

func checkpointText(r *relay.Report) string {
	c := r.Checkpoint
	switch {
	case c == nil:
		return ""
	case c.Error != "":
		return c.Error
	case c.Safe == 0:
		return "none at " + c.Store
	}
	text := c.Safe.String()
	if c.Committed != nil {
		text += fmt.Sprintf("  last transaction %s, committed %s (%s ago)", c.Commit, clockText(*c.Committed, r.Time), ageText(r.Time.Sub(*c.Committed)))
	}
	if c.OpenCommit != 0 {
		text += fmt.Sprintf(", and %s events of %s", countText(int64(c.OpenRows)), c.OpenCommit)
	}
	return text
}

func (s *screen) lag(r *relay.Report) string {
	if r.Lag.Bytes == nil {
		return ""
	}
	text := bytesText(*r.Lag.Bytes) + " of WAL, "
	switch n := r.Lag.Events; {
	case n == nil:
		text += "events unknown: " + r.Lag.Unknown
	case r.Lag.Exact:
		text += "no event"
	case r.Lag.Capped:
		text += "more than " + countText(*n) + " events"
	default:
		text += "about " + countText(*n) + " events"
	}
	if r.Lag.Seconds != nil && *r.Lag.Seconds > 0 {
		text += ", the oldest is " + ageText(time.Duration(*r.Lag.Seconds*float64(time.Second))) + " old"
	}
	if r.Lag.Oldest != nil {
		text += " (" + plain(*r.Lag.Oldest) + ")"
	}
	return text
}

func (s *screen) headroom(slot *relay.ReportSlot) string {
	if slot.WALStatus == "lost" {
		return ""
	}
	text := bytesText(slot.Retained)
	switch {
	case slot.Headroom == nil:
		return text + ", without limit (max_slot_wal_keep_size = -1)"
	case *slot.Headroom < slot.Retained:
		return text + ", " + s.paint(yellow, bytesText(*slot.Headroom)+" more until the server gives the slot up")
	}
	return text + ", " + bytesText(*slot.Headroom) + " more until the server gives the slot up"
}

// relay writes what the process itself says.
func (s *screen) relay(r *relay.Report) {
	l := r.Relay
	if l == nil {
		s.line("Relay", "%s", r.RelayError)
		return
	}
	state := s.paint(green, "ready")
	if !l.Ready {
		state = s.paint(red, "not ready")
	}
	s.line("Relay", "%s, pid %d at %s, started %s", state, l.PID, l.Address, clockText(l.Started, r.Time))
	if l.FaultTime != nil {
		s.line("Last error", "%s  %s", clockText(*l.FaultTime, r.Time), plain(l.Fault))
	}
}
