package replication

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// table is the README's table of continuity.
func table() string {
	var b strings.Builder
	b.WriteString("| what is found | noticed at the latest at | ends with | first | then `walrelay recover` |\n|---|---|---|---|---|\n")
	for _, row := range Faults {
		var ways []string
		for _, w := range []struct {
			way  Way
			text string
		}{{Adopt, "`--adopt`"}, {FromTable, "`--from-table`"}, {AcceptGap, "`--accept-gap`"}} {
			if row.Ways&w.way != 0 {
				ways = append(ways, w.text)
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", row.What, row.Seen, row.Ends, row.First, strings.Join(ways, ", "))
	}
	return b.String()
}

// The README's table of continuity is the one that the code goes by.
func TestReadmeHasTheTableOfContinuity(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(readme), "<!-- continuity: replication compares this with its table -->\n\n")
	if section, _, _ := strings.Cut(after, "\n\n"); section+"\n" != table() {
		t.Errorf("the README should have\n%s", table())
	}
}

// G1: every fault has its row, once, and names a way out where it ends the run.
func TestG1EveryFaultHasARow(t *testing.T) {
	for f := SlotMissing; f <= PublicationWide; f++ {
		var rows []Row
		for _, row := range Faults {
			if row.Fault == f {
				rows = append(rows, row)
			}
		}
		if len(rows) != 1 {
			t.Errorf("fault %d has %d rows", f, len(rows))
		} else if r := rows[0]; r.Ends == endsRun && r.First == "" && r.Ways == 0 {
			t.Errorf("%s: no way out", r.What)
		}
	}
}
