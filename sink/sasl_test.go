package sink

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
)

func secretFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	writeFile(t, path, content)
	return path
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The exchanges of RFC 7677 section 3 (SHA-256) and of the widely used SHA-512 counterpart.
func TestScramVectors(t *testing.T) {
	for _, tc := range []struct{ mechanism, nonce, serverFirst, final, serverFinal string }{
		{
			"scram-sha-256", "rOprNGfwEbeRWgbNEkqO",
			"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
			"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
			"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
		},
		{
			"scram-sha-512", "rOprNGfwEbeRWgbNEkqO",
			"r=rOprNGfwEbeRWgbNEkqO02431b08-2f89-4bad-a4e6-80c0564ec865,s=Yin2FuHTt/M0kJWb0t9OI32n2VmOGi3m+JfjOvuDF88=,i=4096",
			"c=biws,r=rOprNGfwEbeRWgbNEkqO02431b08-2f89-4bad-a4e6-80c0564ec865,p=Hc5yec3NmCD7t+kFRw4/3yD6/F3SQHc7AVYschRja+Bc3sbdjlA0eH1OjJc0DD4ghn1tnXN5/Wr6qm9xmaHt4A==",
			"v=BQuhnKHqYDwQWS5jAw4sZed+C9KFUALsbrq81bB0mh+bcUUbbMPNNmBIupnS2AmyyDnG5CTBQtkjJ9kyY4kzmw==",
		},
	} {
		m := scramMechanism(tc.mechanism, "user", "pencil").(scram)
		m.nonce = tc.nonce
		session, first, err := m.Start(t.Context())
		if err != nil || string(first) != "n,,n=user,r="+tc.nonce || m.Name() != strings.ToUpper(tc.mechanism) {
			t.Fatalf("%s, %v", first, err)
		}
		done, final, err := session.Next(t.Context(), []byte(tc.serverFirst))
		if err != nil || done || string(final) != tc.final {
			t.Errorf("%s:\n%s\n%s, %v", tc.mechanism, final, tc.final, err)
		}
		if done, _, err = session.Next(t.Context(), []byte(tc.serverFinal)); err != nil || !done {
			t.Errorf("%v, %v", done, err)
		}
		session, _, _ = m.Start(t.Context())
		session.Next(t.Context(), []byte(tc.serverFirst))
		if _, _, err = session.Next(t.Context(), []byte("v=AAAA")); err == nil {
			t.Error("a server that does not know the password is believed")
		}
	}
}

func TestScramRefusesBadChallenges(t *testing.T) {
	for _, challenge := range []string{
		"", "e=other-error", "r=abc", "r=nonceX,s=!!,i=4096", "r=nonceX,s=AAAA,i=x",
		"r=other,s=AAAA,i=4096", "r=nonce,s=AAAA,i=4096", "r=nonceX,s=AAAA,i=1", "r=nonceX,s=AAAA,i=2000000000",
	} {
		m := scramMechanism("scram-sha-256", "u", "p").(scram)
		m.nonce = "nonce"
		session, _, _ := m.Start(t.Context())
		if _, out, err := session.Next(t.Context(), []byte(challenge)); err == nil {
			t.Errorf("%q is answered with %q", challenge, out)
		}
	}
	m := scramMechanism("scram-sha-256", "a=b,c", "p")
	if _, first, _ := m.Start(t.Context()); !strings.HasPrefix(string(first), "n,,n=a=3Db=2Cc,r=") {
		t.Errorf("%s", first)
	}
}

