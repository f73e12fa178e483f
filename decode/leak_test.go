package decode

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// No test leaves a goroutine, a file or a socket behind.
func TestMain(m *testing.M) {
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
