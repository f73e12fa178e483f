package proc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports are taken from below the range from which the kernel picks the local port of
// outgoing connections: a server that is down for a while must find its port free again.
const firstPort, lastPort = 15000, 32000

var ports struct {
	sync.Mutex
	taken map[int]bool // by this program, for good
}

// FreePorts returns n ports of 127.0.0.1 that nobody listens on, and that no later call
// in this program returns again.
func FreePorts(n int) ([]int, error) {
	ports.Lock()
	defer ports.Unlock()
	if ports.taken == nil {
		ports.taken = map[int]bool{}
	}
	var found []int
	for range 2000 {
		if len(found) == n {
			return found, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort)
		if ports.taken[port] {
			continue
		}
		l, err := net.Listen("tcp", Addr(port))
		if err != nil {
			continue
		}
		l.Close()
		ports.taken[port] = true
		found = append(found, port)
	}
	return nil, errors.New("proc: no free ports")
}

// Addr is host:port of a port of this machine.
func Addr(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
