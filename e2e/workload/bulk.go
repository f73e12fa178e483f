package workload

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Bulk inserts n rows with payloads of about size bytes in one transaction, made by the
// server itself. kind is their aggregate type, prefix the beginning of their ids.
func Bulk(ctx context.Context, url, table, kind, prefix string, n, size int) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("workload: bulk: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "INSERT INTO "+table+` (event_id, aggregate_type, aggregate_id, event_type, payload)
		SELECT $1 || i, $2, 'key-' || i % 1000, 'bulk', jsonb_build_object('n', i, 'text', repeat(md5(i::text), $4 / 32 + 1))
		FROM generate_series(1, $3) i`, prefix, kind, n, size)
	if err != nil {
		return fmt.Errorf("workload: bulk: %w", err)
	}
	return nil
}

// Copy writes n rows, whose ids it supplies, with one COPY: they share WAL positions.
func Copy(ctx context.Context, url, table, kind, prefix string, n, size int) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("workload: copy: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	text := strings.Repeat("x", size)
	_, err = conn.CopyFrom(ctx, pgx.Identifier(strings.Split(table, ".")), []string{"event_id", "aggregate_type", "aggregate_id", "event_type", "payload"},
		pgx.CopyFromSlice(n, func(i int) ([]any, error) {
			return []any{fmt.Sprintf("%s%d", prefix, i), kind, fmt.Sprintf("key-%d", i%1000), "copied", fmt.Sprintf(`{"n": %d, "text": "%s"}`, i, text)}, nil
		}))
	if err != nil {
		return fmt.Errorf("workload: copy: %w", err)
	}
	return nil
}
