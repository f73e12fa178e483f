package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/jackc/pglogrepl"
)

// Replay is a replay on record: what was asked for, and how far it has come.
type Replay struct {
	RunID string
	Asked string // the options, as they were given: who asks for the same goes on with this one

	// Limit bounds the window: what commits there or later is not part of it. It begins at
	// Position.Trusted.
	Limit    pglogrepl.LSN
	Position Position // what of the window is published again
	Events   uint64   // how many that are
	Done     bool     // it is finished, and remembered so that it is not done again
}

// ReplayFile keeps the record of one replay in a file of the local file system, as [File]
// keeps a position. Who replays holds its lock all the while; who moves the
// anchor holds it meanwhile.
type ReplayFile struct{ file *File }

// OpenReplayFile is the record in the file at path. It touches nothing yet.
func OpenReplayFile(path string) *ReplayFile { return &ReplayFile{OpenFile(path)} }

// Lock waits, as long as ctx lets it, until nobody else holds the record.
func (f *ReplayFile) Lock(ctx context.Context) (unlock func(), err error) { return f.file.lock(ctx) }

// Load returns the record; ErrNone where there is none, and a *StateError where there is
// one that cannot be trusted.
func (f *ReplayFile) Load() (Replay, error) {
	data, err := f.file.read()
	if errors.Is(err, fs.ErrNotExist) {
		return Replay{}, ErrNone
	}
	var r Replay
	if err == nil {
		r, err = decodeReplay(data)
	}
	if err != nil {
		return Replay{}, f.file.stateError("the record of a replay: "+cause(err).Error(),
			"correct its permissions, or give the replay up by removing the file: what was published by it stays, and a new replay begins anew")
	}
	return r, nil
}

// Save makes r the record, durably, or leaves the old one. The caller holds the lock.
func (f *ReplayFile) Save(r Replay) error {
	data, err := encodeReplay(r)
	if err == nil {
		err = f.file.replace(data)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: save %s: %w", f.file.path, err)
	}
	return nil
}

// Remove makes it as if there had never been a record. The caller holds the lock.
func (f *ReplayFile) Remove() error {
	err := os.Remove(f.file.path)
	if err == nil {
		err = f.file.syncFolder()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("checkpoint: remove %s: %w", f.file.path, cause(err))
	}
	return nil
}

const replayOpening = "{\n  \"walrelay_replay\": "

// replayDocument is a Replay as people read it in the file; see document.
type replayDocument struct {
	Version  int      `json:"walrelay_replay"`
	RunID    string   `json:"run_id"`
	Asked    string   `json:"asked"`
	Limit    lsn      `json:"limit"`
	Events   uint64   `json:"events"`
	Done     bool     `json:"done"`
	Position document `json:"position"`
}

func encodeReplay(r Replay) ([]byte, error) {
	if err := r.Position.check(); err != nil {
		return nil, fmt.Errorf("refused: %w", err)
	}
	body, err := json.MarshalIndent(replayDocument{Version: schemaVersion, RunID: r.RunID, Asked: r.Asked,
		Limit: lsn(r.Limit), Events: r.Events, Done: r.Done, Position: documentOf(r.Position)}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	body = bytes.TrimSuffix(body, []byte("\n}"))
	return append(body, trailer(body)...), nil
}

// decodeReplay is the inverse of encodeReplay.
func decodeReplay(data []byte) (Replay, error) {
	size := len(trailer(nil))
	switch {
	case !bytes.HasPrefix(data, []byte(replayOpening)):
		return Replay{}, errors.New("it is torn, or no record of a replay")
	case len(data) < size, string(data[len(data)-size:]) != trailer(data[:len(data)-size]):
		return Replay{}, errTorn
	}
	var doc replayDocument
	dec := json.NewDecoder(bytes.NewReader(append(bytes.Clone(data[:len(data)-size]), "\n}"...)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return Replay{}, fmt.Errorf("%w (%w)", errContradiction, err)
	}
	if doc.Version != schemaVersion {
		return Replay{}, errNewer
	}
	r := Replay{RunID: doc.RunID, Asked: doc.Asked, Limit: pglogrepl.LSN(doc.Limit), Events: doc.Events, Done: doc.Done, Position: doc.Position.position()}
	return r, r.Position.check()
}
