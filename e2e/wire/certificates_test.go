package wire

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/walrelay/walrelay/sink"
)

// G1 G2 G8: under load the brokers get certificates of another authority and trust no other
// any more, and the connections are cut. Where our files came late, events wait for them;
// where they came first, nothing waits. Nobody restarts.
func TestG8CertificatesRotatedUnderLoad(t *testing.T) {
	dir := t.TempDir()
	ca := []*certAuthority{newCertAuthority(t, "CA-0"), newCertAuthority(t, "CA-1"), newCertAuthority(t, "CA-2")}
	trusted, cert, key := filepath.Join(dir, "trusted"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	ours := func(by *certAuthority, trust ...*certAuthority) {
		both := by.issue("relay")
		replace(t, trusted, bundle(trust...))
		replace(t, cert, both)
		replace(t, key, both)
	}
	theirs := func(name string, by *certAuthority, trust ...*certAuthority) map[string]string {
		store, trusts := filepath.Join(dir, "broker-"+name), filepath.Join(dir, "trust-"+name)
		replace(t, store, by.issue("broker"))
		replace(t, trusts, bundle(trust...))
		return map[string]string{guard + "ssl.keystore.location": store, guard + "ssl.truststore.location": trusts}
	}
	config := theirs("0", ca[0], ca[0])
	config["ssl.keystore.type"], config["ssl.truststore.type"], config[guard+"ssl.client.auth"] = "PEM", "PEM", "required"
	ours(ca[0], ca[0])
	g := newGuarded(t, "SSL", config, func(cfg *sink.ClientConfig) {
		cfg.TLS = &sink.TLSConfig{CAFile: trusted, CertFile: cert, KeyFile: key}
	})
	alter := func(set map[string]string) {
		var changes []kadm.AlterConfig
		for name, value := range set {
			changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
		}
		done, err := g.admin.AlterBrokerConfigs(g.ctx, changes, 1, 2, 3)
		g.must(err)
		for _, r := range done {
			g.must(r.Err)
		}
		// A broker answers before it has loaded the files: see what it shows.
		store, err := tls.LoadX509KeyPair(set[guard+"ssl.keystore.location"], set[guard+"ssl.keystore.location"])
		g.must(err)
		for _, addr := range strings.Split(g.kafka.BootstrapOf("GUARDED"), ",") {
			g.until("the new certificate of "+addr, func() bool { return slices.Equal(shown(addr), store.Certificate[0]) })
		}
	}
	stop := g.run()
	g.flows()

	begin := time.Now()
	alter(theirs("1", ca[1], ca[1]))
	g.flows() // over connections that are open
	t.Logf("the brokers have other certificates: the load stood for %v", g.longest(begin))
	begin = time.Now()
	g.stands(g.client.Reset, "issuer CN=CA-1")
	ours(ca[1], ca[1])
	back := g.flows()
	t.Logf("our files came late: the load stood for %v, and came back %v after them", g.longest(begin), back.Round(time.Millisecond))
	if back > 2*time.Second {
		t.Errorf("%v", back)
	}

	alter(theirs("1+2", ca[1], ca[1], ca[2]))
	before := len(g.logged())
	begin = time.Now()
	ours(ca[2], ca[1], ca[2])
	g.client.Reset()
	g.flows()
	alter(theirs("2", ca[2], ca[2]))
	g.client.Reset()
	g.flows()
	t.Logf("our files came first: the load stood for %v", g.longest(begin))
	if log := g.logged()[before:]; strings.Contains(log, "not trusted") || strings.Contains(log, "refused") {
		t.Errorf("a refusal:\n%s", log)
	}
	stop()
}

// shown is the certificate that a TLS listener shows, nil if none.
func shown(addr string) []byte {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	var leaf []byte
	looking := &tls.Config{InsecureSkipVerify: true, VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
		leaf = raw[0]
		return nil
	}}
	tls.Client(conn, looking).Handshake() // ends in a refusal: we have no certificate
	return leaf
}

// replace changes a file in one step, as a certificate manager does.
func replace(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// certAuthority is a CA of one test.
type certAuthority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCertAuthority(t *testing.T, name string) *certAuthority {
	a := &certAuthority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// bundle is what trusts all of them.
func bundle(of ...*certAuthority) (out []byte) {
	for _, a := range of {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})...)
	}
	return out
}

// issue makes a certificate for 127.0.0.1; its key stands before it, as brokers want it.
func (a *certAuthority) issue(name string) []byte {
	key := newKey(a.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
}
