package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// File keeps one Position in one file of the local file system.
//
// Save, numbered, since the order is the guarantee:
//
//  1. take an flock on PATH.lock: two relays of one host may share the file
//  2. read what is there; refuse a higher position of this slot and anything foreign
//  3. write PATH.tmp, new, mode 0600
//  4. fsync it: else a crash after the rename can leave the new name with no content
//  5. rename it over PATH: a reader sees the old or the new document, never a part
//  6. fsync the folder: else a crash can bring back the old position, after the
//     slot was moved past it
//
// Only when all six are done is the position saved. A fault before 5 leaves the
// old file as it was. After a failed fsync nothing of that file is used again
// (the kernel may have dropped its dirty pages): the next Save starts from 3.
//
// Load takes no lock. Both may be called from any goroutine.
type File struct {
	path string
	disk disk

	// What Save wrote last, so that it need not be parsed before the next one. It is
	// looked at only where the file holds these very bytes.
	mu      sync.Mutex
	written []byte
	saved   Position
}

// disk is where tests put faults and crash points.
type disk struct {
	write  func(f *os.File, data []byte) error
	sync   func(f *os.File) error
	rename func(from, to string) error
}

var realDisk = disk{
	write:  func(f *os.File, data []byte) error { _, err := f.Write(data); return err },
	sync:   (*os.File).Sync,
	rename: os.Rename,
}

// OpenFile is the store in the file at path. It touches nothing yet.
func OpenFile(path string) *File { return &File{path: path, disk: realDisk} }

// For does nothing: a file holds one position, which says whose it is.
func (f *File) For(string, string) {}

// Own does nothing: relays of one host may share the file, and a higher position stays.
func (f *File) Own(context.Context) error { return nil }

// Load returns the saved position, or ErrNone. A *StateError says that there is
// something, but not a position to trust; any other error may pass by itself.
func (f *File) Load(context.Context) (Position, error) {
	data, err := f.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Position{}, ErrNone
	case errors.Is(err, fs.ErrPermission):
		return Position{}, f.stateError("it cannot be read: "+cause(err).Error(),
			"run walrelay as the user who owns the file, or give it to this user (chown)")
	case errors.Is(err, errForeign):
		return Position{}, f.unreadable(err)
	case err != nil:
		return Position{}, fmt.Errorf("checkpoint: read %s: %w", f.path, cause(err))
	}
	p, err := decode(data)
	if m := (*moved)(nil); errors.As(err, &m) {
		return Position{}, newMovedError(f.path, m)
	}
	if err != nil {
		return Position{}, f.unreadable(err)
	}
	return p, nil
}

// read returns the file's bytes. A folder or a device is foreign: reading it
// could block or never end.
func (f *File) read() ([]byte, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w, nor a file at all (%s)", errForeign, info.Mode().Type())
	}
	return os.ReadFile(f.path)
}

// Save makes p the saved position, durably, or leaves the old one. ErrBehind and
// *StateError mean that it never will be; other errors (disk full, I/O) may pass.
// ctx bounds the wait for the lock only.
func (f *File) Save(ctx context.Context, p Position) error {
	return f.save(ctx, p, "", func() error { return f.mayFollow(ctx, p) })
}

func (f *File) mayFollow(ctx context.Context, p Position) error {
	saved, err := f.current(ctx)
	if err == nil {
		err = saved.supersededBy(p)
	}
	return err
}

// Retire leaves word that another store, as --checkpoint names it, has taken the position over.
func (f *File) Retire(ctx context.Context, p Position, to string) error {
	return f.save(ctx, p, to, func() error { return f.mayFollow(ctx, p) })
}

// Replace is Save over whatever checkpoint is there, higher, damaged, moved or of another cluster: for
// an operator who says so. A file that was never a checkpoint is left alone.
func (f *File) Replace(ctx context.Context, p Position) error {
	return f.save(ctx, p, "", func() error {
		_, err := f.Load(ctx)
		if errors.As(err, new(*MovedError)) {
			return nil
		}
		if state := (*StateError)(nil); errors.As(err, &state) && state.Damaged {
			return nil
		}
		return err
	})
}

