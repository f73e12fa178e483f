package replication

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The stream's waiting happens below TLS, and a TLS record that comes in pieces is
// not taken for the end of the connection.
func TestStreamOverTLS(t *testing.T) {
	srv := newServer(t)
	cert := selfSigned(t)
	cfg := srv.config()
	cfg.URL = "postgres://relay:secret@127.0.0.1:5432/appdb?sslmode=require"
	var raw *pipeEnd // the server's end of the stream, below TLS
	cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		client, server := newPipe()
		if raw == nil {
			raw = server
		}
		go func() {
			var request [8]byte
			if _, err := io.ReadFull(server, request[:]); err != nil {
				return
			}
			server.Write([]byte("S"))
			srv.accept(tls.Server(server, &tls.Config{Certificates: []tls.Certificate{cert}, DynamicRecordSizingDisabled: true}))
		}()
		return client, nil
	}
	s, st := srv.open(cfg)
	want(t, s, Drained)

	// Catch what the server sends and let it through in pieces.
	through := raw.out
	for cut := 1; cut < 64; cut += 3 {
		caught := newFlow()
		through.mu.Lock()
		raw.out = caught
		through.mu.Unlock()
		st.data("in a TLS record of its own")
		first, rest := caught.buf[:cut], caught.buf[cut:]
		through.change(func() { through.buf = append(through.buf, first...) })
		go func() {
			for !drainedBy(through) { // so that the rest comes later
			}
			through.change(func() { through.buf = append(through.buf, rest...) })
		}()
		if m := want(t, s, Data); string(m.WAL) != "in a TLS record of its own" {
			t.Fatalf("cut at %d: %q", cut, m.WAL)
		}
		want(t, s, Drained)
	}
	go s.Wake()
	want(t, s, Woken)
	raw.out = through
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func drainedBy(f *flow) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.buf) == 0
}

func selfSigned(t *testing.T) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)},
		&x509.Certificate{}, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// The real network: the same over a unix socket and over TCP.
func TestStreamOverSockets(t *testing.T) {
	dir := t.TempDir()
	for _, addr := range []string{"tcp 127.0.0.1:0", "unix " + filepath.Join(dir, ".s.PGSQL.5432")} {
		t.Run(addr[:4], func(t *testing.T) {
			srv := newServer(t)
			network, at, _ := strings.Cut(addr, " ")
			l, err := net.Listen(network, at)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					srv.accept(c)
				}
			}()
			cfg := srv.config()
			cfg.Dial = nil
			cfg.URL = fmt.Sprintf("host=%s user=relay dbname=appdb sslmode=disable", dir)
			if network == "tcp" {
				host, port, _ := net.SplitHostPort(l.Addr().String())
				cfg.URL = fmt.Sprintf("host=%s port=%s user=relay dbname=appdb sslmode=disable", host, port)
			}
			s, st := srv.open(cfg)
			want(t, s, Drained)
			go st.data("x")
			if m := want(t, s, Data, Drained); m.Kind != Drained {
				t.Error(m)
			}
			go s.Wake()
			want(t, s, Woken)
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Several hosts: the relay goes on to the primary, and its side connection to the
// same server.
func TestManyHosts(t *testing.T) {
	standby, primary := newServer(t), newServer(t)
	cfg := primary.config()
	cfg.URL = "postgres://relay@10.0.0.1,10.0.0.2/appdb?sslmode=disable"
	standby.setAnswer("select", answer{row: []any{"t"}})
	primary.setAnswer("select", answer{row: []any{"f"}})
	servers := map[string]*server{"10.0.0.1:5432": standby, "10.0.0.2:5432": primary}
	cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		client, server := newPipe()
		servers[addr].accept(server)
		return client, nil
	}
	primary.open(cfg)
	if standby.sides != 0 || primary.sides != 1 {
		t.Errorf("side connections: %d to the standby, %d to the primary", standby.sides, primary.sides)
	}
}

func TestConnectionStrings(t *testing.T) {
	t.Setenv("PGAPPNAME", "")
	base := (&server{}).config()
	parse := func(url string) (map[string]string, error) {
		cfg := base
		cfg.URL = url
		pc, err := cfg.parse()
		if err != nil {
			return nil, err
		}
		if pc.ConnectTimeout <= 0 {
			t.Errorf("%s: no limit for connecting", url)
		}
		return pc.RuntimeParams, nil
	}
	for _, url := range []string{
		"postgres://u:secret@h/db?sslmode=prefer&keepalives_idle=5&tcp_user_timeout=3",
		"host=h user=u password=secret dbname=db gssencmode=disable fallback_application_name=x",
	} {
		p, err := parse(url)
		if err != nil {
			t.Fatal(err)
		}
		if p["application_name"] != "walrelay" || p["TimeZone"] != "UTC" || p["search_path"] != "pg_catalog" || len(p) != len(session)+1 {
			t.Errorf("%s: %v", url, p)
		}
	}
	if p, err := parse("application_name=orders-relay"); err != nil || p["application_name"] != "orders-relay" {
		t.Errorf("%v, %v", p, err)
	}
	for _, url := range []string{
		"postgres://u:secret@h:port/db", "postgres://u:secret/x@h/db?sslmode=nonsense", "host=h password=secret sslmode=nonsense",
		"postgres://u:se cret@h/%zz", "password='secret", "host=h password=secret sslrootcert=/nowhere sslmode=verify-full", "secret",
	} {
		_, err := parse(url)
		if err == nil || !errors.As(err, new(*SetupError)) {
			t.Errorf("%s: %v", url, err)
		}
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "cret@")) {
			t.Errorf("a secret is in the error: %v", err)
		}
	}
	for _, broken := range []func(*Config){
		func(c *Config) { c.Slot = "Upper" }, func(c *Config) { c.Slot = "" }, func(c *Config) { c.Slot = `a"b` },
		func(c *Config) { c.Publication = "" }, func(c *Config) { c.Publication = strings.Repeat("x", 64) },
		func(c *Config) { c.Table.Name = "" }, func(c *Config) { c.Table.Schema = "a\x00" },
	} {
		cfg := base
		broken(&cfg)
		if _, err := Open(t.Context(), cfg); !errors.As(err, new(*SetupError)) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}
