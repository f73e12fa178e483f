package main

import (
	"cmp"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

// load stores the value of every option of c's command, and checks what only
// several of them together can show. All its errors are usage errors, the first
// one found. The log works afterwards in any case.
func (s *settings) load(c *cli.Context) error {
	var err error
	for _, o := range s.options {
		if o.name == "config" {
			err = o.resolve(nil, "")
		}
	}
	var file map[string][]string
	if err == nil && s.config != "" {
		file, err = readConfigFile(s.config, s.options)
	}
	for _, flag := range c.Command.Flags {
		if o, ok := flag.(*option); ok && o.name != "config" {
			err = cmp.Or(err, o.resolve(file, s.config))
		}
	}
	s.log = newLogger(s.stderr, s.logLevel, cmp.Or(s.logFormat, "auto"))
	s.relay.Log, s.relay.Postgres.Log, s.client.Log, s.producer.Log = s.log, s.log, s.log, s.log
	if err != nil {
		return err
	}
	if c.Args().Present() {
		return usagef("unexpected argument %q: options start with two dashes, and their values follow them", c.Args().First())
	}
	s.warn()
	return cmp.Or(s.checkDelivery(), s.checkKafka(), s.checkEvents())
}

// warn logs what works and is not as it should be.
func (s *settings) warn() {
	for _, o := range s.options {
		if o.name == "postgres-url" && o.argv && holdsPassword(s.relay.Postgres.URL) {
			s.log.Warn().Msgf("the password in --postgres-url can be read by every user of this host; put it into %s, PGPASSWORD, a password file or a --config file", o.env())
		}
	}
	for _, text := range mistypedEnv(s.options, os.Environ()) {
		s.log.Warn().Msg(text)
	}
}

// needPostgres is an error where no option and no libpq variable says which database.
func (s *settings) needPostgres() error {
	if s.relay.Postgres.URL == "" && os.Getenv("PGHOST")+os.Getenv("PGSERVICE")+os.Getenv("PGDATABASE") == "" {
		return usagef("--postgres-url is missing: give the database as postgres://USER@HOST:PORT/DATABASE, or by PGHOST and PGDATABASE")
	}
	return nil
}

func (s *settings) checkKafka() error {
	if s.tls {
		s.client.TLS = &s.tlsFiles
	} else if s.tlsFiles != (sink.TLSConfig{}) {
		return usagef("--kafka-ca-file, --kafka-cert-file and --kafka-key-file have no effect without --kafka-tls")
	}
	if (s.tlsFiles.CertFile == "") != (s.tlsFiles.KeyFile == "") {
		return usagef("--kafka-cert-file and --kafka-key-file go together")
	}
	oauth := s.sasl.OAuth
	byEndpoint := oauth.TokenURL != "" && oauth.ClientID != "" && oauth.ClientSecretFile != ""
	hasOAuth := oauth.TokenFile+oauth.TokenURL+oauth.ClientID+oauth.ClientSecretFile+oauth.Scope != "" || oauth.Extensions != nil
	hasUser := s.sasl.Username+s.sasl.PasswordFile != ""
	switch s.sasl.Mechanism {
	case "":
		if hasUser || hasOAuth {
			return usagef("credentials for Kafka have no effect without --kafka-sasl")
		}
		return nil
	case "oauthbearer":
		if hasUser {
			return usagef("--kafka-sasl oauthbearer takes no --kafka-username and --kafka-password-file")
		}
		if (oauth.TokenFile != "") == (oauth.TokenURL != "") || oauth.TokenURL != "" && !byEndpoint {
			return usagef("--kafka-sasl oauthbearer needs --kafka-oauth-token-file, or --kafka-oauth-token-url with --kafka-oauth-client-id and --kafka-oauth-client-secret-file")
		}
	case "aws-msk-iam":
		if hasUser || hasOAuth {
			return usagef("--kafka-sasl aws-msk-iam takes its credentials as the AWS SDK finds them, not from options")
		}
	default:
		if s.sasl.Username == "" || s.sasl.PasswordFile == "" {
			return usagef("--kafka-sasl %s needs --kafka-username and --kafka-password-file", s.sasl.Mechanism)
		}
		if hasOAuth {
			return usagef("--kafka-sasl %s takes no --kafka-oauth options", s.sasl.Mechanism)
		}
	}
	s.client.SASL = &s.sasl
	return nil
}

// checkDelivery decides where the position is kept.
func (s *settings) checkDelivery() error {
	if s.delivery == exactlyOnce {
		if s.checkpoint != "" {
			return usagef("--delivery exactly-once keeps the position in Kafka, in the transaction of the events: leave --checkpoint away, or give it as kafka:TOPIC")
		}
		s.positions = cmp.Or(s.positions, checkpointTopic)
		s.producer.Transactional = true
	}
	if s.fromFile == checkpointNone || s.fromFile != "" && s.positions == "" || s.fromTopic != "" && (s.positions != "" || s.checkpoint == checkpointNone) {
		return usagef("--checkpoint-from moves the position from a file to Kafka, or back: name a store of the other kind than --checkpoint")
	}
	if s.positions != "" {
		s.decode.Internal = append(s.decode.Internal, checkpointTopic, s.positions)
		s.relay.IdleEvery = 10 * time.Second
	}
	return nil
}

func (s *settings) checkEvents() error {
	if s.producer.BatchBytes > s.relay.BufferBytes {
		return usagef("--batch-bytes (%d) must not be more than --buffer-bytes (%d)", s.producer.BatchBytes, s.relay.BufferBytes)
	}
	decoder, err := decode.New(s.decode)
	if err != nil {
		return usagef("%v", err)
	}
	s.relay.Decoder, s.producer.Allowed, s.producer.Expected = decoder, decoder.Allows, decoder.Expects
	return nil
}

// Setters of options that store into more than one place.

func (s *settings) setTable(v string) error {
	table, err := replication.ParseTable(v)
	s.relay.Postgres.Table = table
	s.decode.Schema, s.decode.Table = table.Schema, table.Name
	return err
}

func (s *settings) setDeadLetter(v string) error {
	s.decode.DeadLetter, s.producer.DeadLetterTopic = v, v
	return nil
}

func (s *settings) setPoison(v string) error {
	policies := map[string]sink.Policy{"stop": sink.PoisonStop, "dead-letter": sink.PoisonDeadLetter}
	policy, ok := policies[v]
	if !ok {
		return errors.New("want stop or dead-letter")
	}
	s.producer.Poison = policy
	return nil
}

func (s *settings) addExtension(v string) error {
	name, value, ok := strings.Cut(v, "=")
	if !ok || name == "" {
		return errors.New("want NAME=VALUE")
	}
	if s.sasl.OAuth.Extensions == nil {
		s.sasl.OAuth.Extensions = make(map[string]string)
	}
	s.sasl.OAuth.Extensions[name] = value
	return nil
}

// openProducer makes the connection layer and the producer over it, without
// connecting. The client is the caller's to close.
func (s *settings) openProducer(metrics *sink.Metrics) (*sink.Producer, *sink.Client, error) {
	if len(s.client.Brokers) == 0 {
		return nil, nil, usagef("--kafka-brokers is missing: give one or more HOST:PORT, separated by commas")
	}
	client, err := sink.NewClient(s.client)
	if err != nil {
		return nil, nil, usagef("%v", err)
	}
	s.producer.Client, s.producer.Metrics = client, metrics
	producer, err := sink.NewProducer(s.producer)
	if err != nil {
		client.Close()
		return nil, nil, usagef("%v", err)
	}
	return producer, client, nil
}
