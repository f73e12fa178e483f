package sink

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/rs/zerolog"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// ErrClientClosed is returned by every call on a closed [Client].
var ErrClientClosed = errors.New("sink: the Kafka client is closed")

// ClientConfig says how to reach the Kafka cluster. Zero durations mean the defaults.
type ClientConfig struct {
	Brokers  []string // seed addresses, host:port
	ClientID string
	TLS      *TLSConfig  // nil = plain text
	SASL     *SASLConfig // nil = no authentication

	// Dial opens every connection; nil = net.Dialer. Host names are passed through.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	ConnectTimeout time.Duration // dial, TLS, ApiVersions and SASL together; 10 s
	RequestTimeout time.Duration // a request and its answer, beyond the server-side timeout of a produce request; 30 s
	MetadataMaxAge time.Duration // age at which known partitions are asked for again, when they are next used; 1 min

	Log zerolog.Logger
}

// TLSConfig turns TLS on. Brokers are always verified. Files are read again for every connection.
type TLSConfig struct {
	CAFile   string // PEM; "" = the system's roots
	CertFile string // PEM client certificate (mTLS); "" = none
	KeyFile  string // PEM key of CertFile
}

// SASLConfig chooses how to authenticate. Files are read again for every connection and re-authentication.
type SASLConfig struct {
	Mechanism    string // plain, scram-sha-256, scram-sha-512, oauthbearer
	Username     string // plain, scram
	Password     string // plain, scram; used where PasswordFile is ""
	PasswordFile string
	OAuth        OAuthConfig // oauthbearer
}

// OAuthConfig names where the bearer token comes from: a file, or a token endpoint (client credentials grant).
type OAuthConfig struct {
	TokenFile        string // holds the token itself
	TokenURL         string // https, or http on loopback
	ClientID         string
	ClientSecretFile string
	Scope            string
	Extensions       map[string]string // SASL extensions (KIP-342)
}

// Topic is what the cluster last said about a topic.
type Topic struct {
	Name       string
	Err        error       // nil or a kafka.Error: unknown topic, authorization, …
	ID         [16]byte    // zero where the broker is too old to say
	Partitions []Partition // index = partition id
}

// Partition is what the cluster last said about one partition.
type Partition struct {
	Leader   int32 // node id, -1 = none
	Epoch    int32 // leader epoch, -1 = unknown
	Err      error // nil or a kafka.Error
	Replicas []int32
	ISR      []int32
}

// Client is the connection layer: one owned connection per broker (and one more
// for what must not wait behind a produce request). It implements [kafka.RoundTripper].
// All methods may be called from any goroutine.
type Client struct{}

var _ kafka.RoundTripper = (*Client)(nil)

// NewClient checks the configuration; it does no I/O, so its errors are all errors of configuration.
func NewClient(cfg ClientConfig) (*Client, error) { return nil, errors.New("sink: not built yet") }

// RoundTrip sends req to the broker that it is meant for: the partition's leader,
// the controller, a coordinator, or any. The address is ignored: a client knows its cluster.
func (c *Client) RoundTrip(ctx context.Context, _ net.Addr, req kafka.Request) (kafka.Response, error) {
	return nil, ErrClientClosed
}

// Send sends req to one broker and returns its answer. Errors are those of the
// transport; codes inside the answer are the caller's.
//
// When ctx ends first, the connection is closed, so that nothing waits behind the
// answer that nobody wants. A caller that learns that a partition's leader has moved while
// the old one is silent ends ctx to get out.
//
// The bytes behind req are the caller's again when Send returns.
func (c *Client) Send(ctx context.Context, broker int32, req protocol.Message) (protocol.Message, error) {
	return nil, ErrClientClosed
}

// Metadata returns what the cluster says about the topics: from memory where that is
// fresh and without errors, else asked from any broker. The map has an entry for each topic asked for.
// The error is one of the transport: no broker answered.
func (c *Client) Metadata(ctx context.Context, topics ...string) (map[string]Topic, error) {
	return nil, ErrClientClosed
}

// Refresh marks topics stale (none = all): the next Metadata asks again, no sooner than a back-off allows.
func (c *Client) Refresh(topics ...string) {}

// Admin returns kafka-go's admin calls over this client.
func (c *Client) Admin() *kafka.Client { return &kafka.Client{Transport: c, Timeout: 30 * time.Second} }

// Reset drops every connection and forgets coordinators; calls in flight fail. The client stays usable.
func (c *Client) Reset() {}

// Close drops every connection for good. All goroutines of the client have ended when it returns.
func (c *Client) Close() {}
