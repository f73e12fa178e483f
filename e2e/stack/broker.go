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

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/walrelay/walrelay/e2e/proc"
	"github.com/walrelay/walrelay/e2e/proxy"
)

// Broker is one node of a Kafka: broker and controller in one process.
type Broker struct {
	ID    int
	Proxy *proxy.Proxy // nil without KafkaOptions.Proxy

	kafka      *Kafka
	scope      *proc.Scope
	client     int // ports: the clients' listener,
	internal   int // the brokers' and the checkers',
	controller int // the controllers',
	extra      map[string]int
	server     *proc.Process
}

func newBroker(k *Kafka, id int) (*Broker, error) {
	names := slices.Sorted(maps.Keys(k.opts.Listeners))
	free, err := proc.FreePorts(3 + len(names))
	if err != nil {
		return nil, err
	}
	b := &Broker{ID: id, kafka: k, client: free[0], internal: free[1], controller: free[2], extra: map[string]int{}}
	if k.opts.Port != 0 {
		b.client = k.opts.Port + id - 1
	}
	for i, name := range names {
		b.extra[name] = free[3+i]
	}
	if k.opts.Proxy {
		if b.Proxy, err = proxy.ListenKafka(proc.Addr(b.client)); err != nil {
			return nil, err
		}
	}
	b.scope, err = proc.NewScope(fmt.Sprintf("kafka%d", id))
	return b, err
}

// properties are the lines of server.properties.
func (b *Broker) properties() string {
	listeners := []string{"CLIENT://" + proc.Addr(b.client), "INTERNAL://" + proc.Addr(b.internal)}
	advertised := []string{"CLIENT://" + b.Addr(), "INTERNAL://" + proc.Addr(b.internal)}
	protocols := []string{"CLIENT:PLAINTEXT", "INTERNAL:PLAINTEXT", "CONTROLLER:PLAINTEXT"}
	for _, name := range slices.Sorted(maps.Keys(b.extra)) {
		listeners = append(listeners, name+"://"+proc.Addr(b.extra[name]))
		advertised = append(advertised, name+"://"+proc.Addr(b.extra[name]))
		protocols = append(protocols, name+":"+b.kafka.opts.Listeners[name])
	}
	p := map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        fmt.Sprint(b.ID),
		"controller.quorum.voters":       b.kafka.voters,
		"listeners":                      strings.Join(append(listeners, "CONTROLLER://"+proc.Addr(b.controller)), ","),
		"advertised.listeners":           strings.Join(advertised, ","),
		"listener.security.protocol.map": strings.Join(protocols, ","),
		"inter.broker.listener.name":     "INTERNAL",
		"controller.listener.names":      "CONTROLLER",
		"log.dirs":                       b.DataDir(),
	}
	maps.Copy(p, brokerDefaults)
	maps.Copy(p, replicationDefaults(b.kafka.opts.Brokers))
	maps.Copy(p, b.kafka.opts.Config)
	var s strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&s, "%s=%s\n", name, p[name])
	}
	return s.String()
}

// DataDir is the folder of the broker's logs.
func (b *Broker) DataDir() string { return filepath.Join(b.scope.Dir, "data") }

func (b *Broker) configFile() string { return filepath.Join(b.scope.Dir, "server.properties") }

// format prepares the data folder.
func (b *Broker) format(ctx context.Context) error {
	if err := b.scope.Mkdir(b.DataDir(), b.kafka.opts.Tmpfs); err != nil {
		return err
	}
	if err := os.WriteFile(b.configFile(), []byte(b.properties()), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.scope.Dir, "log4j2.properties"), []byte(log4j2), 0o600); err != nil {
		return err
	}
	if len(b.kafka.opts.FormatArgs) == 0 && b.kafka.opts.Config["metadata.version"] == "" {
		return b.formatFromTemplate(ctx)
	}
	return b.runStorageTool(ctx, b.configFile(), b.kafka.opts.FormatArgs...)
}

func (b *Broker) runStorageTool(ctx context.Context, config string, args ...string) error {
	argv := append([]string{b.kafka.java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", b.kafka.lib + "/*",
		"kafka.tools.StorageTool", "format", "-t", b.kafka.id, "-c", config}, args...)
	return proc.Run(ctx, b.scope.Dir, nil, argv...)
}

// launch starts the process; the broker is not ready yet.
func (b *Broker) launch() (err error) {
	if b.server.Running() {
		return fmt.Errorf("stack: broker %d runs already", b.ID)
	}
	heap := b.kafka.opts.HeapMB
	if heap == 0 {
		heap = 320
	}
	argv := append([]string{b.kafka.java, fmt.Sprintf("-Xmx%dm", heap), fmt.Sprintf("-Xms%dm", min(heap, 192))}, jvmFlags...)
	argv = append(append(argv, b.kafka.jvm...), "-Dlog4j2.configurationFile="+filepath.Join(b.scope.Dir, "log4j2.properties"),
		"-cp", b.kafka.lib+"/*", "kafka.Kafka", b.configFile())
	b.server, err = proc.Start(proc.Options{Name: fmt.Sprintf("broker %d", b.ID), Dir: b.scope.Dir, Log: b.LogFile()}, argv...)
	return err
}

// await returns when the broker answers and knows of at least n brokers.
func (b *Broker) await(ctx context.Context, n int) error {
	return b.server.Await(ctx, func(ctx context.Context) error {
		client, err := kgo.NewClient(kgo.SeedBrokers(proc.Addr(b.internal)))
		if err != nil {
			return err
		}
		defer client.Close()
		meta, err := kadm.NewClient(client).BrokerMetadata(ctx)
		if err != nil {
			return err
		}
		if len(meta.Brokers) < n || meta.Controller < 0 || !slices.Contains(meta.Brokers.NodeIDs(), int32(b.ID)) {
			return fmt.Errorf("brokers known: %v", meta.Brokers.NodeIDs())
		}
		return nil
	})
}

// Start starts a stopped or killed broker and returns when it is ready.
func (b *Broker) Start(ctx context.Context) error {
	if err := b.launch(); err != nil {
		return err
	}
	return b.await(ctx, 1)
}

// Stop asks the broker to stop (SIGTERM) and waits until it has.
func (b *Broker) Stop(ctx context.Context) error {
	if !b.server.Running() {
		return nil
	}
	syscall.Kill(b.server.Pid(), syscall.SIGTERM)
	return b.server.Wait(ctx)
}

// Kill is kill -9, and returns when the process has gone.
func (b *Broker) Kill() error { return kill(b.scope, b.server) }

// Pause is SIGSTOP.
func (b *Broker) Pause() { b.scope.Signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (b *Broker) Resume() { b.scope.Signal(syscall.SIGCONT) }

// Pid is the broker's process id.
func (b *Broker) Pid() int { return b.server.Pid() }

// Addr is the broker's advertised host:port.
func (b *Broker) Addr() string {
	if b.Proxy != nil {
		return b.Proxy.Addr()
	}
	return proc.Addr(b.client)
}

func (b *Broker) close() error {
	if b.Proxy != nil {
		b.Proxy.Close()
	}
	if b.scope == nil {
		return nil
	}
	return errors.Join(b.scope.Close())
}
