package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The crash model: a machine may stop after any step of a Save. Then
//   - a file's content that was not fsynced may be there up to any byte;
//   - a rename that was not followed by an fsync of the folder may have happened
//     or not.
//
// Everything else is as the steps left it. This is what POSIX promises, and file
// systems in use have been seen to take all of it.

// trace is the steps of one Save, as a disk was asked for them.
type trace struct {
	steps []string // write, sync, rename, syncdir
	data  []byte   // what was written
}

// record returns a disk that works, and notes what was asked. Steps named in
// forget are neither done nor noted, as if their call was missing.
func (tr *trace) record(forget string) disk {
	step := func(name string, do func() error) error {
		if name == forget {
			return nil
		}
		tr.steps = append(tr.steps, name)
		return do()
	}
	return disk{
		write: func(f *os.File, data []byte) error {
			tr.data = data
			return step("write", func() error { return realDisk.write(f, data) })
		},
		sync: func(f *os.File) error {
			name := "sync"
			if info, err := f.Stat(); err == nil && info.IsDir() {
				name = "syncdir"
			}
			return step(name, func() error { return realDisk.sync(f) })
		},
		rename: func(from, to string) error {
			return step("rename", func() error { return realDisk.rename(from, to) })
		},
	}
}

// afterCrash lists every content that the checkpoint file can have when the
// machine stopped after the first n steps; old is the durable content before.
func (tr *trace) afterCrash(n int, old []byte) [][]byte {
	done := strings.Join(tr.steps[:n], " ") + " "
	before, after, renamed := strings.Cut(done, "rename ")
	if !renamed {
		return [][]byte{old}
	}
	var states [][]byte
	if !strings.Contains(after, "syncdir ") {
		states = append(states, old)
	}
	if strings.Contains(before, "write sync ") {
		return append(states, tr.data)
	}
	for cut := range len(tr.data) + 1 {
		states = append(states, tr.data[:cut])
	}
	return states
}

// judge saves next over prev on a disk that forgets a step, and returns the first
// crash after which the file is not prev or next, or not next although Save had
// returned.
func judge(t *testing.T, forget string) error {
	t.Helper()
	prev, next := idle(100), samplePosition()
	prev.SystemID, prev.Slot = next.SystemID, next.Slot

	f := tempFile(t)
	mustSave(t, f, prev)
	old, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	var tr trace
	f.disk = tr.record(forget)
	mustSave(t, f, next)

	survivor := OpenFile(filepath.Join(t.TempDir(), "survivor"))
	for n := range len(tr.steps) + 1 {
		for _, content := range tr.afterCrash(n, old) {
			if err := os.WriteFile(survivor.path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := survivor.Load(t.Context())
			returned := n == len(tr.steps)
			if err != nil || got != next && (returned || got != prev) {
				return fmt.Errorf("crash after %v: the file holds %q: %v", tr.steps[:n], content, err)
			}
		}
	}
	return nil
}

func TestG3EveryCrashPointLeavesOldOrNew(t *testing.T) {
	if err := judge(t, ""); err != nil {
		t.Error(err)
	}
}

// The judge itself: with either fsync forgotten it must object.
func TestCrashModelCatchesForgottenFsync(t *testing.T) {
	for _, forget := range []string{"sync", "syncdir"} {
		if err := judge(t, forget); err == nil {
			t.Errorf("without %q every crash was survived: the test proves nothing", forget)
		}
	}
}

// G3, G8: a full or failing disk at any step is an ordinary error; the old
// position is intact, and the next Save works.
func TestG8DiskFaultsLeaveTheOldPosition(t *testing.T) {
	for _, fault := range []error{syscall.ENOSPC, syscall.EIO} {
		for _, at := range []string{"write", "short write", "sync", "rename"} {
			t.Run(fmt.Sprint(at, " ", fault), func(t *testing.T) {
				f := tempFile(t)
				mustSave(t, f, idle(100))
				f.disk = realDisk
				switch at {
				case "write":
					f.disk.write = func(*os.File, []byte) error { return fault }
				case "short write":
					f.disk.write = func(file *os.File, data []byte) error {
						return errors.Join(realDisk.write(file, data[:len(data)/2]), fault)
					}
				case "sync":
					f.disk.sync = func(*os.File) error { return fault }
				case "rename":
					f.disk.rename = func(string, string) error { return fault }
				}
				err := f.Save(t.Context(), idle(200))
				var state *StateError
				if !errors.Is(err, fault) || errors.As(err, &state) || errors.Is(err, ErrBehind) {
					t.Errorf("Save = %v, want an ordinary error of %v", err, fault)
				}
				if got := mustLoad(t, f); got != idle(100) {
					t.Errorf("loaded %+v", got)
				}
				if left, _ := filepath.Glob(f.path + ".tmp*"); left != nil {
					t.Errorf("left behind: %v", left)
				}
				f.disk = realDisk
				mustSave(t, f, idle(200))
			})
		}
	}
}

// G3: a folder that cannot be fsynced has saved nothing for certain.
func TestG3FailedFolderSyncIsAnError(t *testing.T) {
	f := tempFile(t)
	f.disk.sync = func(file *os.File) error {
		if info, err := file.Stat(); err == nil && info.IsDir() {
			return syscall.EIO
		}
		return realDisk.sync(file)
	}
	if err := f.Save(t.Context(), idle(1)); !errors.Is(err, syscall.EIO) {
		t.Errorf("Save = %v, want EIO", err)
	}
}

// G8: what a relay killed in a Save left behind is in nobody's way.
func TestG8LeftoverTemporaryFile(t *testing.T) {
	f := tempFile(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, f.path+".tmp"); err != nil {
		t.Fatal(err)
	}
	mustSave(t, f, idle(1))
	if got, err := os.ReadFile(victim); err != nil || !bytes.Equal(got, []byte("mine")) {
		t.Errorf("the link was followed: %q, %v", got, err)
	}
	if got := mustLoad(t, f); got != idle(1) {
		t.Errorf("loaded %+v", got)
	}
}
