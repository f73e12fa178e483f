// Command demo shows walrelay at work for about a minute and proves at the end that
// nothing was lost: see package demo. WALRELAY_BIN names the binary; without it, it is built.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/walrelay/walrelay/e2e/demo"
	"github.com/walrelay/walrelay/e2e/harness"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// A second signal ends the program at once; what it started is then ended by others.
	context.AfterFunc(ctx, stop)
	defer harness.RemoveBinary()
	err := demo.Run(ctx, os.Stdout)
	if err != nil && ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "demo: stopped")
		return 130
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
