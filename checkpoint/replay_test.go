package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// G5: what is on record is what was saved, or is refused.
func TestG5ReplayRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "replay")
	f := OpenReplayFile(path)
	if _, err := f.Load(); !errors.Is(err, ErrNone) {
		t.Errorf("before the first: %v", err)
	}
	want := Replay{RunID: "20260301T120000Z-ab12", Asked: "--from-lsn 0/1 --filter-key '<&>'", Limit: 0x17_00000000, Position: samplePosition(), Events: 7}
	if err := f.Save(want); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Load(); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoiled := range map[string]string{
		"cut":    string(data[:len(data)/2]),
		"edited": strings.Replace(string(data), "\"events\": 7", "\"events\": 8", 1),
		"empty":  "",
		"other":  "hello",
	} {
		if err := os.WriteFile(path, []byte(spoiled), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Load(); !errors.As(err, new(*StateError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := errors.Join(f.Remove(), f.Remove()); err != nil {
		t.Error(err)
	}
	if _, err := f.Load(); !errors.Is(err, ErrNone) {
		t.Errorf("removed: %v", err)
	}
}

func TestReplayLockIsHeldByOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "replay")
	release, err := OpenReplayFile(path).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := OpenReplayFile(path).Lock(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("held twice: %v", err)
	}
	release()
	release, err = OpenReplayFile(path).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release()
}
