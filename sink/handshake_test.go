package sink

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
)

// G8: a link that goes silent at any step of the way in ends at connectTimeout, the
// socket is closed, and the error names the step.
func TestG8EveryStepHasADeadline(t *testing.T) {
	silentAt := func(key protocol.ApiKey) script {
		return func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			switch {
			case req.ApiKey() == key:
				return nil, nil
			case req.ApiKey() == protocol.SaslHandshake:
				return &saslhandshake.Response{}, nil
			}
			return nil, errDefault
		}
	}
	plain := &SASLConfig{Mechanism: "plain", Username: "u", Password: "p"}
	for _, tc := range []struct {
		name, step string
		script     script
		change     func(*ClientConfig)
	}{
		{name: "dial", step: "dial", change: func(cfg *ClientConfig) {
			cfg.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}},
		{name: "TLS", step: "TLS handshake", change: func(cfg *ClientConfig) { cfg.TLS = new(TLSConfig) },
			script: silentAt(protocol.ApiVersions)},
		{name: "ApiVersions", step: "ApiVersions", script: silentAt(protocol.ApiVersions)},
		{name: "SASL handshake", step: "SASL", script: silentAt(protocol.SaslHandshake), change: func(cfg *ClientConfig) { cfg.SASL = plain }},
		{name: "SASL exchange", step: "SASL", script: silentAt(protocol.SaslAuthenticate), change: func(cfg *ClientConfig) { cfg.SASL = plain }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster(t, 1, tc.script)
				c := f.client(func(cfg *ClientConfig) {
					cfg.connectTimeout = 7 * time.Second
					if tc.change != nil {
						tc.change(cfg)
					}
					if tc.name == "TLS" { // a peer that takes bytes and says nothing
						cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
							client, server := net.Pipe()
							go func() {
								for b := make([]byte, 1024); ; {
									if _, err := server.Read(b); err != nil {
										server.Close()
										return
									}
								}
							}()
							return client, nil
						}
					}
				})
				p := newPeer(c, 4, "b1:9092")
				start := time.Now()
				_, err := p.send(t.Context(), produceTo("t", 0, recordSet(t, "x")))
				if took := time.Since(start); took != 7*time.Second || !isTimeout(err) {
					t.Errorf("after %v: %v", took, err)
				}
				if want := "sink: broker 4 at b1:9092: " + tc.step + ": no answer in time"; err == nil || err.Error() != want {
					t.Errorf("%q, want %q", err, want)
				}
				pass(7 * time.Second) // what has begun later
				synctest.Wait()
				f.mu.Lock()
				defer f.mu.Unlock()
				if len(f.conns) != 0 {
					t.Error("a socket is still open")
				}
			})
		})
	}
}

// G8: a connect that takes longer than any caller waits succeeds nevertheless, once.
func TestG8SlowConnectOutlivesItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, nil)
		f.leaders["t"] = []int32{1}
		slow := false
		c := f.client(func(cfg *ClientConfig) {
			cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if slow {
					if err := pause(ctx, 5500*time.Millisecond); err != nil {
						return nil, err
					}
				}
				return f.dial(ctx, network, addr)
			}
		})
		mustKnow(t, c, "t")
		slow = true
		start := time.Now()
		for tries := 1; ; tries++ {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			_, err := c.Send(ctx, 1, produceTo("t", 0, recordSet(t, "x")))
			cancel()
			if err == nil {
				break
			}
			if !errors.Is(err, context.DeadlineExceeded) || tries > 3 {
				t.Fatalf("try %d: %v", tries, err)
			}
		}
		if took := time.Since(start); took != 5500*time.Millisecond {
			t.Errorf("after %v", took)
		}
		pass(time.Minute)
		if c.mu.Lock(); len(c.conns) != 2 {
			t.Errorf("%d connections", len(c.conns))
		}
		c.mu.Unlock()
	})
}

