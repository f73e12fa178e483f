// Command bench measures walrelay on a real Postgres and a real Kafka that it starts
// itself, prints tables, and writes the same as JSON.
//
//	go run ./cmd/bench                                    # everything, about four minutes
//	go run ./cmd/bench -drain 300/100,1024/10/1/1/zstd -rates '' -starts 0
//	go run ./cmd/bench -relay old=/tmp/a,new=/tmp/b       # two binaries in turns
//	go run ./cmd/bench -drain 300/1000000,1048576/10 -events 1000000   # memory: VmHWM
//	go run ./cmd/bench -drain '' -rates '' -starts 0 -away 2147483648 -burst 2000 -growth 10
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/walrelay/walrelay/e2e/bench"
	"github.com/walrelay/walrelay/e2e/harness"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == "discard": // roles of the processes that a bench starts
		events, _ := strconv.Atoi(args[2])
		err = bench.Discard(ctx, os.Getenv("BENCH_URL"), args[1], events)
	case len(args) == 3 && args[0] == "acks":
		partitions, _ := strconv.Atoi(args[2])
		err = bench.ServeAcks(args[1], partitions)
	default:
		err = measure(ctx, args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, args []string) error {
	o := bench.Options{Progress: os.Stderr}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	relays := flags.String("relay", "", "binaries as `NAME=PATH,…`, with +exactly-once behind a path in that mode (default: walrelay, built from the source)")
	drains := flags.String("drain", "300/100,300/1", "`workloads`: SIZE/ROWS[/PARTITIONS[/TOPICS[/CODEC]]], bytes of payload and rows a transaction")
	events := flags.Int("events", 300_000, "events of a backlog")
	rates := flags.String("rates", "100,1000,10000", "`events` a second at which latency is measured; from 2,000 on ten rows a transaction")
	options := flags.String("options", "", "further `options` of the relays in drains")
	out := flags.String("json", "", "`file` to write the numbers to")
	flags.IntVar(&o.Repeat, "repeat", 5, "rounds of drains")
	flags.StringVar(&o.Postgres, "postgres", "", "major `version` of Postgres (default: an installed one, else 18)")
	flags.DurationVar(&o.Window, "window", 5*time.Second, "how long latency is measured at a time")
	flags.IntVar(&o.Starts, "starts", 10, "starts to measure; 0: neither start-up nor idle cost")
	flags.DurationVar(&o.Idle, "idle", 10*time.Second, "how long an idle relay is watched")
	flags.StringVar(&o.Profiles, "profiles", "", "`folder` for a CPU profile of each workload")
	flags.BoolVar(&o.Binary, "binary", false, "also pg_recvlogical with binary values")
	flags.IntVar(&o.Growth, "growth", 0, "also drain a backlog of so many `times` the events: is the cost of an event the same?")
	flags.IntVar(&o.Away, "away", 0, "`bytes` of payload that wait while Kafka is away: how much memory does that take?")
	flags.IntVar(&o.Burst, "burst", 0, "`rows` of transactions that come twice a second between single events: how late are these?")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.Args = strings.Fields(*options)
	var err error
	if o.Relays, err = parseRelays(*relays); err != nil {
		return err
	}
	for _, s := range split(*drains) {
		w, err := bench.ParseWorkload(s, *events)
		if err != nil {
			return err
		}
		o.Workloads = append(o.Workloads, w)
	}
	for _, s := range split(*rates) {
		rate, err := strconv.Atoi(s)
		if err != nil || rate < 1 {
			return fmt.Errorf("-rates %q: want numbers", *rates)
		}
		o.Rates = append(o.Rates, rate)
	}
	defer harness.RemoveBinary()
	report, err := bench.Run(ctx, o)
	report.Print(os.Stdout)
	if *out != "" {
		b, _ := json.MarshalIndent(report, "", " ")
		err = errors.Join(err, os.WriteFile(*out, append(b, '\n'), 0o644))
	}
	return err
}

func parseRelays(s string) (list []bench.Relay, err error) {
	for _, pair := range split(s) {
		name, path, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("-relay %q: want NAME=PATH", pair)
		}
		list = append(list, bench.Relay{Name: name, Path: path})
	}
	if list != nil {
		return list, os.Setenv("WALRELAY_BIN", list[0].Path) // the harness' binary
	}
	path, err := harness.Binary()
	return []bench.Relay{{Name: "walrelay", Path: path}}, err
}

func split(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}
