package nemesis

import (
	"time"

	"github.com/walrelay/walrelay/e2e/checker"
)

// judge holds Kafka against the commit order, and counts what came again.
func (w *world) judge() error {
	samples := w.sampler.Stop()
	truth, err := w.truth.Read(w.ctx)
	if err != nil {
		return err
	}
	observed, err := checker.Topics{Brokers: w.kafka.Direct(), Names: w.topics()}.Read(w.ctx)
	if err != nil {
		return err
	}
	r := checker.Compare(truth, observed, samples)
	w.report.Checked, w.report.Points = r, len(w.points)
	// What a relay adds that does not know that another has taken over is at most the batch
	// that it had begun.
	if limit := w.most(1) * len(w.points); len(w.relays) == 1 && r.Late.Count > 0 || r.Late.Count > limit {
		w.violated("G2: %d events by a relay whose place was taken, at most %d are allowed", r.Late.Count, limit)
	}
	r.Late = checker.Finding{Count: r.Late.Count}
	sound := *r
	sound.Late.Count = 0
	if err := sound.Err(); err != nil {
		w.violated("%v", err)
	}
	if r.Committed == 0 || r.Samples == 0 {
		w.violated("nothing was checked")
	}
	w.repeats(r.Again, samples)
	return nil
}

// most is how many events so many batches can hold, and the large one that fills each.
func (w *world) most(batches int) int { return batches * (batch/leastEvent + 1) }

// repeats attributes every repeat to the last moment before it after which there may be
// some (G5). A sample that was taken before such a moment says which offsets are older.
func (w *world) repeats(again []checker.Spot, samples []checker.Sample) {
	ends := make([]map[checker.Place]int64, len(w.points))
	for i, at := range w.points {
		for _, s := range samples {
			if s.Taken.Before(at.Add(-100 * time.Millisecond)) {
				ends[i] = s.Ends
			}
		}
	}
	after := make([]int, len(w.points))
	for _, spot := range again {
		found := -1
		for i := range w.points {
			if spot.Offset >= ends[i][spot.Place] {
				found = i
			}
		}
		if found < 0 {
			w.violated("G5: %s offset %d is a repeat, and nothing had happened that allows one", spot.Place, spot.Offset)
			return
		}
		after[found]++
	}
	// The place of a sample is rough: neighbours may share.
	for i, n := range after {
		for j := i - 1; j >= 0 && w.points[i].Sub(w.points[j]) < 10*time.Second; j-- {
			n += after[j]
		}
		near := 1
		for j := i - 1; j >= 0 && w.points[i].Sub(w.points[j]) < 10*time.Second; j-- {
			near++
		}
		if limit := near * w.most(2); n > limit {
			w.violated("G5: %d repeats after the %d crashes and takeovers before %s, at most %d are two batches for each", n, near, w.points[i].Format("15:04:05.000"), limit)
			return
		}
	}
}
