package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

var (
	// errClientClosed is returned by every call on a closed [Client].
	errClientClosed = errors.New("sink: the Kafka client is closed")

	// errReset ends the calls in flight when the client drops its connections on request.
	errReset = errors.New("connections dropped on request")
	// errGivenUp ends a connection whose answer is no longer waited for.
	errGivenUp = errors.New("an unanswered request was given up")
	// errMoved ends the connections of a broker that metadata no longer has at that address.
	errMoved = errors.New("the broker left the cluster or moved to another address")
	// errMaybePlain and errMaybeTLS: a listener of the other kind hangs up on the first bytes.
	errMaybePlain = errors.New("the broker closed the connection: its port may be a plain-text listener " +
		"(use the TLS listener's port, or drop --kafka-tls)")
	errMaybeTLS = errors.New("the broker closed the connection: its port may be a TLS listener " +
		"(set --kafka-tls, or use the plain-text listener's port)")
	// errUnwanted is what a plain client of a SASL listener sees.
	errUnwanted = errors.New("the broker closed the connection at the first request: " +
		"its listener may ask for authentication (--kafka-sasl), or is not meant for clients")
	// errUnknownBroker is returned for a node id that metadata has not shown.
	errUnknownBroker = errors.New("not in the cluster's metadata")
	// errAcksNone: such a produce request has no answer, so nothing could be promised.
	errAcksNone = errors.New("produce requests with acks=0 are not supported")
)

// BrokerError is what went wrong between us and one broker: the network, a time-out, or
// an answer that is not Kafka's protocol. All of them are worth a retry.
type BrokerError struct {
	Node int32  // node id; -1 = a seed, asked before the cluster was known
	Addr string // host:port
	Op   string // noun phrase: "TLS handshake", "Produce", …
	Err  error
}

func (e *BrokerError) Error() string {
	return "sink: " + brokerName(e.Node, e.Addr) + ": " + e.Op + ": " + plainly(e.Err)
}

func (e *BrokerError) Unwrap() error { return e.Err }

func brokerName(node int32, addr string) string {
	if node < 0 {
		return "broker at " + addr
	}
	return fmt.Sprintf("broker %d at %s", node, addr)
}

// plainly words what Go says about a lost connection for an operator.
func plainly(err error) string {
	var lookup *net.DNSError
	switch {
	case isClosed(err):
		return "the broker closed the connection"
	case isTimeout(err):
		return "no answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: nothing listens there"
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return fmt.Sprintf("the host name %q is unknown to DNS", lookup.Name)
	}
	return err.Error()
}

// isClosed: the other side ended the connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// AuthError is returned when the two sides do not accept each other: certificates, SASL.
// Only a person, or a rotated file, changes that. Neither Reason nor Remedy ever holds a secret.
type AuthError struct {
	Broker string // "broker 2 at host:9093"
	Reason string // what was refused, by whom
	Remedy string // what to do about it
	Err    error  // the cause; may be nil
}

func (e *AuthError) Error() string {
	return "sink: " + e.Broker + ": " + e.Reason + ": " + e.Remedy
}

func (e *AuthError) Unwrap() error { return e.Err }
