package workload

import (
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

var columns = []string{"event_id", "aggregate_type", "aggregate_id", "event_type", "payload", "topic", "headers",
	"correlation_id", "idempotency_key", "created_at"}

// useDefault stands for the column's DEFAULT.
const useDefault = sentinel("default")

type sentinel string

func (w *writer) eventID(n int) string { return fmt.Sprintf("%x-%d-%d", w.o.Seed, w.id, n) }

// row is one row in the order of columns.
func (w *writer) row(suppliedID bool) []any {
	kind := w.o.Types[w.rng.IntN(len(w.o.Types))]
	id := any(useDefault)
	if suppliedID {
		id = w.eventID(w.rows)
	}
	w.rows++
	var topic, correlation, idempotency any
	if w.rng.IntN(6) == 0 {
		topic = "outbox.event." + kind
	}
	if w.rng.IntN(3) == 0 {
		correlation = fmt.Sprintf("request-%d", w.rng.IntN(1000))
	}
	if w.rng.IntN(4) == 0 {
		idempotency = fmt.Sprintf("once-%d", w.rows)
	}
	return []any{id, kind, w.key(), fmt.Sprintf("%s-%d", kind, w.rng.IntN(5)), w.payload(), topic, w.headers(),
		correlation, idempotency, w.createdAt()}
}

func (w *writer) key() any {
	switch w.rng.IntN(20) {
	case 0:
		return nil
	case 1:
		return ""
	case 2:
		return "schlüssel-鍵-🔑"
	}
	return fmt.Sprintf("key-%d", w.rng.IntN(w.o.Keys))
}

func (w *writer) payload() any {
	switch k := w.rng.IntN(60); {
	case k < 3:
		return nil
	case k < 5:
		return []string{`{}`, `""`, `[]`, `null`, `0`, `false`}[w.rng.IntN(6)]
	case k < 8:
		return `{"name": "Zoë Ångström", "note": "日本語 \u00e9 \"quoted\" \\ 🚀", "rtl": "שלום"}`
	case k == 8:
		return fmt.Sprintf(`{"large": "%s"}`, w.text(w.rng.IntN(w.o.Large)))
	case k < 12: // compressible and toasted
		return fmt.Sprintf(`{"wide": "%s"}`, strings.Repeat("walrelay ", 500))
	}
	return fmt.Sprintf(`{"n": %d, "amount": %d.%02d, "text": "%s"}`, w.rows, w.rng.IntN(1000), w.rng.IntN(100), w.text(20+w.rng.IntN(200)))
}

func (w *writer) text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte(w.rng.IntN(26))
	}
	return string(b)
}

func (w *writer) headers() any {
	switch w.rng.IntN(5) {
	case 0:
		return fmt.Sprintf(`{"tenant": "t%d", "attempt": %d, "nested": {"a": [1, 2]}, "nothing": null, "naïve": "ü"}`, w.rng.IntN(9), w.rng.IntN(9))
	case 1:
		return `{}`
	case 2: // none of these may be taken from a row
		return `{"event-id": "forged", "walrelay-lsn": "0/1", "ok": true}`
	}
	return nil
}

func (w *writer) createdAt() any {
	switch w.rng.IntN(12) {
	case 0:
		return time.Date(2024, 2, 29, 23, 59, 59, w.rng.IntN(1_000_000)*1000, time.UTC)
	case 1:
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	case 2:
		return time.Date(1950, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return useDefault
}
