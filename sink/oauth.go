package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go/sasl"
)

// OAuthConfig names where the bearer token comes from: a file, or a token endpoint (client credentials grant).
type OAuthConfig struct {
	TokenFile        string // holds the token itself; read again each time
	TokenURL         string // https, or http on loopback
	ClientID         string
	ClientSecretFile string
	Scope            string
	Extensions       map[string]string // SASL extensions (KIP-342)
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

func (o *OAuthConfig) check() error {
	if (o.TokenFile == "") == (o.TokenURL == "") {
		return errors.New("--kafka-sasl oauthbearer needs a token file or a token endpoint, and not both")
	}
	for name := range o.Extensions {
		if name == "" || name == "auth" || strings.ContainsFunc(name, func(r rune) bool { return (r|0x20) < 'a' || (r|0x20) > 'z' }) {
			return fmt.Errorf("OAuth extension %q: a name has letters only, and is not auth", name)
		}
	}
	if o.TokenURL == "" {
		return nil
	}
	u, err := url.Parse(o.TokenURL)
	if err != nil || u.Host == "" || u.User != nil {
		return errors.New("the OAuth token endpoint is not a URL without user and password")
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme != "https" && !(u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback())) {
		return errors.New("the OAuth token endpoint must be https (http only on loopback): a client secret is sent there")
	}
	if o.ClientID == "" || o.ClientSecretFile == "" {
		return errors.New("an OAuth token endpoint needs a client id and a client secret file")
	}
	return nil
}

// bearer is SASL OAUTHBEARER (RFC 7628, KIP-255).
type bearer struct {
	token      string
	extensions map[string]string
}

func (bearer) Name() string { return "OAUTHBEARER" }

func (b bearer) Start(context.Context) (sasl.StateMachine, []byte, error) {
	out := "n,,\x01auth=Bearer " + b.token
	names := make([]string, 0, len(b.extensions))
	for name := range b.extensions {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		out += "\x01" + name + "=" + b.extensions[name]
	}
	return bearerSession{}, []byte(out + "\x01\x01"), nil
}

type bearerSession struct{}

// Next: an empty challenge is the yes. A no comes as a JSON document, which a single 0x01 must
// acknowledge before the broker says so in its error code.
func (bearerSession) Next(_ context.Context, challenge []byte) (bool, []byte, error) {
	if len(challenge) == 0 {
		return true, nil, nil
	}
	return false, []byte{1}, nil
}

func (c *credentials) bearerToken(ctx context.Context) (string, error) {
	if c.token != nil {
		return c.token.get(ctx)
	}
	token, err := readSecret(c.cfg.OAuth.TokenFile)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	return token, checkToken(token)
}

// checkToken keeps what is no b64token (RFC 6750) out of the SASL message.
func checkToken(token string) error {
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("the OAuth token is empty or not one line of printable characters")
	}
	return nil
}

// tokenSource gets tokens from an endpoint and keeps one until 80 % of its life are
// over, so that a re-authentication at 85 % of a session's life finds a fresh one.
type tokenSource struct {
	cfg    OAuthConfig
	http   http.Client
	asking chan struct{} // capacity 1: guards the fields below, and is held while asking

	token   string
	renewAt time.Time
}

func newTokenSource(cfg OAuthConfig, dial dialFunc) *tokenSource {
	return &tokenSource{
		cfg: cfg,
		http: http.Client{
			// One connection per token, closed at once: no idle goroutines, no proxy that would see the secret.
			Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		asking: make(chan struct{}, 1),
	}
}

func (t *tokenSource) get(ctx context.Context) (string, error) {
	select {
	case t.asking <- struct{}{}:
		defer func() { <-t.asking }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if t.token != "" && time.Now().Before(t.renewAt) {
		return t.token, nil
	}
	token, life, err := t.ask(ctx)
	if err != nil {
		u, _ := url.Parse(t.cfg.TokenURL)
		return "", fmt.Errorf("OAuth token endpoint at %s: %w", u.Host, err)
	}
	t.token, t.renewAt = token, time.Now().Add(life*8/10)
	return token, nil
}

// ask is the client credentials grant (RFC 6749, 4.4).
func (t *tokenSource) ask(ctx context.Context) (string, time.Duration, error) {
	secret, err := readSecret(t.cfg.ClientSecretFile)
	if err != nil {
		return "", 0, fmt.Errorf("client secret file: %w", err)
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	if t.cfg.Scope != "" {
		form.Set("scope", t.cfg.Scope)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.cfg.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", 0, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.SetBasicAuth(url.QueryEscape(t.cfg.ClientID), url.QueryEscape(secret))
	res, err := t.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL, which may hold a query
		}
		return "", 0, err
	}
	defer res.Body.Close()
	return readToken(res)
}

func readToken(res *http.Response) (string, time.Duration, error) {
	var answer struct {
		AccessToken string  `json:"access_token"`
		TokenType   string  `json:"token_type"`
		ExpiresIn   float64 `json:"expires_in"`
		Error       string  `json:"error"` // a code like invalid_client; the free text beside it is not shown
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&answer)
	switch {
	case res.StatusCode != http.StatusOK:
		code := printable(answer.Error)
		return "", 0, fmt.Errorf("status %d %s: check client id, client secret file and scope", res.StatusCode, code[:min(len(code), 40)])
	case err != nil:
		return "", 0, fmt.Errorf("its answer (%q) is not a JSON token", kind)
	case !strings.EqualFold(answer.TokenType, "bearer"):
		return "", 0, errors.New("its token is not of type bearer")
	}
	life := time.Duration(min(max(answer.ExpiresIn, 0), 24*3600) * float64(time.Second)) // no expires_in: used once
	return answer.AccessToken, life, checkToken(answer.AccessToken)
}
