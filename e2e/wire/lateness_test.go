package wire

import (
	"fmt"
	"time"
)

// pause is how long something stood, and when it began to go on.
type pause struct {
	long time.Duration
	end  time.Time
}

// pauses are the times without an entry for more than half a second after a moment.
func pauses(times []time.Time, after time.Time) (list []pause) {
	last := after
	for _, at := range times {
		if at.Before(after) {
			continue
		}
		if d := at.Sub(last); d > 500*time.Millisecond {
			list = append(list, pause{d, at})
		}
		last = at
	}
	return list
}

// longest is the longest of some pauses.
func longest(list []pause) (d time.Duration) {
	for _, p := range list {
		d = max(d, p.long)
	}
	return d.Round(time.Millisecond)
}

// late is how much later than every probe the load went on, at worst: for each pause of the load, the time from
// the first success of the probe on the partition where that came last. Negative where the load was first; ok is false
// where no probe paused when the load did.
func (r *rig) late(begin time.Time) (late time.Duration, ok bool) {
	for _, ours := range pauses(r.writes, begin) {
		from := ours.end.Add(-ours.long)
		var first time.Time
		for _, times := range r.probes {
			for _, p := range pauses(times, begin) {
				if p.end.After(from) && p.end.Add(-p.long).Before(ours.end) && p.end.After(first) {
					first = p.end
				}
			}
		}
		if !first.IsZero() {
			if d := ours.end.Sub(first).Round(time.Millisecond); !ok || d > late {
				late, ok = d, true
			}
		}
	}
	return late, ok
}

// fault breaks something and mends it, waits for all to be well, and returns how late the load was.
func (r *rig) fault(name string, breakIt, mendIt func(), last time.Duration) (late time.Duration, ok bool) {
	r.t.Helper()
	begin := time.Now()
	breakIt()
	r.wait(last)
	if mendIt != nil {
		mendIt()
	}
	mended := time.Now()
	for well := false; !well; {
		r.wait(200 * time.Millisecond)
		r.mu.Lock()
		well = len(r.writes) > 0 && r.writes[len(r.writes)-1].After(mended.Add(time.Second))
		for _, p := range r.probes {
			well = well && len(p) > 0 && p[len(p)-1].After(mended.Add(time.Second))
		}
		r.mu.Unlock()
		if time.Since(mended) > time.Minute {
			r.t.Fatalf("%s: not well after a minute\n%s", name, r.log.String())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var probe time.Duration
	for _, p := range r.probes {
		probe = max(probe, longest(pauses(p, begin)))
	}
	late, ok = r.late(begin)
	said := "when it liked: no probe stood with it"
	if ok {
		said = fmt.Sprint(late, " after the last probe")
	}
	r.t.Logf("%-28s the probes stood for %v, the load for %v; it went on %s", name, probe, longest(pauses(r.writes, begin)), said)
	return late, ok
}