// save writes p, or that it has moved to another store, if allowed says that this may replace what is there.
func (f *File) save(ctx context.Context, p Position, movedTo string, allowed func() error) error {
	if err := p.check(); err != nil {
		return fmt.Errorf("checkpoint: refused to save: %w", err)
	}
	unlock, err := f.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = allowed()
	if err != nil && !errors.Is(err, ErrNone) {
		var state *StateError
		if errors.As(err, &state) {
			state.Store = f.path
		}
		return err
	}
	data, err := encodeMoved(p, movedTo)
	if err == nil {
		err = f.replace(data)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: save %s: %w", f.path, err)
	}
	f.mu.Lock()
	if f.written, f.saved = data, p; movedTo != "" {
		f.written = nil
	}
	f.mu.Unlock()
	return nil
}

// current is Load, without parsing what we wrote ourselves.
func (f *File) current(ctx context.Context) (Position, error) {
	f.mu.Lock()
	written, saved := f.written, f.saved
	f.mu.Unlock()
	if written != nil {
		if data, err := f.read(); err == nil && bytes.Equal(data, written) {
			return saved, nil
		}
	}
	return f.Load(ctx)
}

// replace is steps 3 to 6 of File.
func (f *File) replace(data []byte) error {
	tmp := f.path + ".tmp"
	if err := f.writeNew(tmp, data); err != nil {
		os.Remove(tmp)
		return err
	}
	if err := f.disk.rename(tmp, f.path); err != nil {
		os.Remove(tmp)
		return err
	}
	return f.syncFolder()
}

func (f *File) syncFolder() error {
	folder, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return f.disk.sync(folder)
}

// writeNew creates the file afresh: what a killed relay left under this name may
// be somebody else's, a link, or of another mode.
func (f *File) writeNew(name string, data []byte) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tmp, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = f.disk.write(tmp, data)
	if err == nil {
		err = f.disk.sync(tmp)
	}
	return errors.Join(err, tmp.Close())
}

// Check proves that a position could be saved now: the folder is there, and the
// lock file can be made. It saves nothing. A rename that was not followed by its fsync,
// because the process was killed in between, is made durable before anything relies on it.
func (f *File) Check(ctx context.Context) error {
	unlock, err := f.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return f.syncFolder()
}

// lockRetry is how often a held lock is tried again. Locks are held for one Save.
const lockRetry = 2 * time.Millisecond

// lockTimeout is when a Save that waits for a lock, which a frozen process may hold, says so.
const lockTimeout = 5 * time.Second

// lock takes the flock of PATH.lock, and returns how to give it back. The lock
// file stays: removing it would let two relays lock two files of one name.
func (f *File) lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	name := f.path + ".lock"
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: lock file %s: %w", name, cause(err))
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			file.Close()
			return nil, fmt.Errorf("checkpoint: lock %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("checkpoint: lock %s: another process holds it: %w", name, ctx.Err())
		case <-time.After(lockRetry):
		}
	}
}

func (f *File) stateError(reason, remedy string) *StateError {
	return &StateError{Store: f.path, Reason: reason, Remedy: remedy}
}

// unreadable says what to do about what decode found. Starting without a
// checkpoint loses nothing (the slot is never ahead of it): it may repeat events.
func (f *File) unreadable(found error) *StateError {
	switch {
	case errors.Is(found, errNewer):
		return f.stateError(found.Error(), "run the newer walrelay, or one that is at least as new")
	case errors.Is(found, errForeign):
		return f.stateError(found.Error(), "point --checkpoint at a file of its own; this one was left alone")
	}
	err := f.stateError(found.Error(), "restore it; or go on from the slot's own position: nothing is lost by that, but events that the slot has not confirmed are published again")
	err.Damaged = true
	return err
}

// cause drops the operation and path that os errors repeat.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
