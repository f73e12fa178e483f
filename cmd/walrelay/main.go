// walrelay relays a transactional outbox from Postgres to Kafka.
package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
)

// version is set by the linker: -X main.version=v1.2.3.
var version = ""

func main() {
	abortOnPanic()
	collectEarly()
	ctx, stop := interruptible()
	defer stop()
	os.Exit(execute(ctx, os.Args, os.Stdout, os.Stderr))
}

// execute runs one command line and returns its exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s := newSettings(stderr)
	err := newApp(s, stdout, stderr).RunContext(ctx, args)
	if err != nil {
		report(stderr, err, s)
	}
	return exitCode(err)
}

func newApp(s *settings, stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:            "walrelay",
		Usage:           "relay a transactional outbox from Postgres to Kafka",
		Version:         versionText(),
		Writer:          stdout,
		ErrWriter:       stderr,
		Commands:        []*cli.Command{setupCommand(s), runCommand(s), replayCommand(s), recoverCommand(s), checkCommand(s), statusCommand(s), dltCommand(s)},
		HideHelpCommand: true,
		ExitErrHandler:  func(*cli.Context, error) {}, // execute reports
		Action: func(c *cli.Context) error {
			if name := c.Args().First(); name != "" {
				return usagef("unknown command %q; walrelay --help lists them", name)
			}
			return cli.ShowAppHelp(c)
		},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return usagef("%v; options follow the command: walrelay COMMAND --option value", err)
		},
	}
	app.Commands = append(app.Commands, tailCommand(s))
	for _, command := range app.Commands {
		command.HideHelpCommand = true
		command.OnUsageError = func(c *cli.Context, err error, _ bool) error { return usageHint(c, err) }
	}
	return app
}

// usageHint turns the CLI library's complaint into one line that helps.
func usageHint(c *cli.Context, err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return usagef("%v", err)
	}
	name = strings.TrimLeft(name, "-")
	return usagef("unknown option --%s; did you mean --%s? %s --help lists them", name, nearest(c.Command.Flags, name), c.Command.HelpName)
}

// interruptible returns a context that ends at the first SIGINT or SIGTERM, with
// the signal as its cause. A second one exits at once, with the code that a shell gives a
// process killed by it: what was in flight is published again at the next start.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() { // ends with the process
		cancel(errors.New((<-signals).String()))
		if second, ok := (<-signals).(syscall.Signal); ok {
			os.Exit(128 + int(second))
		}
	}()
	return ctx, func() { cancel(nil) }
}

// abortOnPanic makes a panic in any goroutine end the process by SIGABRT: the
// runtime's own exit code for it is 2, which is our code for a usage error. A core
// file would hold payloads.
func abortOnPanic() {
	debug.SetTraceback("crash")
	syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
}

// collectEarly keeps the heap near what is in use. That is buffers mostly, which live
// on: half as much again is enough for what comes and goes. GOGC overrides it.
func collectEarly() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

func versionText() string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return cmp.Or(version, "unknown")
	}
	return cmp.Or(version, info.Main.Version, "unknown") + " " + info.GoVersion
}
