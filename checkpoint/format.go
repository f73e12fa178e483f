package checkpoint

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pglogrepl"
)

// schemaVersion is raised whenever a reader of the version before would
// misunderstand the document: a field that it does not know is one such case.
//
// Version 2 has snapshots. Version 1 is read as one without.
const schemaVersion = 2

// opening is how every document of every version starts, so that a torn one is
// told from a file that was never a checkpoint.
const opening = "{\n  \"walrelay_checkpoint\": "

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// document is a Position as people read it in the file. The last key, the
// checksum, covers every byte before it; encode and decode add and check it.
type document struct {
	Version     int         `json:"walrelay_checkpoint"`
	SystemID    string      `json:"system_id"`
	Timeline    int32       `json:"timeline"`
	Slot        string      `json:"slot"`
	Publication string      `json:"publication"`
	Safe        lsn         `json:"safe"`
	Trusted     lsn         `json:"trusted"`
	Verified    lsn         `json:"verified"`
	Last        docTxn      `json:"last,omitzero"`
	Open        docProgress `json:"open,omitzero"`
	Catalog     docCatalog  `json:"catalog"`
	Snapshot    docSnapshot `json:"snapshot,omitzero"`
	Rooted      docSnapshot `json:"rooted,omitzero"`
	MovedTo     string      `json:"moved_to,omitempty"` // another store has the position
	Backfill    docBackfill `json:"backfill,omitzero"`
}

type docTxn struct {
	Commit  lsn       `json:"commit"`
	End     lsn       `json:"end"`
	XID     uint32    `json:"xid"`
	Time    time.Time `json:"time"`
	EventID eventID   `json:"event_id"`
}

type docProgress struct {
	Commit  lsn     `json:"commit"`
	Rows    uint64  `json:"rows"`
	EventID eventID `json:"event_id"`
}

type docSnapshot struct {
	Xmin uint64 `json:"xmin"`
	LSN  lsn    `json:"lsn"`
}

type docBackfill struct {
	Runs   int   `json:"runs"`
	Events int64 `json:"events"`
}

type docCatalog struct {
	Publication uint32 `json:"publication"`
	Membership  uint32 `json:"membership"`
	Table       uint32 `json:"table"`
	Settings    uint32 `json:"settings"`
}

// encode is the document of p, checksum included.
func encode(p Position) ([]byte, error) { return encodeMoved(p, "") }

// encodeMoved is the document that is left behind where p has moved to another store.
func encodeMoved(p Position, to string) ([]byte, error) {
	doc := documentOf(p)
	doc.MovedTo = to
	body, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	body = bytes.TrimSuffix(body, []byte("\n}"))
	return append(body, trailer(body)...), nil
}

func documentOf(p Position) document {
	return document{
		Version:     schemaVersion,
		SystemID:    p.SystemID,
		Timeline:    p.Timeline,
		Slot:        p.Slot,
		Publication: p.Publication,
		Safe:        lsn(p.Safe),
		Trusted:     lsn(p.Trusted),
		Verified:    lsn(p.Verified),
		Last:        docTxn{lsn(p.Last.Commit), lsn(p.Last.End), p.Last.XID, p.Last.Time.UTC(), eventID(p.Last.EventID)},
		Open:        docProgress{lsn(p.Open.Commit), p.Open.Rows, eventID(p.Open.EventID)},
		Catalog:     docCatalog(p.Catalog),
		Snapshot:    docSnapshot{p.Snapshot.Xmin, lsn(p.Snapshot.LSN)},
		Rooted:      docSnapshot{p.Rooted.Xmin, lsn(p.Rooted.LSN)},
		Backfill:    docBackfill(p.Backfill),
	}
}

