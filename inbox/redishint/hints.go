// Package redishint remembers in Redis which events were applied, so that most
// duplicates are known without a transaction. What it says is a hint: package inbox looks
// into the database before it believes a yes, and claims after a no. So nothing depends on Redis being there, or being right.
//
// The usual mistake is to SETNX the id before the work is done: when the consumer dies in between, the id
// says "done" and the event is lost. Here an id is written after the database has committed.
package redishint

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Hints are ids that were applied. Set its fields before the first use; zero means the default.
type Hints struct {
	Prefix string        // of the keys; "inbox:"
	TTL    time.Duration // how long an id is remembered: as long as repeats are likely; 1 h
	Wait   time.Duration // how long an answer may take; 20 ms
	Rest   time.Duration // how long a Redis that did not answer is left alone; 1 s

	client    redis.UniversalClient
	restUntil atomic.Int64 // Unix nanoseconds
}

// Open makes hints on a Redis, a cluster or a sentinel, without connecting. Where the options leave it to us, one attempt
// has to do, and ends with its context: by default the client tries for seconds, whatever the context says.
func Open(options redis.UniversalOptions) *Hints {
	options.ContextTimeoutEnabled = true
	if options.MaxRetries == 0 {
		options.MaxRetries = -1
	}
	if options.DialerRetries == 0 {
		options.DialerRetries = 1
	}
	if options.DialTimeout == 0 {
		options.DialTimeout = time.Second
	}
	return &Hints{client: redis.NewUniversalClient(&options)}
}

// Close closes the connections.
func (h *Hints) Close() error { return h.client.Close() }

// Seen reports whether the event is known to have been applied. A Redis that does not answer knows nothing.
func (h *Hints) Seen(ctx context.Context, consumer, id string) bool {
	known := false
	h.ask(ctx, func(ctx context.Context) error {
		n, err := h.client.Exists(ctx, h.key(consumer, id)).Result()
		known = n > 0
		return err
	})
	return known
}

// Note remembers an event. Call it when the transaction that applied it is committed, never before.
func (h *Hints) Note(ctx context.Context, consumer, id string) {
	h.ask(ctx, func(ctx context.Context) error {
		return h.client.Set(ctx, h.key(consumer, id), "", or(h.TTL, time.Hour)).Err()
	})
}

func (h *Hints) ask(ctx context.Context, question func(context.Context) error) {
	if time.Now().UnixNano() < h.restUntil.Load() {
		return
	}
	asked, cancel := context.WithTimeout(ctx, or(h.Wait, 20*time.Millisecond))
	defer cancel()
	if question(asked) != nil && ctx.Err() == nil {
		h.restUntil.Store(time.Now().Add(or(h.Rest, time.Second)).UnixNano())
	}
}

func (h *Hints) key(consumer, id string) string {
	prefix := h.Prefix
	if prefix == "" {
		prefix = "inbox:"
	}
	return prefix + consumer + ":" + id
}

func or(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}
