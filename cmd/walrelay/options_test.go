package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"
)

// samples are three different valid values of each option. %s is a readable file
// of the test's folder.
var samples = map[string][3]string{
	"postgres-url":                   {"postgres://a@h/d", "postgres://b@h/d", "host=h dbname=c"},
	"table":                          {"a.b", "outbox", `"C".d`},
	"publication":                    {"a", "b", "c"},
	"slot":                           {"a", "b", "c_1"},
	"kafka-brokers":                  {"a:1,b:2", "b:2", "c:3,[::1]:4"},
	"kafka-tls":                      {"true", "true", "true"},
	"pprof":                          {"true", "true", "true"},
	"kafka-ca-file":                  {"%s/a", "%s/b", "%s/c"},
	"kafka-cert-file":                {"%s/a", "%s/b", "%s/c"},
	"kafka-key-file":                 {"%s/a", "%s/b", "%s/c"},
	"kafka-sasl":                     {"plain", "scram-sha-256", "scram-sha-512"},
	"kafka-username":                 {"a", "b", "c"},
	"kafka-password-file":            {"%s/a", "%s/b", "%s/c"},
	"kafka-oauth-token-file":         {"%s/a", "%s/b", "%s/c"},
	"kafka-oauth-token-url":          {"https://a/t", "https://b/t", "https://c/t"},
	"kafka-oauth-client-id":          {"a", "b", "c"},
	"kafka-oauth-client-secret-file": {"%s/a", "%s/b", "%s/c"},
	"kafka-oauth-scope":              {"a", "b", "c"},
	"kafka-oauth-extension":          {"a=1", "b=2", "c=3"},
	"create-topics":                  {"1:1", "2:1", "3:3"},
	"allow-weak-topics":              {"true", "true", "true"},
	"compression":                    {"lz4", "zstd", "gzip"},
	"batch-bytes":                    {"65536", "64KiB", "2MiB"},
	"preset":                         {"debezium", "default", "debezium"},
	"column":                         {"id=a", "id=b,key=k", "id=c"},
	"header":                         {"a=x", "b=y,d=z", "c=x"},
	"topic":                          {"a", "b.{aggregate_type}", "c"},
	"topic-allow":                    {"a*", "b*,d", "c*"},
	"poison":                         {"dead-letter", "stop", "dead-letter"},
	"dead-letter-topic":              {"a.dead", "b.dead", "{topic}.c"},
	"buffer-bytes":                   {"8MiB", "32MiB", "1GiB"},
	"checkpoint":                     {"file:/a", "none", "kafka:c"},
	"checkpoint-from":                {"file:/a", "kafka:b", "file:/c"},
	"delivery":                       {"exactly-once", "at-least-once", "exactly-once"},
	"replay-retain":                  {"64MiB", "1GiB", "0"},
	"http":                           {"off", ":9000", "[::1]:9001"},
	"drain-timeout":                  {"1s", "2m", "0s"},
	"timeout":                        {"1s", "2m", "5s"},
	"log-level":                      {"debug", "warn", "error"},
	"log-format":                     {"json", "console", "json"},
}

