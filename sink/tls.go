package sink

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// TLSConfig turns TLS on. Brokers are always verified. Files are read again for every connection.
type TLSConfig struct {
	CAFile   string // PEM; "" = the system's roots
	CertFile string // PEM client certificate (mTLS); "" = none
	KeyFile  string // PEM key of CertFile
}

// errWantsTLS is the answer of a TLS listener to a plain-text request.
var errWantsTLS = errors.New("a TLS alert where Kafka's protocol was due")

func (t *TLSConfig) check() error {
	if t != nil && (t.CertFile == "") != (t.KeyFile == "") {
		return errors.New("a client certificate needs both --kafka-cert-file and --kafka-key-file")
	}
	return nil
}

// load reads the files.
func (t *TLSConfig) load(serverName string) (*tls.Config, error) {
	cfg := &tls.Config{
		ServerName:                  serverName,
		MinVersion:                  tls.VersionTLS12,
		DynamicRecordSizingDisabled: true, // record batches are bulk: 16 KiB records from the start
	}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("CA file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA file %s holds no PEM certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("client certificate %s with key %s: %w", t.CertFile, t.KeyFile, err)
		}
		// Sent whatever CAs the broker names: its refusal says more than our silence.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	return cfg, nil
}

// tlsConn is TLS over a connection that gathers the records of one request.
type tlsConn struct {
	*tls.Conn
	corked *corked
}

func (p *peer) startTLS(t *TLSConfig, raw net.Conn) (net.Conn, error) {
	host, _, err := net.SplitHostPort(p.addr)
	if err != nil {
		return nil, p.error("TLS", err)
	}
	cfg, err := t.load(host)
	if err != nil {
		return nil, &AuthError{Broker: p.name(), Reason: err.Error(), Remedy: "mend the file; it is read again for the next connection", Err: err}
	}
	under := &corked{Conn: raw}
	c := tls.Client(under, cfg)
	if err := c.Handshake(); err != nil {
		if isClosed(err) {
			return nil, p.error("TLS handshake", p.supposing(errMaybePlain, err))
		}
		return nil, p.explain("TLS handshake", err)
	}
	return tlsConn{c, under}, nil
}

// explain turns what TLS and the first exchange on a connection can fail with
// into an error that says which side refused what.
func (p *peer) explain(op string, err error) error {
	var (
		known     *AuthError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		remote    *net.OpError
	)
	refuse := func(reason, remedy string) error {
		return &AuthError{Broker: p.name(), Reason: reason, Remedy: remedy, Err: err}
	}
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, errWantsTLS):
		return refuse("the listener wants TLS", "set --kafka-tls, or use the plain-text listener's port")
	case errors.As(err, &record):
		return refuse("the listener speaks plain text, not TLS", "use the TLS listener's port, or drop --kafka-tls")
	case errors.As(err, &hostname):
		return refuse(fmt.Sprintf("its certificate is for %s, not for %q", namesOf(hostname.Certificate), hostname.Host),
			"connect by a name that the certificate has (--kafka-brokers, and the brokers' advertised.listeners), or have that name added to its SANs")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return refuse(validity(invalid.Cert), "renew the certificate, or set the clock right")
	case errors.As(err, &authority):
		return refuse(fmt.Sprintf("its certificate is signed by an authority that is not trusted (%s)", issuerOf(authority.Cert)),
			"give the CA that signed the brokers' certificates with --kafka-ca-file")
	case errors.As(err, &invalid):
		return refuse("its certificate is not valid: "+invalid.Error(), "have a proper server certificate issued for the broker")
	case errors.As(err, &remote) && remote.Op == "remote error":
		alert := strings.TrimPrefix(remote.Err.Error(), "tls: ")
		if cfg := p.client.cfg.TLS; cfg != nil && cfg.CertFile == "" && strings.Contains(alert, "certificate") {
			return refuse(fmt.Sprintf("it asks for a client certificate and got none (%s)", alert), "set --kafka-cert-file and --kafka-key-file")
		}
		return refuse(fmt.Sprintf("it refused our side of TLS (%s)", alert),
			"if the alert is about a certificate: --kafka-cert-file must be one that the broker's truststore accepts, not expired")
	}
	return p.error(op, err)
}

func namesOf(cert *x509.Certificate) string {
	names := append([]string(nil), cert.DNSNames...)
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return "no name at all (it has no SAN)"
	}
	return strings.Join(names[:min(len(names), 10)], ", ")
}

func issuerOf(cert *x509.Certificate) string {
	if cert == nil {
		return "unknown issuer"
	}
	return "issuer " + cert.Issuer.String()
}

func validity(cert *x509.Certificate) string {
	if now := time.Now(); now.Before(cert.NotBefore) {
		return "its certificate is not valid before " + cert.NotBefore.UTC().Format(time.RFC3339)
	}
	return "its certificate expired at " + cert.NotAfter.UTC().Format(time.RFC3339)
}

// corked sits between TLS and the socket. crypto/tls writes every 16 KiB record by itself;
// corked, they go out together at the end of the request or when the buffer is full.
// The lock is for the reader, which may answer a TLS key update.
type corked struct {
	net.Conn
	mu  sync.Mutex
	out *bufio.Writer // nil = pass through, as long as the handshake goes back and forth
}

func (c *corked) cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = bufio.NewWriterSize(c.Conn, 64<<10)
}

func (c *corked) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out == nil {
		return c.Conn.Write(b)
	}
	return c.out.Write(b)
}

func (c *corked) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out == nil {
		return nil
	}
	return c.out.Flush()
}
