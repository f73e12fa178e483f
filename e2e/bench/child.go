package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is a process under measurement. Its output comes line by line.
type child struct {
	cmd   *exec.Cmd
	begun time.Time
	lines chan string // closed at its end
	stdin io.Closer

	mu   sync.Mutex
	last []string
}

func start(dir string, env []string, argv ...string) (*child, error) {
	c := &child{cmd: exec.Command(argv[0], argv[1:]...), lines: make(chan string, 64)}
	c.cmd.Dir = dir
	c.cmd.Env = append(cleanEnv(), env...)
	// It ends with us, and a Ctrl-C at the terminal is for us.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.cmd.Stdout, c.cmd.Stderr = w, w
	if c.stdin, err = c.cmd.StdinPipe(); err == nil {
		c.begun = time.Now()
		err = c.cmd.Start()
	}
	w.Close()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("bench: start %s: %w", argv[0], err)
	}
	go c.read(r)
	return c, nil
}

// startSelf starts this program in another role.
func startSelf(env []string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start("", env, append([]string{self}, args...)...)
}

func (c *child) read(r io.ReadCloser) {
	defer close(c.lines)
	defer r.Close()
	for s := bufio.NewScanner(r); s.Scan(); {
		c.mu.Lock()
		c.last = append(c.last[max(0, len(c.last)-9):], s.Text())
		c.mu.Unlock()
		select {
		case c.lines <- s.Text():
		default: // nobody waits for it
		}
	}
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// await returns when a line contains text.
func (c *child) await(text string, within time.Duration) error {
	limit := time.After(within)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				return fmt.Errorf("bench: %s ended early: %s", c.cmd.Path, c.tail())
			}
			if strings.Contains(line, text) {
				return nil
			}
		case <-limit:
			return fmt.Errorf("bench: no %q from %s within %s: %s", text, c.cmd.Path, within, c.tail())
		}
	}
}

// wait returns when the process has ended with exit code 0; it is killed after within.
func (c *child) wait(within time.Duration) error {
	t := time.AfterFunc(within, c.kill)
	defer t.Stop()
	for range c.lines {
	}
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("bench: %s: %w: %s", c.cmd.Path, err, c.tail())
	}
	return nil
}

// kill ends the process and all that it started.
func (c *child) kill() { syscall.Kill(-c.pid(), syscall.SIGKILL) }

// stop ends the process by SIGTERM.
func (c *child) stop() error {
	c.cmd.Process.Signal(syscall.SIGTERM)
	return c.wait(20 * time.Second)
}

// discard ends a process whose end does not matter.
func (c *child) discard() {
	c.kill()
	for range c.lines {
	}
	c.cmd.Wait()
}

func (c *child) tail() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.last, "\n")
}

// used is the processor time of the process, which has ended.
func (c *child) used() time.Duration {
	return c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()
}

func timeout(seconds int) <-chan time.Time { return time.After(time.Duration(seconds) * time.Second) }

// cleanEnv is our environment without what would configure walrelay or libpq.
func cleanEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "WALRELAY_") && !strings.HasPrefix(v, "PG") {
			env = append(env, v)
		}
	}
	return env
}
