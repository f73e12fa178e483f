package sink

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go/protocol"
)

// authority is a CA that lives as long as its test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, _ = x509.ParseCertificate(der)
	a.file = a.write(name+".pem", "CERTIFICATE", der)
	return a
}

func (a *authority) write(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	writeFile(a.t, path, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
	return path
}

// issue makes a certificate for a host, valid from now for life, and its files.
func (a *authority) issue(host string, life time.Duration) (cert tls.Certificate, certFile, keyFile string) {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, _ := x509.MarshalECPrivateKey(key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, a.write(host+".crt", "CERTIFICATE", der), a.write(host+".key", "EC PRIVATE KEY", keyDER)
}

func tlsServer(cfg *tls.Config) func(net.Conn) net.Conn {
	return func(c net.Conn) net.Conn { return tls.Server(c, cfg) }
}

// Brokers are verified; each way in which the two sides do not fit says which, and what to do.
func TestTLSMismatchesAreNamed(t *testing.T) {
	ca, other := newAuthority(t, "our CA"), newAuthority(t, "other CA")
	good, _, _ := ca.issue("b1", 10*time.Hour)
	wrongName, _, _ := ca.issue("elsewhere.example", 10*time.Hour)
	short, _, _ := ca.issue("b1", -time.Second)
	_, clientCert, clientKey := ca.issue("relay", 10*time.Hour)
	clients := x509.NewCertPool()
	clients.AddCert(other.cert)
	for _, tc := range []struct {
		name   string
		server *tls.Config // nil = plain text
		client *TLSConfig  // nil = plain text
		want   string      // "" = it works
	}{
		{"right", &tls.Config{Certificates: []tls.Certificate{good}}, &TLSConfig{CAFile: ca.file}, ""},
		{"wrong CA", &tls.Config{Certificates: []tls.Certificate{good}}, &TLSConfig{CAFile: other.file},
			"signed by an authority that is not trusted (issuer CN=our CA): give the CA that signed the brokers' certificates with --kafka-ca-file"},
		{"system roots", &tls.Config{Certificates: []tls.Certificate{good}}, &TLSConfig{}, "authority that is not trusted"},
		{"wrong name", &tls.Config{Certificates: []tls.Certificate{wrongName}}, &TLSConfig{CAFile: ca.file},
			`its certificate is for elsewhere.example, not for "b1": connect by a name that the certificate has`},
		{"expired", &tls.Config{Certificates: []tls.Certificate{short}}, &TLSConfig{CAFile: ca.file},
			"its certificate expired at 20"},
		{"no client certificate", &tls.Config{Certificates: []tls.Certificate{good}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}, &TLSConfig{CAFile: ca.file},
			"it asks for a client certificate and got none (certificate required): set --kafka-cert-file"},
		{"client certificate of another CA", &tls.Config{Certificates: []tls.Certificate{good}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients},
			&TLSConfig{CAFile: ca.file, CertFile: clientCert, KeyFile: clientKey}, "it refused our side of TLS (unknown certificate authority)"},
		{"TLS to a plain-text listener", nil, &TLSConfig{CAFile: ca.file}, "its port may be a plain-text listener"},
		{"plain text to a TLS listener", &tls.Config{Certificates: []tls.Certificate{good}}, nil, "its port may be a TLS listener (set --kafka-tls"},
		{"no such file", &tls.Config{Certificates: []tls.Certificate{good}}, &TLSConfig{CAFile: "/nonexistent/ca.pem"}, "CA file: open /nonexistent/ca.pem: no such file"},
		{"not PEM", &tls.Config{Certificates: []tls.Certificate{good}}, &TLSConfig{CAFile: secretFile(t, "nonsense")}, "holds no PEM certificate"},
	} {
		f := newFakeCluster(t, 1, nil)
		f.tcp, f.leaders["t"] = true, []int32{1}
		if tc.server != nil {
			f.broker(1).wrap = tlsServer(tc.server)
		}
		c := f.client(func(cfg *ClientConfig) { cfg.TLS = tc.client })
		_, err := c.Metadata(t.Context(), "t")
		var refused *AuthError
		switch {
		case tc.want == "":
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
		case err == nil || !strings.Contains(err.Error(), tc.want):
			t.Errorf("%s: %v", tc.name, err)
		case tc.server != nil && tc.client != nil && !errors.As(err, &refused):
			t.Errorf("%s: %T", tc.name, err)
		}
		c.Close()
		f.stop()
	}
}

// Certificates are read again for each connection.
func TestCertificatesAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, renewed := newAuthority(t, "old CA"), newAuthority(t, "new CA")
		f := newFakeCluster(t, 1, nil)
		f.leaders["t"] = []int32{1}
		server := func(a *authority) {
			cert, _, _ := a.issue("b1", time.Hour)
			clients := x509.NewCertPool()
			clients.AddCert(a.cert)
			f.set(func() {
				f.broker(1).wrap = tlsServer(&tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients})
			})
		}
		server(old)
		cfg := &TLSConfig{CAFile: old.file}
		_, cfg.CertFile, cfg.KeyFile = old.issue("relay", time.Hour)
		c := f.client(func(cc *ClientConfig) { cc.TLS = cfg })
		mustKnow(t, c, "t")
		server(renewed)
		f.hangUp(1)
		synctest.Wait()
		c.Refresh("t")
		if _, err := c.Metadata(t.Context(), "t"); err == nil {
			t.Fatal("the old CA still works")
		}
		_, cert, key := renewed.issue("relay", time.Hour)
		copyFile(t, cfg.CAFile, renewed.file)
		copyFile(t, cfg.CertFile, cert)
		copyFile(t, cfg.KeyFile, key)
		if _, err := c.Metadata(t.Context(), "t"); err != nil {
			t.Error(err)
		}
	})
}

func copyFile(t *testing.T, to, from string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, to, string(b))
}

// A large request over TLS goes out in few writes and arrives whole.
func TestTLSWritesAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(t, "our CA")
		cert, _, _ := ca.issue("b1", time.Hour)
		f := newFakeCluster(t, 1, nil)
		f.leaders["t"] = []int32{1}
		f.broker(1).wrap = tlsServer(&tls.Config{Certificates: []tls.Certificate{cert}})
		writes := 0
		c := f.client(func(cfg *ClientConfig) {
			cfg.TLS = &TLSConfig{CAFile: ca.file}
			cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				nc, err := f.dial(ctx, network, addr)
				return countingConn{nc, &writes}, err
			}
		})
		mustKnow(t, c, "t")
		send := func(size int) int {
			writes = 0
			if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, strings.Repeat("x", size)))); err != nil {
				t.Fatal(err)
			}
			return writes
		}
		send(1)
		if n := send(1); n != 1 {
			t.Errorf("a small request took %d writes", n)
		}
		if n := send(1 << 20); n > 1<<20/(64<<10)+2 {
			t.Errorf("a request of 1 MiB took %d writes", n)
		}
		if f.count(1, protocol.Produce) != 3 {
			t.Error("lost one")
		}
	})
}

type countingConn struct {
	net.Conn
	writes *int
}

func (c countingConn) Write(b []byte) (int, error) {
	*c.writes++
	return c.Conn.Write(b)
}
