package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
)

// SASLConfig chooses how to authenticate. Files are read again for every connection and re-authentication.
type SASLConfig struct {
	Mechanism    string // plain, scram-sha-256, scram-sha-512, oauthbearer, aws-msk-iam
	Username     string // plain, scram
	Password     string // plain, scram; used where PasswordFile is ""
	PasswordFile string // its last line end is not part of the password
	OAuth        OAuthConfig
}

func (s *SASLConfig) check() error {
	if s == nil {
		return nil
	}
	switch s.Mechanism {
	case "plain", "scram-sha-256", "scram-sha-512":
		if s.Username == "" || s.Password == "" && s.PasswordFile == "" {
			return fmt.Errorf("--kafka-sasl %s needs --kafka-username and --kafka-password-file", s.Mechanism)
		}
		return nil
	case "oauthbearer":
		return s.OAuth.check()
	case "aws-msk-iam":
		if mskIAM != nil {
			return nil
		}
		return errors.New("this build has no AWS MSK IAM, which would link the AWS SDK: build walrelay with `make build-msk`, " +
			"or use scram-sha-512, or oauthbearer with a token file kept fresh by an MSK IAM token signer")
	}
	return fmt.Errorf("unknown --kafka-sasl %q: plain, scram-sha-256, scram-sha-512, oauthbearer or aws-msk-iam", s.Mechanism)
}

// mskIAM makes the mechanism for AWS MSK IAM; nil where the build is without it.
var mskIAM func(ctx context.Context) (sasl.Mechanism, error)

// credentials makes mechanisms with what the files hold now.
type credentials struct {
	cfg   *SASLConfig
	token *tokenSource // oauthbearer with a token endpoint
}

func newCredentials(cfg *SASLConfig, dial dialFunc) *credentials {
	c := &credentials{cfg: cfg}
	if cfg != nil && cfg.Mechanism == "oauthbearer" && cfg.OAuth.TokenURL != "" {
		c.token = newTokenSource(cfg.OAuth, dial)
	}
	return c
}

func (c *credentials) mechanism(ctx context.Context) (sasl.Mechanism, error) {
	switch c.cfg.Mechanism {
	case "aws-msk-iam":
		return mskIAM(ctx)
	case "oauthbearer":
		token, err := c.bearerToken(ctx)
		return bearer{token, c.cfg.OAuth.Extensions}, err
	}
	password := c.cfg.Password
	if c.cfg.PasswordFile != "" {
		var err error
		if password, err = readSecret(c.cfg.PasswordFile); err != nil {
			return nil, fmt.Errorf("password file: %w", err)
		}
	}
	if c.cfg.Mechanism == "plain" {
		return plain.Mechanism{Username: c.cfg.Username, Password: password}, nil
	}
	return scramMechanism(c.cfg.Mechanism, c.cfg.Username, password), nil
}

// readSecret reads a file that holds one secret, without its last line end.
func readSecret(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if len(b) == 0 {
		return "", fmt.Errorf("%s is empty", path)
	}
	return string(b), nil
}

// authenticate runs the SASL exchange (SaslHandshake v1, SaslAuthenticate) through ask.
func (c *conn) authenticate(ctx context.Context, ask func(protocol.Message) (protocol.Message, error)) error {
	client := c.peer.client
	host, _, _ := net.SplitHostPort(c.peer.addr)
	ctx = sasl.WithMetadata(ctx, &sasl.Metadata{Host: host})
	mechanism, err := client.creds.mechanism(ctx)
	if err != nil {
		return c.refused(err.Error(), "mend it; it is read again at the next attempt", err)
	}
	if v, err := c.version(protocol.SaslHandshake); err != nil || v < 1 {
		return c.refused("it is too old for SASL as this build speaks it", "use brokers of Kafka 1.0 or later", err)
	}
	res, err := ask(&saslhandshake.Request{Mechanism: mechanism.Name()})
	if err != nil {
		return err
	}
	hello := res.(*saslhandshake.Response)
	switch kafka.Error(hello.ErrorCode) {
	case 0:
	case kafka.UnsupportedSASLMechanism:
		return c.refused("its listener does not offer SASL "+mechanism.Name(),
			"choose one of what it offers with --kafka-sasl: "+strings.ToLower(strings.Join(hello.Mechanisms, ", ")), kafka.Error(hello.ErrorCode))
	case kafka.IllegalSASLState:
		return c.refused("its listener does not use SASL", "drop --kafka-sasl, or use the SASL listener's port", kafka.Error(hello.ErrorCode))
	default:
		return kafka.Error(hello.ErrorCode)
	}
	lifetime, err := c.exchangeSASL(ctx, mechanism, ask)
	if err != nil {
		return err
	}
	c.sessionEnds(lifetime)
	return nil
}

// exchangeSASL returns the lifetime of the session, 0 = no end.
func (c *conn) exchangeSASL(ctx context.Context, mechanism sasl.Mechanism, ask func(protocol.Message) (protocol.Message, error)) (time.Duration, error) {
	session, state, err := mechanism.Start(ctx)
	if err != nil {
		return 0, err
	}
	for {
		res, err := ask(&saslauthenticate.Request{AuthBytes: state})
		if err != nil {
			return 0, err
		}
		answer := res.(*saslauthenticate.Response)
		if code := kafka.Error(answer.ErrorCode); code != 0 {
			return 0, c.rejected(code, answer.ErrorMessage)
		}
		done, next, err := session.Next(ctx, answer.AuthBytes)
		if err != nil {
			return 0, c.refused(err.Error(), c.remedy(), err)
		}
		if done {
			return time.Duration(answer.SessionLifetimeMs) * time.Millisecond, nil
		}
		state = next
	}
}

// rejected words the broker's no. Its own text is kept short: brokers say which check failed, not why.
func (c *conn) rejected(code kafka.Error, text string) error {
	if code != kafka.SASLAuthenticationFailed {
		return code
	}
	if text = printable(text); text == "" {
		text = "SASL authentication failed"
	}
	cfg := c.peer.client.cfg.SASL
	who := "the bearer token"
	if cfg.Username != "" && cfg.Mechanism != "oauthbearer" {
		who = fmt.Sprintf("user name or password of %q", cfg.Username)
	}
	return c.refused(fmt.Sprintf("it refused %s (%s)", who, text), c.remedy(), code)
}

func (c *conn) remedy() string {
	switch cfg := c.peer.client.cfg.SASL; {
	case cfg.Mechanism == "oauthbearer":
		return "check issuer, audience and expiry of the token against the broker's configuration"
	case cfg.PasswordFile != "":
		return "check --kafka-username and the content of " + cfg.PasswordFile + ", and that the user exists for this mechanism"
	default:
		return "check --kafka-username and the password, and that the user exists for this mechanism"
	}
}

func (c *conn) refused(reason, remedy string, err error) error {
	return &AuthError{Broker: c.peer.name(), Reason: reason, Remedy: remedy, Err: err}
}

// printable keeps a foreign text to one short line.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	return strings.TrimSpace(s[:min(len(s), 200)])
}
