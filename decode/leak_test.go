package decode

import (
	"testing"

	"github.com/walrelay/walrelay/internal/leaktest"
)

// No test leaves a goroutine, a file or a socket behind.
func TestMain(m *testing.M) { leaktest.Main(m) }
