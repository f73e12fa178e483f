package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walrelay/walrelay/internal/leaktest"
)

// The test binary doubles as a child process whose end is observed.
func TestMain(m *testing.M) {
	switch os.Getenv("TEST_CHILD") {
	case "signals":
		ctx, _ := interruptible()
		fmt.Println("ready")
		<-ctx.Done()
		fmt.Println("draining:", context.Cause(ctx))
		select {} // a drain that never ends
	case "panic":
		abortOnPanic()
		go func() { panic("in a goroutine") }()
		select {}
	}
	leaktest.Main(m)
}

func child(t *testing.T, role string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), "TEST_CHILD="+role)
	return cmd
}

// command executes a command line in this process.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), append([]string{"walrelay"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func TestFirstSignalDrainsSecondExits(t *testing.T) {
	cmd := child(t, "signals")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, want := range []string{"ready", "draining: terminated"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("child says %q, want %q", lines.Text(), want)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d after the second SIGTERM", code)
	}
}

func TestPanicIsNotAUsageError(t *testing.T) {
	cmd := child(t, "panic")
	output, _ := cmd.CombinedOutput()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !status.Signaled() || status.Signal() != syscall.SIGABRT || status.CoreDump() {
		t.Errorf("ended with %v, want SIGABRT without a core", cmd.ProcessState)
	}
	if !strings.Contains(string(output), "panic: in a goroutine") {
		t.Errorf("no trace of the panic in %q", output)
	}
}

// The SQL can be read before there is a database.
func TestSetupPrintNeedsNoDatabase(t *testing.T) {
	for _, name := range []string{"PGHOST", "PGSERVICE", "PGDATABASE", "WALRELAY_POSTGRES_URL"} {
		t.Setenv(name, "")
	}
	code, stdout, stderr := command(t, "setup", "--create-table", "--role", "walrelay", "--print")
	if code != exitOK || stderr != "" || !strings.Contains(stdout, "CREATE PUBLICATION") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

func TestUsageErrorsAreOneHelpfulLine(t *testing.T) {
	for _, name := range []string{"PGHOST", "PGSERVICE", "PGDATABASE"} {
		t.Setenv(name, "")
	}
	t.Setenv("WALRELAY_LOG_FORMAT", "console")
	for _, c := range []struct{ args, want string }{
		{"stup", `unknown command "stup"`},
		{"--slot x setup", "options follow the command"},
		{"setup --slto x", "unknown option --slto; did you mean --slot?"},
		{"setup --kafka_brokers x", "did you mean --kafka-brokers?"},
		{"setup --create-tabel", "did you mean --create-table?"},
		{"run --untill now", "did you mean --until?"},
		{"run --until tomorrow", "like 16/B374D848, or now"},
		{"run", "--kafka-brokers is missing"},
		{"setup --slot", "needs an argument"},
		{"setup extra", `unexpected argument "extra"`},
		{"setup", "--postgres-url is missing"},
		{"setup --postgres-url mysql://x/y", "postgres://USER@HOST:PORT/DATABASE"},
		{"setup --slot My-Slot", `--slot "My-Slot": want 1 to 63 lower-case letters`},
		{"setup --kafka-brokers localhost", `--kafka-brokers "localhost": want host:port`},
		{"setup --batch-bytes 10MB", "64KiB"},
		{"setup --batch-bytes 32MiB", "--buffer-bytes"},
		{"setup --compression lz5", "want none, lz4, snappy, gzip or zstd"},
		{"setup --checkpoint kafka:", "want file:PATH, kafka:TOPIC or none"},
		{"setup --delivery exactly-once --checkpoint file:x", "leave --checkpoint away"},
		{"setup --create-topics 3", "PARTITIONS:REPLICATION"},
		{"setup --http nowhere", "host:port"},
		{"setup --drain-timeout 30", "30s"},
		{"setup --poison skip", "want stop or dead-letter"},
		{"setup --column nonsense=x", "nonsense"},
		{"setup --topic bad/topic", "bad/topic"},
		{"setup --kafka-ca-file /nowhere/ca.pem --kafka-tls", "cannot be read"},
		{"setup --kafka-cert-file /dev/null --kafka-tls", "go together"},
		{"setup --kafka-ca-file /dev/null", "without --kafka-tls"},
		{"setup --kafka-sasl plain", "--kafka-password-file"},
		{"setup --kafka-sasl oauthbearer", "--kafka-oauth-token-file"},
		{"setup --kafka-username u", "without --kafka-sasl"},
		{"setup --config /nowhere.yaml", "--config /nowhere.yaml: no such file"},
		{"setup --timeout soon", "want a duration"},
	} {
		t.Setenv("WALRELAY_POSTGRES_URL", "postgres://localhost/x")
		if c.args == "setup" {
			t.Setenv("WALRELAY_POSTGRES_URL", "")
		}
		code, stdout, stderr := command(t, strings.Fields(c.args)...)
		if code != exitUsage || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 || stdout != "" {
			t.Errorf("walrelay %s: exit %d\n%s%s  want one line with %q", c.args, code, stdout, stderr, c.want)
		}
	}
}