// saslServer accepts PLAIN, SCRAM-SHA-256 and OAUTHBEARER as a broker does.
func saslServer(user, password, token string) script {
	return func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
		no := &saslauthenticate.Response{ErrorCode: 58, ErrorMessage: "Authentication failed: Invalid username or password"}
		switch r := req.(type) {
		case *saslhandshake.Request:
			s.state = r.Mechanism
			if r.Mechanism == "SCRAM-SHA-512" {
				return &saslhandshake.Response{ErrorCode: 33, Mechanisms: []string{"PLAIN", "SCRAM-SHA-256"}}, nil
			}
			return &saslhandshake.Response{}, nil
		case *saslauthenticate.Request:
			in := string(r.AuthBytes)
			switch state := s.state.(type) {
			case string:
				switch {
				case state == "PLAIN" && in == "\x00"+user+"\x00"+password:
					return new(saslauthenticate.Response), nil
				case state == "OAUTHBEARER" && in == "n,,\x01auth=Bearer "+token+"\x01logicalCluster=lkc-1\x01\x01":
					return new(saslauthenticate.Response), nil
				case state == "OAUTHBEARER" && in == "\x01":
					return &saslauthenticate.Response{ErrorCode: 58, ErrorMessage: `{"status":"invalid_token"}`}, nil
				case state == "OAUTHBEARER":
					return &saslauthenticate.Response{AuthBytes: []byte(`{"status":"invalid_token"}`)}, nil
				case state == "SCRAM-SHA-256":
					first := strings.TrimPrefix(in, "n,,")
					challenge := first[strings.Index(first, "r="):] + "server,s=" + base64.StdEncoding.EncodeToString([]byte("salt")) + ",i=4096"
					s.state = []string{first, challenge}
					return &saslauthenticate.Response{AuthBytes: []byte(challenge)}, nil
				}
			case []string:
				final, proof, _ := strings.Cut(in, ",p=")
				salted, _ := pbkdf2.Key(sha256.New, password, []byte("salt"), 4096, 32)
				mac := func(key []byte, text string) []byte {
					m := hmac.New(sha256.New, key)
					io.WriteString(m, text)
					return m.Sum(nil)
				}
				message := state[0] + "," + state[1] + "," + final
				key := mac(salted, "Client Key")
				stored := sha256.Sum256(key)
				want := mac(stored[:], message)
				for i := range want {
					want[i] ^= key[i]
				}
				if base64.StdEncoding.EncodeToString(want) == proof {
					return &saslauthenticate.Response{AuthBytes: []byte("v=" + base64.StdEncoding.EncodeToString(mac(mac(salted, "Server Key"), message)))}, nil
				}
			}
			return no, nil
		}
		return nil, errDefault
	}
}

// Each mechanism gets in with the right secret; a wrong one is named, never shown, and read again from
// its file at the next attempt.
func TestSASLMechanisms(t *testing.T) {
	const password, token, wrong = "pass,w=ord", "tok.en-1", "SECRET-wrong"
	for _, tc := range []struct {
		mechanism string
		secret    string
		reason    string
	}{
		{"plain", password, `user name or password of "relay"`},
		{"scram-sha-256", password, `user name or password of "relay"`},
		{"oauthbearer", token, "it refused the bearer token"},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeCluster(t, 3, saslServer("relay", password, token))
			f.leaders["t"] = []int32{1}
			file := secretFile(t, wrong+"\n")
			c := f.client(func(cfg *ClientConfig) {
				cfg.SASL = &SASLConfig{Mechanism: tc.mechanism, Username: "relay", PasswordFile: file}
				if tc.mechanism == "oauthbearer" {
					cfg.SASL = &SASLConfig{Mechanism: tc.mechanism, OAuth: OAuthConfig{TokenFile: file, Extensions: map[string]string{"logicalCluster": "lkc-1"}}}
				}
			})
			_, err := c.Metadata(t.Context(), "t")
			var refused *AuthError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), tc.reason) || strings.Contains(err.Error(), wrong) {
				t.Errorf("%s: %v", tc.mechanism, err)
			}
			before := f.dials()
			for end := time.Now().Add(time.Minute); time.Now().Before(end); {
				c.Metadata(t.Context(), "t")
			}
			if n := f.dials() - before; n < 50 || n > 125 { // an account may be locked after too many
				t.Errorf("%d attempts with a wrong password in a minute", n)
			}
			writeFile(t, file, tc.secret+"\r\n")
			start := time.Now()
			for err != nil && time.Since(start) < time.Minute {
				_, err = c.Metadata(t.Context(), "t")
			}
			if took := time.Since(start); err != nil || took > 1100*time.Millisecond {
				t.Errorf("%s: %v after %v", tc.mechanism, err, took)
			}
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			c.Reset()
			if _, err := c.Metadata(t.Context(), "t"); !errors.As(err, &refused) || !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", tc.mechanism, err)
			}
		})
	}
}

