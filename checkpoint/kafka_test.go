package checkpoint

import (
	"context"
	"errors"
	"testing"
)

// topicLog is one compacted topic that several processes write to.
type topicLog struct {
	records [][2][]byte
	owner   map[string]*handle
}

// handle is one process' access to it.
type handle struct {
	log   *topicLog
	id    string
	fault error // of the next Append
	lands bool  // and yet it is written
}

var errFenced = errors.New("fenced")

func (h *handle) Topic() string { return "positions" }

func (h *handle) Fence(_ context.Context, id string) error {
	h.id = id
	h.log.owner[id] = h
	return nil
}

func (h *handle) Append(_ context.Context, key, value []byte) error {
	if h.log.owner[h.id] != h {
		return errFenced
	}
	err := h.fault
	if h.fault = nil; err == nil || h.lands {
		h.log.records = append(h.log.records, [2][]byte{key, value})
	}
	return err
}

func (h *handle) Read(_ context.Context, each func(key, value []byte)) error {
	for _, r := range h.log.records {
		each(r[0], r[1])
	}
	return nil
}

func newTopicLog() *topicLog { return &topicLog{owner: map[string]*handle{}} }

// relayOn is a process that holds the slot s of cluster 1.
func relayOn(t *testing.T, log *topicLog) (*Kafka, *handle) {
	t.Helper()
	h := &handle{log: log}
	k := OpenKafka(h)
	k.For("1", "s")
	if err := k.Own(t.Context()); err != nil {
		t.Fatal(err)
	}
	return k, h
}

// G3: what one relay saves is what the next one loads, whole; slots do not see each other's.
func TestKafkaSavesAndLoads(t *testing.T) {
	log := newTopicLog()
	k, _ := relayOn(t, log)
	if _, err := k.Load(t.Context()); !errors.Is(err, ErrNone) {
		t.Fatalf("empty: %v", err)
	}
	want := samplePosition()
	want.SystemID, want.Slot = "1", "s"
	if err := k.Save(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	other, _ := relayOn(t, log)
	other.For("2", "s")
	if _, err := other.Load(t.Context()); !errors.Is(err, ErrNone) {
		t.Errorf("another cluster's: %v", err)
	}
	next, _ := relayOn(t, log)
	if got, err := next.Load(t.Context()); err != nil || got != want {
		t.Errorf("loaded %+v, %v", got, err)
	}
}

// G3: a lower position never follows a higher one, and who was fenced saves nothing.
func TestKafkaNeverGoesBack(t *testing.T) {
	log := newTopicLog()
	k, _ := relayOn(t, log)
	if err := k.Save(t.Context(), idle(200)); err != nil {
		t.Fatal(err)
	}
	if err := k.Save(t.Context(), idle(100)); !errors.Is(err, ErrBehind) {
		t.Errorf("lower: %v", err)
	}
	next, _ := relayOn(t, log)
	if err := k.Save(t.Context(), idle(300)); !errors.Is(err, ErrLost) || !errors.Is(err, errFenced) {
		t.Errorf("fenced: %v", err)
	}
	if p, err := next.Load(t.Context()); err != nil || p.Safe != 200 {
		t.Errorf("loaded %s, %v", p.Safe, err)
	}
	if err := next.Save(t.Context(), idle(100)); !errors.Is(err, ErrBehind) {
		t.Errorf("lower than what was loaded: %v", err)
	}
	if err := next.Replace(t.Context(), idle(50)); err != nil {
		t.Errorf("replace: %v", err)
	}
}

// A Save whose outcome is unknown is settled by Own and Load.
func TestKafkaUnknownOutcome(t *testing.T) {
	for _, lands := range []bool{false, true} {
		k, h := relayOn(t, newTopicLog())
		if err := k.Save(t.Context(), idle(100)); err != nil {
			t.Fatal(err)
		}
		h.fault, h.lands = errors.New("no answer"), lands
		if err := k.Save(t.Context(), idle(200)); !errors.Is(err, ErrLost) {
			t.Errorf("%v", err)
		}
		p, err := k.Load(t.Context())
		if err != nil || (p.Safe == 200) != lands {
			t.Errorf("lands %v: loaded %s, %v", lands, p.Safe, err)
		}
	}
}

// A record that is no position stops the relay, and a tombstone is none.
func TestKafkaDamagedRecord(t *testing.T) {
	log := newTopicLog()
	k, h := relayOn(t, log)
	h.Append(t.Context(), []byte("1/s"), []byte("garbage"))
	var state *StateError
	if _, err := k.Load(t.Context()); !errors.As(err, &state) || !state.Damaged {
		t.Errorf("%v", err)
	}
	h.Append(t.Context(), []byte("1/s"), nil)
	if _, err := k.Load(t.Context()); !errors.Is(err, ErrNone) {
		t.Errorf("tombstone: %v", err)
	}
}
