package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpu is the processor time that a process has taken, user and system, all its threads.
// A process that has ended has none: ok is false.
func cpu(pid int) (d time.Duration, ok bool) {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/schedstat", pid))
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		first, _, _ := bytes.Cut(b, []byte(" "))
		ns, err := strconv.ParseInt(string(first), 10, 64)
		if err == nil {
			d += time.Duration(ns)
			ok = true
		}
	}
	if !ok {
		return cpuTicks(pid)
	}
	return d, true
}

// cpuTicks is cpu by /proc/PID/stat, in hundredths of a second: it also counts threads
// that have ended.
func cpuTicks(pid int) (d time.Duration, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, false
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, true
}

// status is a number from /proc/PID/status, or from a thread's.
func status(path, name string) (n int64, ok bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	_, line, found := strings.Cut(string(b), "\n"+name+":")
	_, err = fmt.Sscan(line, &n)
	return n, found && err == nil
}

// highWater is the most memory that a process has had resident, in bytes.
func highWater(pid int) int64 {
	kb, _ := status(fmt.Sprintf("/proc/%d/status", pid), "VmHWM")
	return kb << 10
}

// wakeups counts how often the threads of a process went to sleep by themselves.
func wakeups(pid int) (n int64) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/status", pid))
	for _, path := range threads {
		v, _ := status(path, "voluntary_ctxt_switches")
		n += v
	}
	return n
}

// watch samples a process until stop: what it took and held when it was last seen.
type watch struct {
	stop chan struct{}
	done chan struct{}
	cpu  time.Duration
	peak int64
}

// watchProcess watches the process that find names; find is asked until it knows.
func watchProcess(find func() int) *watch {
	w := &watch{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		pid := 0
		for {
			if pid == 0 {
				pid = find()
			}
			if pid != 0 {
				if d, ok := cpu(pid); ok {
					w.cpu = max(w.cpu, d)
				}
				w.peak = max(w.peak, highWater(pid))
			}
			select {
			case <-w.stop:
				return
			case <-tick.C:
			}
		}
	}()
	return w
}

// end returns when sampling is over.
func (w *watch) end() {
	close(w.stop)
	<-w.done
}
