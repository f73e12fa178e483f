package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

const secret = "s3cr3t"

// Whatever is wrong with the connection string, no output holds the password.
func TestNoOutputHoldsThePassword(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := closed.Addr().String()
	closed.Close()
	host, port, _ := net.SplitHostPort(addr)
	for _, url := range []string{
		"postgres://relay:" + secret + "@" + addr + "/shop?sslmode=disable", // well formed, nobody there
		"host=" + host + " port=" + port + " user=relay sslmode=disable password=" + secret,
		"postgres://relay:" + secret + "@" + addr + "/shop?sslmode=bogus",
		"postgres://relay:" + secret + "@host:port/shop",
		"postgres://relay:" + secret + "%zz@" + addr + "/shop",
		"postgres://relay:" + secret + " " + secret + "@" + addr + "/shop",
		"mysql://relay:" + secret + "@" + addr + "/shop",
		"host=h password='" + secret,
		"password=" + secret + " port=x",
		secret,
		"postgres://" + addr + "/shop?sslmode=disable&password=" + secret,
		"postgres://relay@" + addr + "/shop?sslmode=verify-full&sslrootcert=/nowhere&sslpassword=" + secret,
	} {
		for _, args := range [][]string{
			{"setup", "--timeout", "20ms"},
			{"setup", "--print"},
			{"setup", "--help"},
			{"setup", "--log-level", "trace", "--log-format", "json", "--timeout", "20ms"},
		} {
			t.Setenv("WALRELAY_POSTGRES_URL", url)
			_, stdout, stderr := command(t, args...)
			if strings.Contains(stdout+stderr, secret) {
				t.Errorf("%q with the URL in the environment:\n%s%s", args, stdout, stderr)
			}
			t.Setenv("WALRELAY_POSTGRES_URL", "")
			_, stdout, stderr = command(t, append(args, "--postgres-url", url)...)
			if strings.Contains(stdout+stderr, secret) {
				t.Errorf("%q with the URL as an option:\n%s%s", args, stdout, stderr)
			}
			config := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(config, []byte("postgres-url: \""+url+"\"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			_, stdout, stderr = command(t, append(args, "--config", config)...)
			if strings.Contains(stdout+stderr, secret) {
				t.Errorf("%q with the URL in a file:\n%s%s", args, stdout, stderr)
			}
		}
	}
}

// loaded runs load with these arguments.
func loaded(t *testing.T, args ...string) (s *settings, log string, err error) {
	t.Helper()
	var out bytes.Buffer
	s = newSettings(&out)
	app := &cli.App{Commands: []*cli.Command{{Name: "load", Flags: asFlags(s.options), Action: s.load}}, ExitErrHandler: func(*cli.Context, error) {}}
	err = app.Run(append([]string{"walrelay", "load"}, args...))
	return s, out.String(), err
}

func TestPasswordOnTheCommandLineIsWarnedOfOnce(t *testing.T) {
	for url, want := range map[string]int{
		"postgres://relay:" + secret + "@h/d": 1,
		"host=h password=" + secret:           1,
		"postgres://relay@h/d":                0,
	} {
		_, log, err := loaded(t, "--postgres-url", url)
		if err != nil || strings.Count(log, "every user of this host") != want || strings.Contains(log, secret) {
			t.Errorf("as an option: %v\n%s", err, log)
		}
		t.Setenv("WALRELAY_POSTGRES_URL", url)
		if _, log, err = loaded(t); err != nil || log != "" {
			t.Errorf("in the environment: %v\n%s", err, log)
		}
		t.Setenv("WALRELAY_POSTGRES_URL", "")
	}
}

func TestSecurityOptionsFitTogether(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	url := []string{"--postgres-url", "postgres://h/d"}
	for args, want := range map[string]string{
		"": "",
		"--kafka-tls --kafka-ca-file F --kafka-cert-file F --kafka-key-file F":                "",
		"--kafka-tls --kafka-key-file F":                                                      "go together",
		"--kafka-cert-file F":                                                                 "without --kafka-tls",
		"--kafka-sasl plain --kafka-username u --kafka-password-file F":                       "",
		"--kafka-sasl plain --kafka-username u":                                               "--kafka-password-file",
		"--kafka-sasl plain --kafka-username u --kafka-password-file F --kafka-oauth-scope s": "takes no --kafka-oauth",
		"--kafka-oauth-token-file F":                                                          "without --kafka-sasl",
		"--kafka-sasl oauthbearer --kafka-oauth-token-file F":                                 "",
		"--kafka-sasl oauthbearer --kafka-oauth-token-file F --kafka-username u":              "takes no --kafka-username",
		"--kafka-sasl oauthbearer --kafka-oauth-token-url https://h/t":                        "--kafka-oauth-client-id",
		"--kafka-sasl oauthbearer --kafka-oauth-token-file F --kafka-oauth-token-url https://h/t --kafka-oauth-client-id i --kafka-oauth-client-secret-file F": "needs",
		"--kafka-sasl oauthbearer --kafka-oauth-token-url https://h/t --kafka-oauth-client-id i --kafka-oauth-client-secret-file F":                            "",
	} {
		s, _, err := loaded(t, append(url, strings.Fields(strings.ReplaceAll(args, " F", " "+file))...)...)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", args, err, want)
		case want == "" && strings.Contains(args, "--kafka-tls") != (s.client.TLS != nil), want == "" && strings.Contains(args, "--kafka-sasl") != (s.client.SASL != nil):
			t.Errorf("%s: TLS %v, SASL %v", args, s.client.TLS, s.client.SASL)
		}
	}
}

func TestOpenCheckpoint(t *testing.T) {
	state, work := t.TempDir(), t.TempDir()
	t.Chdir(work)
	open := func(args ...string) (relayStoreIsNil bool, err error) {
		s, _, err := loaded(t, append(args, "--postgres-url", "postgres://h/d", "--slot", "s1")...)
		if err != nil {
			t.Fatal(err)
		}
		store, err := s.openCheckpoint(t.Context())
		return store == nil, err
	}
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }

	if none, err := open("--checkpoint", "none"); !none || err != nil {
		t.Errorf("none: %v, %v", none, err)
	}
	if none, err := open(); none || err != nil || !exists(filepath.Join(work, "walrelay-s1.checkpoint.lock")) {
		t.Errorf("default in the working folder: %v, %v", none, err)
	}
	t.Setenv("STATE_DIRECTORY", state+":/elsewhere")
	if none, err := open(); none || err != nil || !exists(filepath.Join(state, "walrelay-s1.checkpoint.lock")) {
		t.Errorf("default in $STATE_DIRECTORY: %v, %v", none, err)
	}
	if _, err := open("--checkpoint", "file:"+filepath.Join(state, "missing", "c")); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "create the folder") {
		t.Errorf("missing folder: %v", err)
	}
}
