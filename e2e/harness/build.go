// Package harness runs the walrelay binary against a stack, from the outside: flags,
// signals, exit codes, HTTP, logs.
package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Binary builds walrelay once per program and returns its path. $WALRELAY_BIN names one
// that exists already; WALRELAY_RACE=1 builds with the race detector.
var Binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("WALRELAY_BIN"); path != "" {
		return filepath.Abs(path)
	}
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("harness: go env: %w", err)
	}
	root := filepath.Dir(filepath.Dir(strings.TrimSpace(string(mod))))
	dir, err := os.MkdirTemp("", "walrelay-e2e-bin-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "walrelay")
	args := []string{"build", "-o", path}
	if os.Getenv("WALRELAY_RACE") == "1" {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "./cmd/walrelay")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("harness: build walrelay: %w\n%s", err, out)
	}
	return path, nil
})

// RemoveBinary removes what Binary built.
func RemoveBinary() {
	if path, err := Binary(); err == nil && os.Getenv("WALRELAY_BIN") == "" {
		os.RemoveAll(filepath.Dir(path))
	}
}

// Result is how a command that ends by itself ended.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Command runs walrelay to its end; ctx ends it with a kill (code -1).
func Command(ctx context.Context, dir string, env []string, args ...string) (Result, error) {
	path, err := Binary()
	if err != nil {
		return Result{}, err
	}
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	cmd.Env = append(cleanEnv(), env...)
	err = cmd.Run()
	if cmd.ProcessState == nil {
		return Result{}, fmt.Errorf("harness: run walrelay: %w", err)
	}
	return Result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}, nil
}

// cleanEnv is our environment without what would change the relay's configuration.
func cleanEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "WALRELAY_") && !strings.HasPrefix(v, "PG") {
			env = append(env, v)
		}
	}
	return env
}
