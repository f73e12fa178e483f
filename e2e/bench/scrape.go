package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sort"
	"strconv"
	"strings"
)

// figures are what a look at /metrics brought.
type figures struct {
	mallocs   float64
	published float64
	ack       []bucket // walrelay_commit_to_ack_seconds
}

type bucket struct{ le, count float64 }

func scrape(ctx context.Context, addr string) (f figures, err error) {
	body, err := get(ctx, addr, "/metrics")
	if err != nil {
		return f, err
	}
	for s := bufio.NewScanner(bytes.NewReader(body)); s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
		case name == "go_memstats_mallocs_total":
			f.mallocs = v
		case strings.HasPrefix(name, "walrelay_events_published_total"):
			f.published += v
		case strings.HasPrefix(name, "walrelay_commit_to_ack_seconds_bucket"):
			_, le, _ := strings.Cut(name, `le="`)
			bound, err := strconv.ParseFloat(strings.TrimSuffix(le, `"}`), 64) // +Inf too
			if err == nil {
				f.ack = append(f.ack, bucket{bound, v})
			}
		}
	}
	return f, nil
}

func get(ctx context.Context, addr, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("bench: GET %s: %s: %s", path, resp.Status, body)
	}
	return body, err
}

// between is the histogram of what was observed between two looks.
func between(before, after []bucket) []bucket {
	diff := make([]bucket, len(after))
	for i, b := range after {
		diff[i] = b
		if i < len(before) {
			diff[i].count -= before[i].count
		}
	}
	return diff
}

// quantile is a bound of the q quantile: the upper end of its bucket, in seconds.
func quantile(buckets []bucket, q float64) float64 {
	if len(buckets) == 0 {
		return 0
	}
	rank := q * buckets[len(buckets)-1].count
	i := sort.Search(len(buckets)-1, func(i int) bool { return buckets[i].count >= rank })
	return buckets[i].le
}
