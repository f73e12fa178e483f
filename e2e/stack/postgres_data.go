package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/walrelay/walrelay/e2e/proc"
)

// init makes the data folder and configures the server.
func (p *Postgres) init(ctx context.Context, o PostgresOptions) error {
	if err := p.scope.Mkdir(p.data, o.Tmpfs); err != nil {
		return err
	}
	if p.cred != nil {
		if err := os.Chown(p.data, int(p.cred.Uid), int(p.cred.Gid)); err != nil {
			return err
		}
	}
	password := filepath.Join(p.scope.Dir, "password")
	if err := os.WriteFile(password, []byte("postgres\n"), 0o644); err != nil {
		return err
	}
	err := proc.Run(ctx, p.data, p.cred, filepath.Join(p.bin, "initdb"), "-D", p.data, "-U", "postgres",
		"-A", "scram-sha-256", "--pwfile", password, "-E", "UTF8", "--locale=C", "--no-sync")
	if err != nil {
		return err
	}
	settings := maps.Clone(postgresDefaults)
	if p.Version < "16" {
		delete(settings, "scram_iterations")
	}
	settings["port"] = fmt.Sprint(p.port)
	maps.Copy(settings, o.Config)
	if err := p.Configure(settings); err != nil {
		return err
	}
	return p.prependHBA(o.HBA)
}

// Configure adds settings to postgresql.conf; the next Start, or a reload by SQL, reads them.
func (p *Postgres) Configure(settings map[string]string) error {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	f, err := os.OpenFile(filepath.Join(p.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(b.String())
	return errors.Join(err, f.Close())
}

func (p *Postgres) prependHBA(lines []string) error {
	path := filepath.Join(p.data, "pg_hba.conf")
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append([]byte(strings.Join(append(slices.Clone(lines), ""), "\n")), old...), 0o600)
}

// Copy takes a file copy of the stopped server's data folder and returns its path.
func (p *Postgres) Copy(ctx context.Context) (string, error) {
	if p.server.Running() {
		return "", errors.New("stack: a file copy needs a stopped server")
	}
	dst, err := os.MkdirTemp(p.scope.Dir, "copy-")
	if err != nil {
		return "", err
	}
	return dst, proc.Run(ctx, "/", nil, "cp", "-a", "--reflink=auto", p.data+"/.", dst)
}

// Restore puts a file copy in the place of the stopped server's data folder.
func (p *Postgres) Restore(ctx context.Context, copied string) error {
	if p.server.Running() {
		return errors.New("stack: restoring a file copy needs a stopped server")
	}
	return proc.Run(ctx, "/", nil, "sh", "-c", `find "$1" -mindepth 1 -delete && cp -a --reflink=auto "$2/." "$1"`, "restore", p.data, copied)
}

// removeSharedMemory frees the System V segment that a killed server leaves behind; its
// id is the last word in the seventh line of postmaster.pid.
func (p *Postgres) removeSharedMemory() {
	b, err := os.ReadFile(filepath.Join(p.data, "postmaster.pid"))
	lines := strings.Split(string(b), "\n")
	if err != nil || len(lines) < 7 {
		return
	}
	var key, id uintptr
	if n, _ := fmt.Sscan(lines[6], &key, &id); n == 2 {
		const ipcRmid = 0
		syscall.Syscall(syscall.SYS_SHMCTL, id, ipcRmid, 0)
	}
}
