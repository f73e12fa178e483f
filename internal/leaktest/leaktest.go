// Package leaktest is how the tests of every package end: nothing that they began is left.
package leaktest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package, as its TestMain; they fail if a goroutine, a file or a
// socket is left behind.
func Main(m *testing.M) {
	before := descriptors()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if after := descriptors(); code == 0 && after > before {
			fmt.Fprintf(os.Stderr, "%d descriptors are open, %d were before the tests\n", after, before)
			code = 1
		}
		os.Exit(code)
	}))
}

// descriptors counts open files and sockets, without the runtime's own.
func descriptors() (n int) {
	open, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range open {
		if name, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && !strings.HasPrefix(name, "anon_inode:") {
			n++
		}
	}
	return n
}
