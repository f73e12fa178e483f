package proc

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

// Process is one running server program, started in its scope. The goroutine that waits
// for it ends with it.
type Process struct {
	Name string
	Log  string // path of its output
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// Options say how a process runs.
type Options struct {
	Name string
	Dir  string              // working folder, inside a Scope
	Log  string              // file to which its output is appended
	User *syscall.Credential // nil: our own
	Env  []string            // nil: our own
}

// Start runs argv.
func Start(o Options, argv ...string) (*Process, error) {
	out, err := os.OpenFile(o.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &Process{Name: o.Name, Log: o.Log, done: make(chan struct{})}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = o.Dir, out, out
	p.cmd.Env = o.Env
	// Its own session: a Ctrl-C at the terminal is for us, we end it in our own way.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: o.User}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Name, err)
	}
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Running says whether the process has not ended yet; a nil process has.
func (p *Process) Running() bool {
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

// Wait returns when the process has ended.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s (pid %d) still runs: %w", p.Name, p.Pid(), context.Cause(ctx))
	}
}

// ExitCode is the exit code of a process that has ended; -1 if a signal ended it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends a signal to the process.
func (p *Process) Signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// Await polls probe until it succeeds; it gives up when ctx or the process ends, with
// the last lines of the log.
func (p *Process) Await(ctx context.Context, probe func(context.Context) error) error {
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
			return fmt.Errorf("%s ended at its start: %v; last of %s:\n%s", p.Name, p.cmd.ProcessState, p.Log, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%w): %w; last of %s:\n%s", p.Name, err, context.Cause(ctx), p.Log, p.Tail())
		case <-tick.C:
		}
	}
}

// Tail is the last lines of the process' output.
func (p *Process) Tail() string {
	b, _ := os.ReadFile(p.Log)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// Run executes a short-lived program to its end and gives its output with the error.
func Run(ctx context.Context, dir string, cred *syscall.Credential, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: cred}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(argv[0]), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// HighWater is the most memory that the process has had resident, in bytes.
func (p *Process) HighWater() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, err
	}
	_, line, _ := strings.Cut(string(status), "VmHWM:")
	var kb int64
	_, err = fmt.Sscan(line, &kb)
	return kb << 10, err
}
