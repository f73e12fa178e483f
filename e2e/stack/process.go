package stack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is one running server program, started in its scope. The goroutine that waits
// for it ends with it.
type process struct {
	name string
	log  string // path of its output
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// start runs argv in dir with its output appended to log. cred is the user to run as;
// nil: our own.
func start(name, dir, log string, cred *syscall.Credential, env []string, argv ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{name: name, log: log, done: make(chan struct{})}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.cmd.Env = append(os.Environ(), env...)
	// Its own session: a Ctrl-C at the terminal is for us, we end it in our own way.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: cred}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// wait returns when the process has ended.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s (pid %d) still runs: %w", p.name, p.pid(), context.Cause(ctx))
	}
}

// await polls probe until it succeeds; it gives up when ctx or the process ends, with
// the last lines of the log.
func (p *process) await(ctx context.Context, probe func(context.Context) error) error {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := probe(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended at its start: %v; last of %s:\n%s", p.name, p.cmd.ProcessState, p.log, tail(p.log))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%w): %w; last of %s:\n%s", p.name, err, context.Cause(ctx), p.log, tail(p.log))
		case <-tick.C:
		}
	}
}

func tail(path string) string {
	b, _ := os.ReadFile(path)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// run executes a short-lived program to its end and gives its output with the error.
func run(ctx context.Context, dir string, cred *syscall.Credential, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: cred}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(argv[0]), err, strings.TrimSpace(string(out)))
	}
	return nil
}
