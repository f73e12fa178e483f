package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Log is what [Kafka] needs of a cluster: one compacted topic.
type Log interface {
	Topic() string
	// Fence makes this process the only one that appends as id.
	Fence(ctx context.Context, id string) error
	// Append writes one record, atomically. After an error whether it was written is not known, and nothing more can
	// be appended before the next Fence.
	Append(ctx context.Context, key, value []byte) error
	// Read hands over the records of committed transactions up to the high watermark as of now.
	Read(ctx context.Context, each func(key, value []byte)) error
}

// Kafka keeps positions in a compacted topic, the document of format.go under the
// key SYSTEM-ID/SLOT, written by a producer whose transactional id belongs to that slot.
//
// What is in the topic is the truth only for who has fenced the id: from then on nobody else can change it. So
// Own comes first, when the slot is ours, then Load, then Save. A relay that is
// fenced itself learns it by ErrLost.
//
// All methods belong to one goroutine at a time.
type Kafka struct {
	log      Log
	systemID string
	slot     string

	mu    sync.Mutex
	known bool
	saved Position // the newest that is known to be in the topic; where known
}

// OpenKafka is the store in a log. It touches nothing yet.
func OpenKafka(log Log) *Kafka { return &Kafka{log: log} }

// For says whose position is meant.
func (k *Kafka) For(systemID, slot string) { k.systemID, k.slot = systemID, slot }

// Own takes the store for the slot, which the caller holds, away from whoever had it.
func (k *Kafka) Own(ctx context.Context) error {
	k.set(Position{}, false)
	return k.log.Fence(ctx, transactionalID(k.systemID, k.slot))
}

// transactionalID is what a slot's relays fence each other by.
func transactionalID(systemID, slot string) string { return "walrelay-" + systemID + "-" + slot }

func key(systemID, slot string) string { return systemID + "/" + slot }

// Load returns the slot's position, or ErrNone. Unless the slot is owned, it may be another
// relay's, and move on.
func (k *Kafka) Load(ctx context.Context) (Position, error) {
	p, err := k.load(ctx)
	k.set(p, err == nil)
	return p, err
}

func (k *Kafka) load(ctx context.Context) (Position, error) {
	want := key(k.systemID, k.slot)
	var newest []byte // nil: none, or taken away by a tombstone
	err := k.log.Read(ctx, func(key, value []byte) {
		if string(key) == want {
			newest = value
		}
	})
	if err != nil {
		return Position{}, fmt.Errorf("checkpoint: %w", err)
	}
	if newest == nil {
		return Position{}, ErrNone
	}
	p, err := decode(newest)
	if m := (*moved)(nil); errors.As(err, &m) {
		return Position{}, newMovedError("kafka:"+k.log.Topic(), m)
	}
	if err == nil {
		err = p.Belongs(k.systemID, k.slot)
	}
	if err != nil {
		return Position{}, k.unreadable(want, err)
	}
	return p, nil
}

// Save makes p the saved position. ErrBehind says that a higher one is; ErrLost, that whether p was saved is
// not known, and that Own and Load come next. It waits for Kafka as long as ctx lets it.
func (k *Kafka) Save(ctx context.Context, p Position) error {
	key, value, err := k.Record(p)
	if err != nil {
		return err
	}
	if err := k.log.Append(ctx, key, value); err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	k.Saved(p)
	return nil
}

// Replace is Save over whatever position is there, for an operator who says so while no relay runs.
func (k *Kafka) Replace(ctx context.Context, p Position) error {
	if err := k.Own(ctx); err != nil { // forgets what was loaded
		return err
	}
	return k.Save(ctx, p)
}

// Retire leaves word that another store, as --checkpoint names it, has taken the position over.
func (k *Kafka) Retire(ctx context.Context, p Position, to string) error {
	value, err := encodeMoved(p, to)
	if err == nil {
		err = k.log.Append(ctx, []byte(key(p.SystemID, p.Slot)), value)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	k.set(Position{}, false)
	return nil
}

// Record is the record that saves p, for who writes it in a transaction together with the events
// before it; Saved is then told when that is committed.
func (k *Kafka) Record(p Position) (recordKey, value []byte, err error) {
	if err := p.check(); err != nil {
		return nil, nil, fmt.Errorf("checkpoint: refused to save: %w", err)
	}
	k.mu.Lock()
	saved, known := k.saved, k.known
	k.mu.Unlock()
	if known {
		if err := saved.supersededBy(p); err != nil {
			return nil, nil, err
		}
	}
	value, err = encode(p)
	return []byte(key(p.SystemID, p.Slot)), value, err
}

// Saved notes that the record of p is committed.
func (k *Kafka) Saved(p Position) { k.set(p, true) }

// Topic is the topic's name.
func (k *Kafka) Topic() string { return k.log.Topic() }

func (k *Kafka) set(p Position, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.saved, k.known = p, known
}

func (k *Kafka) unreadable(key string, found error) *StateError {
	remedy := "start with another topic (--checkpoint kafka:OTHER) to begin with the slot's own position: nothing is lost by that, but events that the slot has not confirmed are published again"
	newer := errors.Is(found, errNewer)
	if newer {
		remedy = "run the newer walrelay, or one that is at least as new"
	}
	return &StateError{Store: "kafka:" + k.log.Topic(), Reason: fmt.Sprintf("the record with the key %q: %v", key, found), Remedy: remedy, Damaged: !newer}
}
