package sink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// ClientConfig says how to reach the Kafka cluster. The durations are set by tests only; zero means the default.
type ClientConfig struct {
	Brokers  []string // seed addresses, host:port
	ClientID string
	TLS      *TLSConfig  // nil = plain text
	SASL     *SASLConfig // nil = no authentication

	// Dial opens every connection; nil = net.Dialer. Host names are passed through.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// connectTimeout is for dial, TLS, ApiVersions and SASL together; 6 s: a dead name server alone costs
	// five. A way that is free again is found sooner, by another attempt: see peer.connection.
	connectTimeout time.Duration
	requestTimeout time.Duration // a request and its answer, beyond the server-side time-out of a produce or fetch request; 30 s
	metadataMaxAge time.Duration // age at which known partitions are asked for again, when they are next used; 1 min

	Log zerolog.Logger
}

// Client is the connection layer: one owned connection per broker, and a second one
// for what must not wait behind a produce request (a broker answers the requests of
// one connection in order). It implements [kafka.RoundTripper].
// All methods may be called from any goroutine.
//
// The only goroutines are those of the connections, one each, from the dial on; [Client.Close] waits for them.
// Everything else runs in the caller. An idle client has no timer.
type Client struct {
	cfg   ClientConfig
	creds *credentials

	asking chan struct{} // capacity 1: held by the one caller that asks for metadata

	mu           sync.Mutex // never held across I/O
	closed       bool
	epoch        context.Context // ends at Reset and Close; connects under way end with it
	endEpoch     context.CancelFunc
	seeds        []*peer
	brokers      map[int32]*peer // by node id, from the last metadata answer
	conns        map[*conn]struct{}
	controller   int32 // node id, -1 = unknown
	coordinators map[coordinatorKey]int32
	topics       map[string]*knownTopic
	asks         uint64 // metadata requests begun
	slowRounds   int    // rounds over all brokers in a row that nobody answered in time
	refusals     int    // of the password, in a row, by any broker
	served       bool   // a broker has answered a request
	goroutines   sync.WaitGroup
}

var _ kafka.RoundTripper = (*Client)(nil)

// NewClient checks the configuration; it does no I/O, so its errors are all errors of configuration.
func NewClient(cfg ClientConfig) (*Client, error) {
	if len(cfg.Brokers) == 0 {
		return nil, errors.New("no Kafka brokers given: set --kafka-brokers host:port,…")
	}
	for _, b := range cfg.Brokers {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("--kafka-brokers: %q is not host:port", b)
		}
	}
	if err := cfg.TLS.check(); err != nil {
		return nil, err
	}
	if err := cfg.SASL.check(); err != nil {
		return nil, err
	}
	if cfg.ClientID == "" {
		cfg.ClientID = "walrelay"
	}
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext
	}
	cfg.connectTimeout = or(cfg.connectTimeout, 6*time.Second)
	cfg.requestTimeout = or(cfg.requestTimeout, 30*time.Second)
	cfg.metadataMaxAge = or(cfg.metadataMaxAge, time.Minute)
	c := &Client{
		cfg:          cfg,
		creds:        newCredentials(cfg.SASL, cfg.Dial),
		asking:       make(chan struct{}, 1),
		brokers:      make(map[int32]*peer),
		conns:        make(map[*conn]struct{}),
		controller:   -1,
		coordinators: make(map[coordinatorKey]int32),
		topics:       make(map[string]*knownTopic),
	}
	c.epoch, c.endEpoch = context.WithCancel(context.Background())
	// Relays started together must not all begin with the same seed.
	first := rand.IntN(len(cfg.Brokers))
	for i := range cfg.Brokers {
		c.seeds = append(c.seeds, newPeer(c, -1, cfg.Brokers[(first+i)%len(cfg.Brokers)]))
	}
	return c, nil
}

func or(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

// Send sends req to one broker and returns its answer. Errors are those of the
// transport ([BrokerError], [AuthError], the context's); codes inside the answer are the caller's.
// A broker that could not be reached lately is tried again only after a back-off of up to a second, which Send waits for.
//
// When ctx ends first, the connection is closed, so that nothing waits behind an
// answer that nobody wants. A caller that learns that a partition's leader has moved while
// the old one is silent ends ctx to get out.
//
// The bytes behind req are the caller's again when Send returns. The reader of a
// [protocol.RawRecordSet] is consumed; if it is an io.WriterTo, as bytes.Reader is, its bytes go to the
// socket without being copied.
func (c *Client) Send(ctx context.Context, broker int32, req protocol.Message) (protocol.Message, error) {
	c.mu.Lock()
	p, closed := c.brokers[broker], c.closed
	c.mu.Unlock()
	switch {
	case closed:
		return nil, errClientClosed
	case p == nil:
		return nil, fmt.Errorf("sink: broker %d: %w", broker, errUnknownBroker)
	}
	return p.send(ctx, req)
}

// Admin returns kafka-go's admin calls over this client.
func (c *Client) Admin() *kafka.Client {
	return &kafka.Client{
		Addr:      kafka.TCP(c.cfg.Brokers...),
		Timeout:   c.cfg.requestTimeout, // 0 would become 500 ms on the broker's side
		Transport: c,
	}
}

// Reset drops every connection and forgets coordinators; calls in flight fail, and
// so do connects under way. The client stays usable.
func (c *Client) Reset() { c.drop(errReset, false) }

// Close drops every connection for good. All goroutines of the client have ended when it returns.
func (c *Client) Close() {
	c.drop(errClientClosed, true)
	c.goroutines.Wait()
}

func (c *Client) drop(why error, final bool) {
	c.mu.Lock()
	c.endEpoch()
	if final {
		c.closed = true
	} else if !c.closed {
		c.epoch, c.endEpoch = context.WithCancel(context.Background())
	}
	for _, p := range c.brokers {
		p.reset()
	}
	for _, p := range c.seeds {
		p.reset()
	}
	clear(c.coordinators)
	for _, k := range c.topics {
		k.want = c.asks + 1
	}
	conns := make([]*conn, 0, len(c.conns))
	for nc := range c.conns {
		conns = append(conns, nc)
	}
	c.mu.Unlock()
	for _, nc := range conns {
		nc.fail(why)
	}
	for _, nc := range conns {
		<-nc.ended
	}
}
