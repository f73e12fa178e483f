package stack

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/proc"
	"github.com/walrelay/walrelay/e2e/proxy"
)

// PostgresOptions says what server to start. The zero value is a Postgres of whatever
// version is installed, else of the newest that can be fetched.
type PostgresOptions struct {
	Version string            // major: "15" … "18"; "": any
	Config  map[string]string // settings, over the stack's own
	HBA     []string          // lines of pg_hba.conf, before the stack's own
	Proxy   bool              // URL leads through a proxy
	Port    int               // 0: a free one
	Tmpfs   string            // size ("64M") of a tmpfs to hold the data folder; root only
}

// Postgres is one server with its data folder. Its superuser is postgres, with the
// password postgres. Its methods are for one goroutine at a time, except URL and Direct.
type Postgres struct {
	Version string       // major version
	Proxy   *proxy.Proxy // nil without PostgresOptions.Proxy

	scope  *proc.Scope
	bin    string // folder of postgres and initdb
	data   string
	port   int
	cred   *syscall.Credential
	server *proc.Process // nil or ended: stopped
}

// Mode is how a server is asked to stop.
type Mode int

// The shutdown modes of Postgres.
const (
	Smart     = Mode(syscall.SIGTERM) // waits for the clients to leave
	Fast      = Mode(syscall.SIGINT)  // ends the sessions, waits for the walsenders
	Immediate = Mode(syscall.SIGQUIT) // as after a crash
)

// A crash test is honest with fsync only. The rest makes the server small and lets
// logical replication have what it needs.
var postgresDefaults = map[string]string{
	"fsync":                        "on",
	"wal_level":                    "logical",
	"max_wal_senders":              "20",
	"max_replication_slots":        "40",
	"max_connections":              "60",
	"shared_buffers":               "32MB",
	"max_wal_size":                 "256MB",
	"dynamic_shared_memory_type":   "mmap", // leaves nothing outside the data folder
	"max_worker_processes":         "2",
	"max_parallel_workers":         "0",
	"jit":                          "off",
	"log_min_messages":             "warning",
	"log_line_prefix":              "%m [%p] %a ",
	"lc_messages":                  "C",
	"log_timezone":                 "UTC",
	"timezone":                     "UTC",
	"synchronous_commit":           "on",
	"autovacuum_naptime":           "20s",
	"unix_socket_directories":      "",
	"listen_addresses":             "127.0.0.1",
	"password_encryption":          "scram-sha-256",
	"scram_iterations":             "1", // 16+; dropped for older servers
	"logging_collector":            "off",
	"wal_receiver_status_interval": "1s",
}

// StartPostgres makes a data folder and starts a server on it; it returns when the
// server takes connections.
func StartPostgres(ctx context.Context, o PostgresOptions) (*Postgres, error) {
	p, err := newPostgres(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("stack: postgres: %w", err)
	}
	if err = p.init(ctx, o); err == nil {
		err = p.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("stack: postgres: %w", err), p.Close())
	}
	return p, nil
}

func newPostgres(ctx context.Context, o PostgresOptions) (*Postgres, error) {
	version, bin, err := findPostgres(ctx, o.Version)
	if err != nil {
		return nil, err
	}
	cred, err := postgresUser()
	if err != nil {
		return nil, err
	}
	p := &Postgres{Version: version, bin: bin, cred: cred, port: o.Port}
	if p.port == 0 {
		free, err := proc.FreePorts(1)
		if err != nil {
			return nil, err
		}
		p.port = free[0]
	}
	if o.Proxy {
		if p.Proxy, err = proxy.Listen(proc.Addr(p.port)); err != nil {
			return nil, err
		}
	}
	if p.scope, err = proc.NewScope("postgres"); err != nil {
		return nil, err
	}
	p.data = filepath.Join(p.scope.Dir, "data")
	return p, nil
}

// Start starts a stopped server on its data folder and port.
func (p *Postgres) Start(ctx context.Context) error {
	if p.server.Running() {
		return errors.New("stack: postgres runs already")
	}
	server, err := proc.Start(proc.Options{Name: "postgres", Dir: p.data, Log: p.LogFile(), User: p.cred}, filepath.Join(p.bin, "postgres"), "-D", p.data)
	if err != nil {
		return err
	}
	p.server = server
	return server.Await(ctx, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, p.Direct("postgres"))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}

// Stop asks the server to stop and waits until it has; an error when ctx ends first.
func (p *Postgres) Stop(ctx context.Context, mode Mode) error {
	if !p.server.Running() {
		return nil
	}
	syscall.Kill(p.server.Pid(), syscall.Signal(mode))
	return p.server.Wait(ctx)
}

// Kill is kill -9 of the whole server, and returns when every process of it has gone.
func (p *Postgres) Kill() error { return kill(p.scope, p.server) }

func kill(s *proc.Scope, server *proc.Process) error {
	err := s.Kill()
	if err == nil && server != nil {
		<-server.Done() // the kernel is through with it; a moment until we know, too
	}
	return err
}

// Pause stops every process of the server with SIGSTOP.
func (p *Postgres) Pause() { p.scope.Signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (p *Postgres) Resume() { p.scope.Signal(syscall.SIGCONT) }

// Pid is the postmaster's.
func (p *Postgres) Pid() int { return p.server.Pid() }

// DataDir is the server's data folder.
func (p *Postgres) DataDir() string { return p.data }

// LogFile is the path of the server's log.
func (p *Postgres) LogFile() string { return filepath.Join(p.scope.Dir, "postgres.log") }

// URL is the superuser's libpq URL for a database, through the proxy if there is one.
func (p *Postgres) URL(db string) string { return p.UserURL("postgres", "postgres", db) }

// UserURL is URL for another user.
func (p *Postgres) UserURL(user, password, db string) string {
	if p.Proxy != nil {
		return pgURL(user, password, p.Proxy.Addr(), db)
	}
	return pgURL(user, password, proc.Addr(p.port), db)
}

// Direct is URL past the proxy.
func (p *Postgres) Direct(db string) string {
	return pgURL("postgres", "postgres", proc.Addr(p.port), db)
}

func pgURL(user, password, host, db string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Host: host, Path: db, RawQuery: "sslmode=disable"}
	return u.String()
}

// Close ends the server, and removes it.
func (p *Postgres) Close() error {
	p.Resume()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	p.Stop(ctx, Immediate) // it gives back its shared memory; what is left is killed below
	if p.Proxy != nil {
		p.Proxy.Close()
	}
	err := p.scope.Kill()
	p.removeSharedMemory()
	return errors.Join(err, p.scope.Close())
}