// G8: when a way that swallowed everything is free again, that is noticed within two
// seconds, however long it took, and the sockets of all attempts are few.
func TestG8BlackHoleIsLeftSoonAfterItHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, nil)
		f.leaders["t"] = []int32{1}
		c := f.client(nil)
		mustKnow(t, c, "t")
		swallow := func(s *fakeSession, req protocol.Message) (protocol.Message, error) { return nil, nil }
		f.set(func() { f.broker(1).script = swallow })
		start, most := time.Now(), 0
		for err := error(context.DeadlineExceeded); err != nil; {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			_, err = c.Send(ctx, 1, produceTo("t", 0, recordSet(t, "x")))
			cancel()
			f.set(func() {
				most = max(most, len(f.conns))
				if time.Since(start) > 100*time.Second { // heals for connections made from now on
					f.broker(1).script = nil
				}
			})
		}
		if took := time.Since(start); took > 100*time.Second+connectAgain+reconnectMax {
			t.Errorf("back after %v", took)
		}
		if most > 8 {
			t.Errorf("%d sockets", most)
		}
	})
}

// A caller that has less time than the back-off after a refusal is told of the refusal.
func TestRefusalIsToldDuringTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, saslServer("u", "right", ""))
		c := f.client(func(cfg *ClientConfig) { cfg.SASL = &SASLConfig{Mechanism: "plain", Username: "u", Password: "wrong"} })
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := c.Metadata(ctx, "t")
			cancel()
			if refused := (*AuthError)(nil); !errors.As(err, &refused) {
				t.Errorf("%v", err)
			}
		}
	})
}

// KIP-368: SASL is done again on the open connection before the session ends, once
// there is a request to send, and with what the files hold by then.
func TestReauthenticationBeforeTheSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type session struct{ ends time.Time }
		var passwords []string
		f := newFakeCluster(t, 1, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			in, _ := s.state.(*session)
			switch r := req.(type) {
			case *saslhandshake.Request:
				return &saslhandshake.Response{Mechanisms: []string{"PLAIN"}}, nil
			case *saslauthenticate.Request:
				_, password, _ := strings.Cut(strings.TrimPrefix(string(r.AuthBytes), "\x00"), "\x00")
				passwords = append(passwords, password)
				s.state = &session{time.Now().Add(time.Minute)}
				return &saslauthenticate.Response{SessionLifetimeMs: 60_000}, nil
			}
			if in != nil && time.Now().After(in.ends) {
				return nil, errHangUp // as a broker does
			}
			return nil, errDefault
		})
		f.leaders["t"] = []int32{1}
		file := secretFile(t, "first\n")
		c := f.client(func(cfg *ClientConfig) {
			cfg.SASL = &SASLConfig{Mechanism: "plain", Username: "u", PasswordFile: file}
		})
		mustKnow(t, c, "t")
		for range 100 { // a request a second, then nothing for longer than a session
			if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); err != nil {
				t.Fatal(err)
			}
			pass(time.Second)
		}
		writeFile(t, file, "second\n")
		pass(time.Hour)
		if _, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x"))); err != nil {
			t.Errorf("after an idle hour: %v", err)
		}
		if n := f.broker(1).dials; n != 2 {
			t.Errorf("%d connections", n)
		}
		if got := strings.Join(passwords, " "); got != "first first first second" {
			t.Errorf("%s", got) // both lanes, one renewal under load, one after the idle hour
		}
	})
}

// A re-authentication that is refused ends the connection with the reason.
func TestReauthenticationRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		f := newFakeCluster(t, 1, func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
			switch req.(type) {
			case *saslhandshake.Request:
				return &saslhandshake.Response{}, nil
			case *saslauthenticate.Request:
				if n++; n > 2 {
					return &saslauthenticate.Response{ErrorCode: 58, ErrorMessage: "Authentication failed"}, nil
				}
				return &saslauthenticate.Response{SessionLifetimeMs: 60_000}, nil
			}
			return nil, errDefault
		})
		f.leaders["t"] = []int32{1}
		c := f.client(func(cfg *ClientConfig) { cfg.SASL = &SASLConfig{Mechanism: "plain", Username: "u", Password: "p"} })
		mustKnow(t, c, "t")
		send := func() error {
			_, err := c.Send(t.Context(), 1, produceTo("t", 0, recordSet(t, "x")))
			return err
		}
		if err := send(); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		var refused *AuthError
		if err := send(); !errors.As(err, &refused) {
			t.Errorf("%v", err)
		}
		n = 0
		if err := send(); err != nil {
			t.Errorf("accepted again: %v", err)
		}
	})
}