// What does not fit together says so: mechanism, a listener without SASL, a listener with it.
func TestSASLMismatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, saslServer("u", "p", ""))
		ask := func(mechanism string) error {
			c := f.client(func(cfg *ClientConfig) {
				if mechanism != "" {
					cfg.SASL = &SASLConfig{Mechanism: mechanism, Username: "u", Password: "p"}
				}
			})
			defer c.Close()
			_, err := c.Metadata(t.Context(), "t")
			return err
		}
		if err := ask("scram-sha-512"); err == nil || !strings.Contains(err.Error(), "does not offer SASL SCRAM-SHA-512: choose one of what it offers with --kafka-sasl: plain, scram-sha-256") {
			t.Errorf("%v", err)
		}
		f.set(func() {
			f.broker(1).script = func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
				if req.ApiKey() == protocol.SaslHandshake {
					return &saslhandshake.Response{ErrorCode: 34}, nil
				}
				return nil, errDefault
			}
		})
		if err := ask("plain"); err == nil || !strings.Contains(err.Error(), "does not use SASL: drop --kafka-sasl") {
			t.Errorf("%v", err)
		}
		f.set(func() {
			f.broker(1).script = func(s *fakeSession, req protocol.Message) (protocol.Message, error) {
				if req.ApiKey() == protocol.ApiVersions {
					return nil, errDefault
				}
				return nil, errHangUp
			}
		})
		if err := ask(""); err == nil || !strings.Contains(err.Error(), "--kafka-sasl") {
			t.Errorf("%v", err)
		}
	})
}

// The token endpoint is asked by the client credentials grant, once per token, and
// says what is wrong without a secret.
func TestOAuthTokenEndpoint(t *testing.T) {
	asked, status, body := 0, http.StatusOK, `{"access_token":"tok-1","token_type":"Bearer","expires_in":100}`
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		id, secret, _ := r.BasicAuth()
		if r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != "kafka" || id != "relay%3A1" || secret != "s%2B3cret" {
			t.Errorf("%v %q %q", r.Form, id, secret)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	defer idp.Close()
	file := secretFile(t, "s+3cret\n")
	fresh := func() *credentials {
		cfg := ClientConfig{Brokers: []string{"h:1"}, SASL: &SASLConfig{Mechanism: "oauthbearer", OAuth: OAuthConfig{
			TokenURL: idp.URL + "/token?tenant=x", ClientID: "relay:1", ClientSecretFile: file, Scope: "kafka"}}}
		c, err := NewClient(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return c.creds
	}
	creds := fresh()
	for range 3 {
		if token, err := creds.bearerToken(t.Context()); token != "tok-1" || err != nil {
			t.Errorf("%q, %v", token, err)
		}
	}
	if left := time.Until(creds.token.renewAt); asked != 1 || left < 75*time.Second || left > 80*time.Second {
		t.Errorf("asked %d times, kept for %v", asked, left)
	}
	creds.token.renewAt = time.Now()
	creds.bearerToken(t.Context())
	if asked != 2 {
		t.Error("not renewed")
	}
	for _, tc := range []struct {
		status     int
		body, want string
	}{
		{401, `{"error":"invalid_client","error_description":"s+3cret is wrong"}`, "status 401 invalid_client: check client id"},
		{302, "", "status 302"},
		{200, "<html>", "is not a JSON token"},
		{200, `{"access_token":"x","token_type":"mac"}`, "not of type bearer"},
		{200, `{"access_token":"a\u0001b","token_type":"bearer"}`, "not one line of printable characters"},
		{200, `{"access_token":"` + strings.Repeat("x", 2<<20), "is not a JSON token"},
	} {
		status, body = tc.status, tc.body
		_, err := fresh().bearerToken(t.Context())
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "s+3cret") || strings.Contains(err.Error(), "tenant") {
			t.Errorf("%v: %v", tc.want, err)
		}
	}
	idp.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := fresh().bearerToken(ctx); err == nil || !strings.HasPrefix(err.Error(), "OAuth token endpoint at 127.0.0.1:") {
		t.Errorf("%v", err)
	}
}
