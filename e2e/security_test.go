package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/segmentio/kafka-go"

	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/sink"
)

const (
	relayPassword = "pass.w+ord-7"
	wrongPassword = "SECRET-wrong"
	sessionLife   = 3 * time.Second // connections.max.reauth.ms
)

// secured is a broker with a listener for each way of getting in, and of not getting in.
type secured struct {
	t     *testing.T
	kafka *stack.Kafka
	dir   string
	ca    *certAuthority
	other *certAuthority
}

func newSecured(t *testing.T) *secured {
	t.Helper()
	s := &secured{t: t, dir: t.TempDir()}
	s.ca, s.other = newCertAuthority(t, s.dir, "our CA"), newCertAuthority(t, s.dir, "other CA")
	jaas := "org.apache.kafka.common.security."
	config := map[string]string{
		"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM",
		"ssl.keystore.location":                                  s.ca.issue("broker", "127.0.0.1", 24*time.Hour).both,
		"ssl.truststore.location":                                s.ca.file,
		"sasl.enabled.mechanisms":                                "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
		"connections.max.reauth.ms":                              fmt.Sprint(sessionLife.Milliseconds()),
		"listener.name.mtls.ssl.client.auth":                     "required",
		"listener.name.misnamed.ssl.keystore.location":           s.ca.issue("misnamed", "192.0.2.7", 24*time.Hour).both,
		"listener.name.expired.ssl.keystore.location":            s.ca.issue("expired", "127.0.0.1", -time.Minute).both,
		"listener.name.secure.plain.sasl.jaas.config":            jaas + `plain.PlainLoginModule required user_relay="` + relayPassword + `";`,
		"listener.name.secure.scram-sha-256.sasl.jaas.config":    jaas + "scram.ScramLoginModule required;",
		"listener.name.secure.scram-sha-512.sasl.jaas.config":    jaas + "scram.ScramLoginModule required;",
		"listener.name.secure.oauthbearer.sasl.jaas.config":      jaas + `oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`,
		"listener.name.onlyscram.scram-sha-256.sasl.jaas.config": jaas + "scram.ScramLoginModule required;",
		"listener.name.onlyscram.sasl.enabled.mechanisms":        "SCRAM-SHA-256",
	}
	for _, l := range []string{"misnamed", "expired"} {
		config["listener.name."+l+".ssl.keystore.type"] = "PEM"
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	var err error
	s.kafka, err = stack.StartKafka(ctx, stack.KafkaOptions{
		Config:    config,
		Listeners: map[string]string{"SECURE": "SASL_SSL", "MTLS": "SSL", "MISNAMED": "SSL", "EXPIRED": "SSL", "ONLYSCRAM": "SASL_PLAINTEXT"},
		FormatArgs: []string{
			"--add-scram", "SCRAM-SHA-256=[name=relay,password=" + relayPassword + "]",
			"--add-scram", "SCRAM-SHA-512=[name=relay,password=" + relayPassword + "]",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.kafka.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.kafka.CreateTopics(ctx, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	return s
}

// client is for a listener, "" = the plain one.
func (s *secured) client(listener string, change func(*sink.ClientConfig)) *sink.Client {
	s.t.Helper()
	cfg := sink.ClientConfig{Brokers: []string{s.kafka.Bootstrap()}}
	if listener != "" {
		cfg.Brokers = []string{s.kafka.BootstrapOf(listener)}
	}
	if change != nil {
		change(&cfg)
	}
	c, err := sink.NewClient(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

func useTopic(ctx context.Context, c *sink.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	known, err := c.Metadata(ctx, "t")
	if err == nil {
		err = known["t"].Err
	}
	if err != nil {
		return err
	}
	res, err := c.Admin().ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{"t": {kafka.LastOffsetOf(0)}}})
	if err != nil {
		return err
	}
	return res.Topics["t"][0].Error
}

// Security on a real broker: who gets in, and what those are told who do not.
func TestSecurity(t *testing.T) {
	s := newSecured(t)
	t.Run("mechanisms", s.mechanisms)
	t.Run("mismatches", s.mismatches)
	t.Run("token endpoint", s.tokenEndpoint)
	t.Run("session plain", func(t *testing.T) { s.session(t, "plain") })
	t.Run("session scram", func(t *testing.T) { s.session(t, "scram-sha-512") })
}

// Each mechanism with the right secret, a wrong one, and the right one again in the same file.
func (s *secured) mechanisms(t *testing.T) {
	for _, mechanism := range []string{"plain", "scram-sha-256", "scram-sha-512", "oauthbearer"} {
		file := filepath.Join(s.dir, mechanism)
		right := map[bool]string{false: relayPassword, true: unsecuredToken("relay", time.Minute)}[mechanism == "oauthbearer"]
		write := func(secret string) {
			if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c := s.client("SECURE", func(cfg *sink.ClientConfig) {
			cfg.TLS = &sink.TLSConfig{CAFile: s.ca.file}
			cfg.SASL = &sink.SASLConfig{Mechanism: mechanism, Username: "relay", PasswordFile: file}
			if mechanism == "oauthbearer" {
				cfg.SASL = &sink.SASLConfig{Mechanism: mechanism, OAuth: sink.OAuthConfig{TokenFile: file}}
			}
		})
		for _, secret := range []string{right, wrongPassword, right} {
			write(secret)
			c.Reset()
			err := useTopic(t.Context(), c)
			var refused *sink.AuthError
			switch {
			case secret == right && err != nil:
				t.Errorf("%s: %v", mechanism, err)
			case secret == wrongPassword && (!errors.As(err, &refused) || strings.Contains(err.Error(), wrongPassword)):
				t.Errorf("%s with a wrong secret: %v", mechanism, err)
			case secret == wrongPassword:
				t.Log(err)
			}
		}
	}
}

// OAUTHBEARER with tokens from an endpoint, which is asked again before a token ends.
func (s *secured) tokenEndpoint(t *testing.T) {
	t.Parallel() // with the sessions, which also only take time
	var mu sync.Mutex
	asked := 0
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":2}`, unsecuredToken("relay", 2*time.Second))
	}))
	defer idp.Close()
	secret := filepath.Join(s.dir, "client-secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := new(logBuffer)
	c := s.client("SECURE", func(cfg *sink.ClientConfig) {
		cfg.TLS = &sink.TLSConfig{CAFile: s.ca.file}
		cfg.SASL = &sink.SASLConfig{Mechanism: "oauthbearer", OAuth: sink.OAuthConfig{TokenURL: idp.URL, ClientID: "relay", ClientSecretFile: secret}}
		cfg.Log = zerolog.New(log)
	})
	s.useFor(t, c, 7*time.Second)
	mu.Lock()
	defer mu.Unlock()
	if asked < 3 || asked > 8 {
		t.Errorf("%d tokens of 2 s in 7 s", asked)
	}
	if n := log.count("connection open"); n > 2 {
		t.Errorf("%d connections", n)
	}
}

// KIP-368: in several lifetimes of a session no connection is lost, nor after an idle lifetime.
func (s *secured) session(t *testing.T, mechanism string) {
	t.Parallel()
	log := new(logBuffer)
	c := s.client("SECURE", func(cfg *sink.ClientConfig) {
		cfg.TLS = &sink.TLSConfig{CAFile: s.ca.file}
		cfg.SASL = &sink.SASLConfig{Mechanism: mechanism, Username: "relay", Password: relayPassword}
		cfg.Log = zerolog.New(log)
	})
	s.useFor(t, c, size(8*time.Second, time.Minute))
	<-time.After(sessionLife + time.Second) // the broker's clock is a real one
	if err := useTopic(t.Context(), c); err != nil {
		t.Error(err)
	}
	if n := log.count("connection open"); n > 2 {
		t.Errorf("%d connections:\n%s", n, log.String())
	}
}

func (s *secured) useFor(t *testing.T, c *sink.Client, d time.Duration) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		if err := useTopic(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
}

// What does not fit together is told apart.
func (s *secured) mismatches(t *testing.T) {
	ours, theirs := s.ca.issue("relay", "127.0.0.1", time.Hour), s.other.issue("stranger", "127.0.0.1", time.Hour)
	trust := &sink.TLSConfig{CAFile: s.ca.file}
	login := &sink.SASLConfig{Mechanism: "scram-sha-256", Username: "relay", Password: relayPassword}
	for _, tc := range []struct {
		name, listener string
		tls            *sink.TLSConfig
		sasl           *sink.SASLConfig
		want           string // "" = it works
	}{
		{"plain", "", nil, nil, ""},
		{"mutual TLS", "MTLS", &sink.TLSConfig{CAFile: s.ca.file, CertFile: ours.cert, KeyFile: ours.key}, nil, ""},
		{"no client certificate", "MTLS", trust, nil, "it asks for a client certificate and got none (bad certificate): set --kafka-cert-file"},
		{"client certificate of another CA", "MTLS", &sink.TLSConfig{CAFile: s.ca.file, CertFile: theirs.cert, KeyFile: theirs.key}, nil, "--kafka-cert-file"},
		{"wrong CA", "MTLS", &sink.TLSConfig{CAFile: s.other.file, CertFile: ours.cert, KeyFile: ours.key}, nil, "not trusted (issuer CN=our CA): give the CA"},
		{"wrong name", "MISNAMED", trust, nil, `its certificate is for 192.0.2.7, not for "127.0.0.1"`},
		{"expired", "EXPIRED", trust, nil, "its certificate expired at 20"},
		{"plain text to a TLS port", "MTLS", nil, nil, "--kafka-tls"},
		{"TLS to a plain port", "", trust, nil, "plain-text listener"},
		{"no SASL to a SASL port", "SECURE", trust, nil, "--kafka-sasl"},
		{"SASL to a port without", "", nil, login, "does not use SASL: drop --kafka-sasl"},
		{"a mechanism that is not offered", "ONLYSCRAM", nil, &sink.SASLConfig{Mechanism: "plain", Username: "relay", Password: relayPassword}, "--kafka-sasl: scram-sha-256"},
		{"SASL in plain text", "ONLYSCRAM", nil, login, ""},
	} {
		start := time.Now()
		c := s.client(tc.listener, func(cfg *sink.ClientConfig) { cfg.TLS, cfg.SASL = tc.tls, tc.sasl })
		err := useTopic(t.Context(), c)
		c.Close()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		} else {
			t.Logf("%s (%v): %v", tc.name, time.Since(start).Round(time.Millisecond), err)
		}
	}
}

// unsecuredToken is a JWT without signature, which a broker takes unless told otherwise.
func unsecuredToken(subject string, life time.Duration) string {
	b64 := base64.RawURLEncoding.EncodeToString
	now := time.Now()
	return b64([]byte(`{"alg":"none"}`)) + "." + b64(fmt.Appendf(nil, `{"sub":%q,"iat":%d,"exp":%d}`, subject, now.Unix(), now.Add(life).Unix()+1)) + "."
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) count(text string) int { return strings.Count(l.String(), text) }

// certAuthority is a CA of one test.
type certAuthority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newCertAuthority(t *testing.T, dir, name string) *certAuthority {
	a := &certAuthority{t: t, dir: dir}
	a.key = newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	a.file = a.write(strings.ReplaceAll(name, " ", "-")+".pem", pemBlock("CERTIFICATE", der))
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// certFiles are PEM files: certificate, key, and both in one, as a broker wants them.
type certFiles struct{ cert, key, both string }

// issue makes a certificate for an IP address whose life ends so long from now.
func (a *certAuthority) issue(name, ip string, life time.Duration) certFiles {
	key := newKey(a.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.ParseIP(ip)},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, private := pemBlock("CERTIFICATE", der), pemBlock("PRIVATE KEY", pkcs8)
	return certFiles{a.write(name+".crt", cert), a.write(name+".key", private), a.write(name+".pem", private+cert)}
}

func (a *certAuthority) write(name, content string) string {
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		a.t.Fatal(err)
	}
	return path
}

func pemBlock(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
