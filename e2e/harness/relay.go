package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/walrelay/walrelay/e2e/proc"
)

// Config is one relay's configuration: the flags that every test sets.
type Config struct {
	Postgres string // --postgres-url
	Brokers  string // --kafka-brokers
	Slot     string // --slot and --publication; "": walrelay
	Table    string // "": the default
	Shared   string // path of a checkpoint shared with another relay; "": in the relay's folder
	Topic    string // the checkpoint is in Kafka; "": it is the file
	Args     []string
	Env      []string
}

// Relay is one relay: a folder with its checkpoint and log, a port for its HTTP server,
// and a process from Start to its end. It may be started any number of times.
type Relay struct {
	Config
	HTTP string // host:port

	scope *proc.Scope
	proc  *proc.Process
}

// New makes a relay that does not run yet.
func New(c Config) (*Relay, error) {
	if c.Slot == "" {
		c.Slot = "walrelay"
	}
	ports, err := proc.FreePorts(1)
	if err != nil {
		return nil, err
	}
	scope, err := proc.NewScope("relay")
	if err != nil {
		return nil, fmt.Errorf("harness: %w", err)
	}
	return &Relay{Config: c, HTTP: proc.Addr(ports[0]), scope: scope}, nil
}

// Dir is the relay's working folder.
func (r *Relay) Dir() string { return r.scope.Dir }

// Checkpoint is the path of the relay's checkpoint file.
func (r *Relay) Checkpoint() string {
	if r.Shared != "" {
		return r.Shared
	}
	return filepath.Join(r.scope.Dir, "walrelay-"+r.Slot+".checkpoint")
}

// flags are the shared ones.
func (r *Relay) flags() []string {
	store := "file:" + r.Checkpoint()
	if r.Topic != "" {
		store = "kafka:" + r.Topic
	}
	f := []string{"--slot", r.Slot, "--publication", r.Slot, "--kafka-brokers", r.Brokers, "--http", r.HTTP, "--checkpoint", store}
	if r.Table != "" {
		f = append(f, "--table", r.Table)
	}
	return append(f, r.Args...)
}

// The URL holds a password: it goes by the environment.
func (r *Relay) env() []string {
	return append([]string{"WALRELAY_POSTGRES_URL=" + r.Postgres}, r.Env...)
}

// Command runs a subcommand with the relay's flags to its end.
func (r *Relay) Command(ctx context.Context, subcommand string, args ...string) (Result, error) {
	return Command(ctx, r.scope.Dir, r.env(), append(append([]string{subcommand}, r.flags()...), args...)...)
}

// Start starts `walrelay run`.
func (r *Relay) Start(args ...string) (err error) {
	if r.proc.Running() {
		return errors.New("harness: the relay runs already")
	}
	r.proc, err = r.Beside("run", args...)
	return err
}

// Beside starts a subcommand with the relay's flags, in its folder and with its log.
func (r *Relay) Beside(subcommand string, args ...string) (*proc.Process, error) {
	path, err := Binary()
	if err != nil {
		return nil, err
	}
	argv := append(append([]string{path, subcommand}, r.flags()...), args...)
	return proc.Start(proc.Options{Name: "walrelay", Dir: r.scope.Dir, Log: r.logFile(), Env: append(cleanEnv(), r.env()...)}, argv...)
}

// Up is Start, and waits until the relay is ready.
func (r *Relay) Up(ctx context.Context, args ...string) error {
	if err := r.Start(args...); err != nil {
		return err
	}
	return r.AwaitReady(ctx)
}

// AwaitReady returns when /readyz is 200.
func (r *Relay) AwaitReady(ctx context.Context) error {
	return r.proc.Await(ctx, func(ctx context.Context) error { return r.Ready(ctx) })
}

// Ready is nil if /readyz is 200; the error has the reason that it gives.
func (r *Relay) Ready(ctx context.Context) error {
	code, body, err := r.get(ctx, "/readyz")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("/readyz: %d: %s", code, strings.TrimSpace(body))
	}
	return err
}

func (r *Relay) get(ctx context.Context, path string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.HTTP+path, nil)
	if err != nil {
		return 0, "", err
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// Metrics scrapes /metrics: "name" or `name{label="value"}` → value.
func (r *Relay) Metrics(ctx context.Context) (map[string]float64, error) {
	code, body, err := r.get(ctx, "/metrics")
	if err != nil || code != http.StatusOK {
		return nil, fmt.Errorf("harness: scrape: %d, %w", code, err)
	}
	metrics := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		line := lines.Text()
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
				metrics[line[:i]] = v
			}
		}
	}
	return metrics, nil
}

// Running says whether the process has not ended.
func (r *Relay) Running() bool { return r.proc.Running() }

// Pid is the process id.
func (r *Relay) Pid() int { return r.proc.Pid() }

// Signal sends a signal to the relay (SIGSTOP, SIGCONT, SIGTERM, …).
func (r *Relay) Signal(sig syscall.Signal) error { return r.proc.Signal(sig) }

// Kill is kill -9, and returns when the process has gone.
func (r *Relay) Kill(ctx context.Context) error {
	r.proc.Signal(syscall.SIGKILL)
	return r.proc.Wait(ctx)
}

// Stop is SIGTERM, and returns the exit code.
func (r *Relay) Stop(ctx context.Context) (int, error) {
	r.proc.Signal(syscall.SIGTERM)
	return r.Wait(ctx)
}

// Wait returns the exit code when the process has ended by itself.
func (r *Relay) Wait(ctx context.Context) (int, error) {
	if err := r.proc.Wait(ctx); err != nil {
		return 0, err
	}
	return r.proc.ExitCode(), nil
}

// HighWater is the most memory that the process has had resident, in bytes.
func (r *Relay) HighWater() (int64, error) { return r.proc.HighWater() }

func (r *Relay) logFile() string { return filepath.Join(r.scope.Dir, "walrelay.log") }

// Log is everything that the relay's processes have written.
func (r *Relay) Log() string {
	b, _ := os.ReadFile(r.logFile())
	return string(b)
}

// Close kills the relay and removes its folder.
func (r *Relay) Close() error { return r.scope.Close() }
