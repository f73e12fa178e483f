package demo

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/walrelay/walrelay/e2e/checker"
)

func TestCutCountsWhatIsVisible(t *testing.T) {
	v := &view{colours: true}
	line := v.paint(green, "●") + " Postgres " + v.paint(dim, "──▶") + " Kafka"
	if got := cut(line, 20); got != line {
		t.Errorf("a line that fits became %q", got)
	}
	for width := 2; width < visibleLength(line); width++ {
		if n := visibleLength(cut(line, width)); n != width {
			t.Errorf("cut to %d: %d are visible", width, n)
		}
	}
}

func TestFold(t *testing.T) {
	for _, test := range []struct {
		text          string
		first, others int
		want          []string
	}{
		{"a=1 b=2", 10, 10, []string{"a=1 b=2"}},
		{"a=1 b=2", 4, 10, []string{"a=1", "b=2"}},
		{"a=1 b=2", -3, 10, []string{"", "a=1 b=2"}},
		{"one two three four", 8, 10, []string{"one two", "three four"}},
		{"averylongword and", 4, 8, []string{"", "averylongword and"}},
	} {
		if got := fold(test.text, test.first, test.others); !slices.Equal(got, test.want) {
			t.Errorf("%q in %d, %d: %q", test.text, test.first, test.others, got)
		}
	}
}

// Where there is no terminal, there is neither colour nor footer.
func TestPlainOutput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	v := newView(f)
	v.title("act")
	v.status("footer")
	v.say("%s", logLine(v, `{"level":"warn","time":"2026-01-01T00:00:00.000Z","topic":"t","outage_ms":12,"message":"trying on"}`))
	v.say("%s", logLine(v, "panic: no JSON"))
	v.close()
	b, err := os.ReadFile(path)
	want := "\n── act ────────\n  walrelay: warn: trying on topic=t outage_ms=12\n  walrelay: panic: no JSON\n"
	if err != nil || string(b) != want {
		t.Errorf("%v, got\n%s", err, b)
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := number(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
	if got := sparkline([]int64{0, 50, 100}); got != "▁▄█" {
		t.Error(got)
	}
}

// The demo must fail for every claim that does not hold.
func TestProofFindsPlantedAnomalies(t *testing.T) {
	sound := func() proof {
		return proof{
			report:    &checker.Report{Committed: 12_000, Delivered: 12_000, Records: 12_100, Repeats: 100, Samples: 10},
			crash:     tally{repeats: 100},
			end:       tally{records: 12_100, repeats: 100, repeatBytes: 30_000, largest: 300},
			takenBack: 7,
		}
	}
	if err := sound().err(); err != nil {
		t.Fatal(err)
	}
	for want, plant := range map[string]func(*proof){
		"lost":            func(p *proof) { p.report.Lost.Count = 1 },
		"phantom":         func(p *proof) { p.report.Phantom.Count = 1 },
		"reordered":       func(p *proof) { p.report.Reordered.Count = 1 },
		"confirmed ahead": func(p *proof) { p.report.ConfirmedAhead.Count = 1 },
		"too little":      func(p *proof) { p.report.Committed = 12 },
		"too little h":    func(p *proof) { p.report.Samples = 0 },
		"rolled-back":     func(p *proof) { p.phantoms = 1 },
		"exit 14":         func(p *proof) { p.exit = 14 },
		"the checker":     func(p *proof) { p.end.repeats, p.crash.repeats = 99, 99 },
		"two batches":     func(p *proof) { p.end.repeatBytes = 140_000 },
		"without a kill":  func(p *proof) { p.crash.repeats = 90 },
	} {
		p := sound()
		plant(&p)
		if err := p.err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