// given loads settings from the three sources; "" leaves one out. It returns what
// the option's set was called with, and everything that is stored.
func given(t *testing.T, name, file, env, flag string) (calls []string, stored string) {
	t.Helper()
	s := newSettings(new(bytes.Buffer))
	o := s.option(name)
	set := o.set
	o.set = func(v string) error { calls = append(calls, v); return set(v) }

	args := []string{"walrelay", "load"}
	if file != "" {
		if o.list {
			file = "[" + strings.ReplaceAll(file, ",", ", ") + "]"
		} else if strings.HasPrefix(file, `"`) {
			file = "'" + file + "'"
		}
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte("# comment\n"+name+": "+file+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	t.Setenv(o.env(), env)
	if flag != "" {
		for _, part := range strings.Split(flag, ",") {
			args = append(args, "--"+name+"="+part)
		}
	}
	app := &cli.App{Commands: []*cli.Command{{Name: "load", Flags: asFlags(s.options), Action: func(c *cli.Context) error {
		s.load(c) // that the options fit together is not the matter here
		return nil
	}}}}
	if err := app.Run(args); err != nil {
		t.Fatal(err)
	}
	var dump strings.Builder
	fingerprint(&dump, reflect.ValueOf(s).Elem())
	return calls, dump.String()
}

func (s *settings) option(name string) *option {
	for _, o := range s.options {
		if o.name == name {
			return o
		}
	}
	return nil
}

// fingerprint writes all plain values below v, with their field names.
func fingerprint(w *strings.Builder, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[zerolog.Logger]() {
			return
		}
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; name != "options" && name != "config" && name != "Decoder" && name != "Client" && name != "stderr" {
				fmt.Fprintf(w, "%s{", name)
				fingerprint(w, v.Field(i))
				w.WriteString("}")
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			fingerprint(w, v.Elem())
		}
	case reflect.Slice, reflect.Map, reflect.String, reflect.Bool, reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint64:
		fmt.Fprint(w, v)
	}
}

// Command line over environment over file over default, for every option.
func TestEveryOptionTakesTheFirstSourceThatHasIt(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range newSettings(new(bytes.Buffer)).options {
		if o.name == "config" {
			continue
		}
		sample, ok := samples[o.name]
		if !ok {
			t.Errorf("--%s has no samples in this test", o.name)
			continue
		}
		for i := range sample {
			sample[i] = strings.Replace(sample[i], "%s", folder, 1)
		}
		t.Run(o.name, func(t *testing.T) {
			file, env, flag := sample[0], sample[1], sample[2]
			_, untouched := given(t, o.name, "", "", "")
			for _, c := range []struct{ file, env, flag, want string }{
				{"", "", "", o.def},
				{file, "", "", file},
				{"", env, "", env},
				{"", "", flag, flag},
				{file, env, "", env},
				{file, "", flag, flag},
				{"", env, flag, flag},
				{file, env, flag, flag},
			} {
				calls, stored := given(t, o.name, c.file, c.env, c.flag)
				var want []string
				if c.want != "" {
					want = []string{c.want}
				}
				if o.list && c.want != "" {
					want = strings.Split(c.want, ",")
				}
				if !slices.Equal(calls, want) {
					t.Errorf("file %q, env %q, flag %q: took %q, want %q", c.file, c.env, c.flag, calls, want)
				}
				if c.want != o.def && c.want != "none" && stored == untouched {
					t.Errorf("%q is stored nowhere", c.want)
				}
			}
		})
	}
	for name := range samples {
		if newSettings(new(bytes.Buffer)).option(name) == nil {
			t.Errorf("samples for --%s, which does not exist", name)
		}
	}
}

func TestOptionsAreDeclaredOnce(t *testing.T) {
	seen := make(map[string]bool)
	for _, o := range newSettings(new(bytes.Buffer)).options {
		if seen[o.name] {
			t.Errorf("--%s is declared twice", o.name)
		}
		seen[o.name] = true
		if o.usage == "" || o.set == nil || o.group == "" || o.local {
			t.Errorf("--%s is incomplete", o.name)
		}
	}
}

func TestMistypedEnvironmentIsPointedOut(t *testing.T) {
	options := newSettings(new(bytes.Buffer)).options
	got := mistypedEnv(options, []string{
		"WALRELAY_KAFKA_BROKER=x", "WALRELAY_SLOTT=x", "WALRELAY_SLOT=x",
		"WALRELAY_SERVICE_HOST=10.0.0.1", "WALRELAY_PORT_9464_TCP=tcp://10.0.0.1:9464", "PATH=/bin",
	})
	if len(got) != 2 || !strings.Contains(got[0], "WALRELAY_KAFKA_BROKERS") || !strings.Contains(got[1], "WALRELAY_SLOT?") {
		t.Errorf("%q", got)
	}
}

func TestConfigFileErrorsNameTheLine(t *testing.T) {
	options := newSettings(new(bytes.Buffer)).options
	for _, c := range []struct{ file, want string }{
		{"slot: a\nkafka-broker: a:1\n", `line 2: unknown key "kafka-broker"; did you mean "kafka-brokers"?`},
		{"kafka_brokers: a:1\n", `did you mean "kafka-brokers"?`},
		{"config: x\n", `unknown key "config"`},
		{"until: now\n", `unknown key "until"`},
		{"slot: a\nslot: b\n", "line 2: slot is given twice"},
		{"slot: [a]\n", "line 1: slot: takes one value"},
		{"slot: {a: b}\n", "takes text"},
		{"header: [[a=b]]\n", "takes one value"},
		{"header: []\n", "the list is empty"},
		{"slot:\n", "has no value"},
		{"slot: ''\n", "has no value"},
		{"- slot\n", "want lines of the form key: value"},
		{"slot: [\n", "not YAML"},
		{"slot: a\n---\nslot: b\n", "more than one YAML document"},
	} {
		_, err := parseConfig([]byte(c.file), options)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want %q", c.file, err, c.want)
		}
	}
	for _, file := range []string{"", "# nothing\n", "---\n"} {
		if values, err := parseConfig([]byte(file), options); err == nil && len(values) == 0 {
			continue
		} else if file != "---\n" {
			t.Errorf("%q: %v, %v", file, values, err)
		}
	}
	values, err := parseConfig([]byte("http: off\nkafka-tls: yes\nbatch-bytes: 65536\nheader:\n  - a=b\n  - c=d\n"), options)
	if want := map[string][]string{"http": {"off"}, "kafka-tls": {"yes"}, "batch-bytes": {"65536"}, "header": {"a=b", "c=d"}}; err != nil || !reflect.DeepEqual(values, want) {
		t.Errorf("%v, %v; want %v", values, err, want)
	}
}
