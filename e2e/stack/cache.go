package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/walrelay/walrelay/e2e/proc"
)

// ErrMissing is returned when the machine lacks a program that the stack needs; the
// error's text says which, and how to install it.
var ErrMissing = errors.New("not installed")

func lookPath(program, install string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("stack: %s is %w (%s)", program, ErrMissing, install)
	}
	return path, nil
}

// CacheDir is where fetched artifacts are kept between runs. Root's is under /var/cache:
// Postgres then runs as another user, who cannot look into root's home.
func CacheDir() (string, error) {
	if dir := os.Getenv("WALRELAY_E2E_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	if os.Getuid() == 0 {
		return "/var/cache/walrelay-e2e", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("stack: no cache folder, set WALRELAY_E2E_CACHE: %w", err)
	}
	return filepath.Join(dir, "walrelay-e2e"), nil
}

// cached returns the folder name inside the cache and has make fill it first if it does
// not exist. A folder appears whole or not at all; programs that want the same one wait
// for the first of them.
func cached(ctx context.Context, name string, make func(ctx context.Context, dir string) error) (string, error) {
	root, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", fmt.Errorf("stack: cache folder: %w", err)
	}
	unlock, err := lock(ctx, dir+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", err
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return "", err
	}
	if err := make(ctx, part); err != nil {
		return "", fmt.Errorf("stack: fill the cache with %s: %w", name, err)
	}
	return dir, os.Rename(part, dir)
}

// lock takes the advisory lock on path; the kernel frees it when its holder dies.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	got := make(chan error, 1)
	go func() { got <- syscall.Flock(int(f.Fd()), syscall.LOCK_EX) }()
	select {
	case err = <-got:
	case <-ctx.Done():
		err = fmt.Errorf("stack: another program holds %s: %w", path, ctx.Err())
		go func() { <-got; f.Close() }()
		return nil, err
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// maven runs Maven in dir, which must lie in nobody's project.
func maven(ctx context.Context, dir string, args ...string) error {
	mvn, err := lookPath("mvn", "apt-get install maven")
	if err != nil {
		return err
	}
	return proc.Run(ctx, dir, nil, append([]string{mvn, "-q", "-B"}, args...)...)
}
