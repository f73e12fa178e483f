package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/walrelay/walrelay/e2e/proc"
)

// Redis is one server without persistence: it forgets everything when it stops.
type Redis struct {
	scope  *proc.Scope
	bin    string
	port   int
	server *proc.Process // nil or ended: stopped
}

// StartRedis starts the installed redis-server; it returns when the server answers.
func StartRedis(ctx context.Context) (*Redis, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("stack: redis: %w; on Debian: apt-get install redis-server", err)
	}
	ports, err := proc.FreePorts(1)
	if err != nil {
		return nil, err
	}
	scope, err := proc.NewScope("redis")
	if err != nil {
		return nil, fmt.Errorf("stack: redis: %w", err)
	}
	r := &Redis{scope: scope, bin: bin, port: ports[0]}
	if err := r.Start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("stack: redis: %w", err), r.Close())
	}
	return r, nil
}

// Addr is host:port.
func (r *Redis) Addr() string { return proc.Addr(r.port) }

// Start starts a stopped server on its port, empty.
func (r *Redis) Start(ctx context.Context) error {
	if r.server.Running() {
		return errors.New("stack: redis runs already")
	}
	dir := filepath.Join(r.scope.Dir, "data")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var err error
	r.server, err = proc.Start(proc.Options{Name: "redis", Dir: dir, Log: filepath.Join(r.scope.Dir, "redis.log")},
		r.bin, "--port", fmt.Sprint(r.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", dir)
	if err != nil {
		return err
	}
	return r.server.Await(ctx, func(ctx context.Context) error { return r.Command(ctx, "PING") })
}

// Command sends an inline command, say FLUSHALL, and checks that it is not refused.
func (r *Redis) Command(ctx context.Context, words ...string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", strings.Join(words, " ")); err != nil {
		return err
	}
	answer := make([]byte, 512)
	n, err := conn.Read(answer)
	if err == nil && answer[0] == '-' {
		err = fmt.Errorf("redis: %s: %s", words[0], strings.TrimSpace(string(answer[:n])))
	}
	return err
}

// Kill is kill -9; Start brings it back.
func (r *Redis) Kill() error { return kill(r.scope, r.server) }

// Pause stops the server with SIGSTOP: it takes connections and does not answer.
func (r *Redis) Pause() { r.scope.Signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (r *Redis) Resume() { r.scope.Signal(syscall.SIGCONT) }

// Close ends the server, and removes it.
func (r *Redis) Close() error { return r.scope.Close() }
