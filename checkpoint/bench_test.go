package checkpoint

import (
	"path/filepath"
	"testing"
)

// BenchmarkSave is what every batch costs beside its delivery: on a disk that keeps its
// word the two fsync calls are most of it.
func BenchmarkSave(b *testing.B) {
	for _, disk := range []struct{ name, dir string }{{"disk", b.TempDir()}, {"memory", "/dev/shm"}} {
		b.Run(disk.name, func(b *testing.B) {
			f := OpenFile(filepath.Join(disk.dir, "walrelay-bench.checkpoint"))
			b.ReportAllocs()
			p := Position{SystemID: "7123456789012345678", Timeline: 1, Slot: "walrelay", Publication: "walrelay"}
			for b.Loop() {
				p.Safe++
				if err := f.Save(b.Context(), p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
