package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/relay"
	"github.com/walrelay/walrelay/sink"
)

// checkpointTopic is where positions are kept in Kafka if no other topic is named.
const checkpointTopic = "walrelay-checkpoint"

// openCheckpoint returns the store of --checkpoint, which can be written to; nil
// for none. For the one in Kafka, openProducer comes first.
func (s *settings) openCheckpoint(ctx context.Context) (relay.Store, error) {
	if s.positions != "" {
		s.relay.Place = "kafka:" + s.positions
		path := cmp.Or(s.fromFile, s.checkpointFile())
		if _, err := os.Stat(path); err == nil || s.fromFile != "" {
			if s.relay.From, err = openFile(ctx, path); err != nil {
				return nil, err
			}
		}
		return s.openPositions()
	}
	if s.checkpoint == checkpointNone {
		return nil, nil
	}
	path, err := filepath.Abs(s.checkpointFile())
	if err != nil {
		return nil, err
	}
	s.relay.Place = "file:" + path
	if s.fromTopic != "" {
		if s.relay.From, err = s.openTopic(s.fromTopic); err != nil {
			return nil, err
		}
	}
	return openFile(ctx, path)
}

// openToRead is the store of --checkpoint and its name, for who does not write to it; nil for none.
func (s *settings) openToRead() (relay.Store, string, error) {
	switch {
	case s.positions != "":
		store, err := s.openPositions()
		return store, "kafka:" + s.positions, err
	case s.checkpoint == checkpointNone:
		return nil, "", nil
	}
	path := s.checkpointFile()
	return checkpoint.OpenFile(path), "file:" + path, nil
}

// checkpointFile is the path of the checkpoint where it is a file; else where the default one would be.
func (s *settings) checkpointFile() string {
	if s.checkpoint != "" && s.checkpoint != checkpointNone {
		return s.checkpoint
	}
	folder, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":") // systemd lists several with colons
	return filepath.Join(folder, fmt.Sprintf("walrelay-%s.checkpoint", s.relay.Postgres.Slot))
}

func openFile(ctx context.Context, path string) (*checkpoint.File, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	file := checkpoint.OpenFile(path)
	if err := file.Check(ctx); err != nil && ctx.Err() == nil { // a lock that is held is another relay's, which saves
		return nil, usagef("--checkpoint file:%s: nothing can be saved there (%v); create the folder, or let this user write to it", path, err)
	}
	return file, nil
}

// openPositions is the store in Kafka. Exactly once it is written by the producer of the
// events; else by one of its own, which fences other relays all the same.
func (s *settings) openPositions() (*checkpoint.Kafka, error) {
	if s.delivery == exactlyOnce && s.relay.Producer != nil {
		store, err := openLog(s.positions, s.relay.Producer)
		s.relay.Once = store
		return store, err
	}
	return s.openTopic(s.positions)
}

// openTopic is a store in Kafka with a producer of its own.
func (s *settings) openTopic(topic string) (*checkpoint.Kafka, error) {
	if s.producer.Client == nil { // a command that writes no events
		if len(s.client.Brokers) == 0 {
			return nil, usagef("--checkpoint kafka:%s needs --kafka-brokers", topic)
		}
		client, err := sink.NewClient(s.client)
		if err != nil {
			return nil, usagef("%v", err)
		}
		s.producer.Client = client
	}
	producer, err := sink.NewProducer(sink.Config{
		Client: s.producer.Client, Transactional: true, AllowWeakTopics: s.producer.AllowWeakTopics, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	return openLog(topic, producer)
}

func openLog(topic string, p *sink.Producer) (*checkpoint.Kafka, error) {
	log, err := sink.NewLog(topic, p)
	if err != nil {
		return nil, usagef("--checkpoint kafka:%v", err)
	}
	return checkpoint.OpenKafka(log), nil
}
