package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

func tempFile(t *testing.T) *File {
	t.Helper()
	return OpenFile(filepath.Join(t.TempDir(), "walrelay.checkpoint"))
}

func mustSave(t *testing.T, f *File, p Position) {
	t.Helper()
	if err := f.Save(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

func mustLoad(t *testing.T, f *File) Position {
	t.Helper()
	p, err := f.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestG5SavedPositionComesBackWhole(t *testing.T) {
	f := tempFile(t)
	if _, err := f.Load(t.Context()); !errors.Is(err, ErrNone) {
		t.Fatalf("Load without a file: %v, want ErrNone", err)
	}
	p := samplePosition()
	for _, id := range []string{"", "plain", `\x6964`, "\xff\x00binary", "line\nbreak"} {
		p.Open.Rows++
		p.Open.EventID = id
		mustSave(t, f, p)
		if got := mustLoad(t, f); got != p {
			t.Errorf("loaded %+v\nsaved  %+v", got, p)
		}
	}
	done := idle(0x17_00000000)
	done.SystemID, done.Slot = p.SystemID, p.Slot
	mustSave(t, f, done)
	if got := mustLoad(t, f); got != done {
		t.Errorf("loaded %+v\nsaved  %+v", got, done)
	}

	info, err := os.Stat(f.path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	if _, err := os.Stat(f.path + ".tmp"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary file is left: %v", err)
	}
}

func TestDocumentIsReadable(t *testing.T) {
	data, err := encode(samplePosition())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"walrelay_checkpoint": 2`, `"slot": "walrelay"`, `"safe": "16/B374D900"`, `"end": "16/B374D878"`, `"rows": 51234`} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%s is missing in\n%s", want, data)
		}
	}
}

// G3: of two relays that share the file, the one that is behind cannot take the
// position back.
func TestG3HigherPositionSurvives(t *testing.T) {
	f := tempFile(t)
	mustSave(t, f, inside(100, 200, 7))
	for _, lower := range []Position{idle(100), idle(200), inside(100, 200, 6)} {
		if err := f.Save(t.Context(), lower); !errors.Is(err, ErrBehind) {
			t.Errorf("Save(%s) over 200 + 7 rows: %v, want ErrBehind", lower.progress(), err)
		}
	}
	mustSave(t, f, inside(100, 200, 7))
	mustSave(t, f, idle(201))
	if got := mustLoad(t, f); got != idle(201) {
		t.Errorf("loaded %+v", got)
	}
}

// G1: two relays of different slots by mistake on one file stop; neither destroys
// the other's position.
func TestG1ForeignPositionIsNotOverwritten(t *testing.T) {
	f := tempFile(t)
	mine := idle(100)
	mustSave(t, f, mine)
	for _, spoil := range []func(*Position){
		func(p *Position) { p.Slot = "other" },
		func(p *Position) { p.SystemID = "2" },
	} {
		p := idle(500)
		spoil(&p)
		var state *StateError
		if err := f.Save(t.Context(), p); !errors.As(err, &state) || state.Store != f.path {
			t.Errorf("Save = %v, want a *StateError that names the file", err)
		}
	}
	if got := mustLoad(t, f); got != mine {
		t.Errorf("loaded %+v", got)
	}
}

// G3, under contention: whatever the interleaving, the highest position stays.
func TestG3ConcurrentSavesKeepTheHighest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	const relays, saves = 4, 25
	var wg sync.WaitGroup
	for r := range relays {
		wg.Go(func() {
			f := OpenFile(path) // its own descriptors, as another process has
			for i := range saves {
				err := f.Save(t.Context(), idle(pglogrepl.LSN(1+i*relays+r)))
				if err != nil && !errors.Is(err, ErrBehind) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := mustLoad(t, OpenFile(path)); got.Safe != relays*saves {
		t.Errorf("safe = %d, want %d", got.Safe, relays*saves)
	}
}

func TestLockWaitEndsWithItsContext(t *testing.T) {
	f := tempFile(t)
	unlock, err := f.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := f.Save(ctx, idle(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Save under a held lock: %v", err)
	}
}

// G1: whatever was stored and cannot be trusted is refused with a way out, and left alone.
func TestG1StateErrors(t *testing.T) {
	good, err := encode(samplePosition())
	if err != nil {
		t.Fatal(err)
	}
	edit := func(from, to string) []byte { return []byte(strings.Replace(string(good), from, to, 1)) }
	for name, c := range map[string]struct {
		content []byte
		reason  string
	}{
		"empty":              {nil, "torn"},
		"zeroed by a crash":  {make([]byte, len(good)), "torn"},
		"edited":             {edit("16/B374D900", "16/B374D901"), "edited"},
		"edited checksum":    {edit("crc32c:", "crc32c:0"), "edited"},
		"appended":           {append(append([]byte{}, good...), '\n'), "torn"},
		"not JSON":           {[]byte("hello\n"), "not a walrelay checkpoint"},
		"other JSON":         {[]byte("{\n  \"offset\": 1\n}\n"), "not a walrelay checkpoint"},
		"newer":              {edit(`checkpoint": 2`, `checkpoint": 3`), "newer walrelay (schema 3"},
		"newer, other trail": {[]byte(opening + "9,\n  \"what\": 1\n}\n"), "newer walrelay (schema 9"},
		"unknown field":      {signed(opening + "1,\n  \"system_id\": \"1\",\n  \"slot\": \"s\",\n  \"what\": 1"), "contradicts itself"},
		"bad LSN":            {signed(opening + "1,\n  \"system_id\": \"1\",\n  \"slot\": \"s\",\n  \"safe\": \"1/2x\""), "contradicts itself"},
		"broken invariant":   {signed(opening + "1,\n  \"system_id\": \"\",\n  \"slot\": \"s\""), "contradicts itself"},
	} {
		t.Run(name, func(t *testing.T) {
			f := tempFile(t)
			if err := os.WriteFile(f.path, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
			var state *StateError
			if _, err := f.Load(t.Context()); !errors.As(err, &state) {
				t.Fatalf("Load = %v, want a *StateError", err)
			}
			if !strings.Contains(state.Reason, c.reason) || state.Remedy == "" || !strings.Contains(state.Error(), f.path) {
				t.Errorf("error %q; want %q, the path and a remedy", state, c.reason)
			}
			if err := f.Save(t.Context(), samplePosition()); !errors.As(err, &state) {
				t.Errorf("Save over it = %v, want a *StateError", err)
			}
			if after, err := os.ReadFile(f.path); err != nil || string(after) != string(c.content) {
				t.Errorf("the file was changed: %q, %v", after, err)
			}
		})
	}
}

// signed is a document of this body with the checksum that it needs.
func signed(body string) []byte { return append([]byte(body), trailer([]byte(body))...) }

func TestG1NotAFile(t *testing.T) {
	f := OpenFile(t.TempDir())
	var state *StateError
	if _, err := f.Load(t.Context()); !errors.As(err, &state) {
		t.Errorf("Load of a folder: %v", err)
	}
	fifo := tempFile(t)
	if err := syscall.Mkfifo(fifo.path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fifo.Load(t.Context()); !errors.As(err, &state) {
		t.Errorf("Load of a FIFO: %v", err)
	}
}

func TestG1UnreadableFile(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads every file")
	}
	f := tempFile(t)
	mustSave(t, f, idle(1))
	if err := os.Chmod(f.path, 0); err != nil {
		t.Fatal(err)
	}
	var state *StateError
	if _, err := f.Load(t.Context()); !errors.As(err, &state) || !strings.Contains(state.Remedy, "chown") {
		t.Errorf("Load = %v", err)
	}
}

func TestCheckFindsTheMissingFolder(t *testing.T) {
	f := OpenFile(filepath.Join(t.TempDir(), "missing", "c"))
	if err := f.Check(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check = %v", err)
	}
	if err := tempFile(t).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// G1: no prefix of a document passes for a position.
func TestG1TornAtEveryLength(t *testing.T) {
	good, err := encode(samplePosition())
	if err != nil {
		t.Fatal(err)
	}
	f := tempFile(t)
	for n := range len(good) {
		if err := os.WriteFile(f.path, good[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		var state *StateError
		if _, err := f.Load(t.Context()); !errors.As(err, &state) || !strings.Contains(state.Reason, "torn") {
			t.Fatalf("cut at %d of %d: %v", n, len(good), err)
		}
	}
}

// G1: Load never panics, and believes only what Save could have written.
func FuzzLoad(f *testing.F) {
	good, err := encode(samplePosition())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte{})
	f.Add([]byte(opening))
	f.Add([]byte(opening + "2}"))
	f.Add(signed(opening + "1,\n  \"system_id\": \"1\",\n  \"slot\": \"s\""))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, data := range [][]byte{data, signed(opening + string(data))} {
			p, err := decode(data)
			if err != nil {
				continue
			}
			again, err := encode(p)
			if err != nil {
				t.Fatalf("%+v was believed but cannot be written: %v", p, err)
			}
			if q, err := decode(again); err != nil || q != p {
				t.Fatalf("read %+v, then %+v, %v", p, q, err)
			}
		}
	})
}

// G8: what the version before wrote is read, and becomes a document of this one.
func TestG8OlderVersion(t *testing.T) {
	f := tempFile(t)
	old := signed(opening + "1,\n  \"system_id\": \"1\",\n  \"timeline\": 1,\n  \"slot\": \"s\",\n  \"publication\": \"p\",\n  \"safe\": \"0/64\"")
	if err := os.WriteFile(f.path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	pos, err := f.Load(t.Context())
	if err != nil || pos != idle(100) {
		t.Fatalf("Load = %+v, %v", pos, err)
	}
	if err := f.Save(t.Context(), idle(200)); err != nil {
		t.Error(err)
	}
}

// G1: Replace puts a position in the place of any other checkpoint, a damaged one too, and of
// nothing that is none.
func TestG1Replace(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		ok      bool
	}{
		"torn":    {opening + "2,", true},
		"zeroed":  {"\x00\x00", true},
		"foreign": {"hello", false},
		"newer":   {opening + "9,\n  \"what\": 1\n}\n", false},
	} {
		f := tempFile(t)
		if err := os.WriteFile(f.path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.Replace(t.Context(), idle(1)); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := tempFile(t)
	for _, pos := range []Position{samplePosition(), idle(1)} {
		if err := f.Replace(t.Context(), pos); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Load(t.Context()); err != nil || got != pos {
			t.Errorf("Load = %+v, %v", got, err)
		}
	}
}

// G1: a file whose position has moved says where to, and takes it back only from who says so.
func TestRetiredFile(t *testing.T) {
	file := OpenFile(filepath.Join(t.TempDir(), "position"))
	if err := file.Save(t.Context(), idle(100)); err != nil {
		t.Fatal(err)
	}
	if err := file.Retire(t.Context(), idle(100), "kafka:t"); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*File{file, OpenFile(file.path)} {
		var moved *MovedError
		if _, err := f.Load(t.Context()); !errors.As(err, &moved) || moved.To != "kafka:t" || moved.Position != idle(100) {
			t.Errorf("load: %v", err)
		}
		if err := f.Save(t.Context(), idle(200)); !errors.As(err, new(*StateError)) {
			t.Errorf("save: %v", err)
		}
	}
	if err := file.Replace(t.Context(), idle(200)); err != nil {
		t.Fatal(err)
	}
	if p, err := file.Load(t.Context()); err != nil || p.Safe != 200 {
		t.Errorf("taken back: %s, %v", p.Safe, err)
	}
}