func (doc document) position() Position {
	return Position{
		SystemID:    doc.SystemID,
		Timeline:    doc.Timeline,
		Slot:        doc.Slot,
		Publication: doc.Publication,
		Safe:        pglogrepl.LSN(doc.Safe),
		Trusted:     pglogrepl.LSN(doc.Trusted),
		Verified:    pglogrepl.LSN(doc.Verified),
		Last:        Txn{pglogrepl.LSN(doc.Last.Commit), pglogrepl.LSN(doc.Last.End), doc.Last.XID, doc.Last.Time, string(doc.Last.EventID)},
		Open:        Progress{pglogrepl.LSN(doc.Open.Commit), doc.Open.Rows, string(doc.Open.EventID)},
		Catalog:     Catalog(doc.Catalog),
		Snapshot:    Snapshot{doc.Snapshot.Xmin, pglogrepl.LSN(doc.Snapshot.LSN)},
		Rooted:      Snapshot{doc.Rooted.Xmin, pglogrepl.LSN(doc.Rooted.LSN)},
		Backfill:    Backfill(doc.Backfill),
	}
}

func trailer(body []byte) string {
	return fmt.Sprintf(",\n  \"checksum\": \"crc32c:%08x\"\n}\n", crc32.Checksum(body, castagnoli))
}

// decode is the inverse of encode. Every other input is an error that says what
// the bytes are instead; a newer version is named before its checksum is judged,
// for its rules are not known here.
func decode(data []byte) (Position, error) {
	if !bytes.HasPrefix(data, []byte(opening)) {
		if strings.HasPrefix(opening, string(bytes.TrimRight(data, "\x00"))) {
			return Position{}, errTorn // cut short, or zeroes where a file system lost the content
		}
		return Position{}, errForeign
	}
	if v, ok := versionOf(data); ok && v > schemaVersion {
		return Position{}, fmt.Errorf("%w (schema %d; this one reads up to %d)", errNewer, v, schemaVersion)
	}
	size := len(trailer(nil))
	if len(data) < size {
		return Position{}, errTorn
	}
	body, end := data[:len(data)-size], data[len(data)-size:]
	if string(end) != trailer(body) {
		return Position{}, errTorn
	}
	var doc document
	dec := json.NewDecoder(bytes.NewReader(append(bytes.Clone(body), "\n}"...)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return Position{}, fmt.Errorf("%w (%w)", errContradiction, err)
	}
	if dec.More() || doc.Version < 1 || doc.Version > schemaVersion {
		return Position{}, errContradiction
	}
	p := doc.position()
	if err := p.check(); err != nil {
		return Position{}, fmt.Errorf("%w (%w)", errContradiction, err)
	}
	if doc.MovedTo != "" {
		return Position{}, &moved{p, doc.MovedTo}
	}
	return p, nil
}

// What decode finds instead of a position.
var (
	errTorn          = errors.New("it is torn or was edited: the checksum does not match")
	errForeign       = errors.New("it is not a walrelay checkpoint")
	errNewer         = errors.New("it was written by a newer walrelay")
	errContradiction = errors.New("it contradicts itself")
)

// versionOf reads the schema version alone, from a document of any version that
// is complete JSON.
func versionOf(data []byte) (int, bool) {
	var doc struct {
		Version int `json:"walrelay_checkpoint"`
	}
	return doc.Version, json.Unmarshal(data, &doc) == nil
}

// lsn is written as Postgres prints it: 16/B374D848.
type lsn pglogrepl.LSN

func (l lsn) MarshalText() ([]byte, error) { return []byte(pglogrepl.LSN(l).String()), nil }

func (l *lsn) UnmarshalText(text []byte) error {
	v, err := pglogrepl.ParseLSN(string(text))
	if err != nil || v.String() != string(text) { // ParseLSN ignores what follows the number
		return fmt.Errorf("%q is no LSN", text)
	}
	*l = lsn(v)
	return nil
}

// eventID survives JSON whatever its bytes are: an id that is not UTF-8, or that
// itself starts with \x, is written as Postgres writes bytea, \x6964.
type eventID string

func (id eventID) MarshalText() ([]byte, error) {
	if utf8.ValidString(string(id)) && !strings.HasPrefix(string(id), `\x`) {
		return []byte(id), nil
	}
	return []byte(`\x` + hex.EncodeToString([]byte(id))), nil
}

func (id *eventID) UnmarshalText(text []byte) error {
	raw, isHex := strings.CutPrefix(string(text), `\x`)
	if !isHex {
		*id = eventID(text)
		return nil
	}
	b, err := hex.DecodeString(raw)
	*id = eventID(b)
	return err
}
