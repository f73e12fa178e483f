package decode

import (
	"encoding/binary"
	"fmt"
	"time"
)

// StartTable begins to read the table itself, by a SELECT of cols, which are the published
// columns. The events have no place in the WAL: no walrelay-lsn and walrelay-seq, Commit is 0 and Seq counts
// on. Where a row has no time of its own, at stands for the commit time.
func (d *Decoder) StartTable(source string, cols []Column, at time.Time) error {
	d.Start(source)
	d.unplaced, d.open = true, true
	d.commitMs = max(at.UnixMilli(), 0)
	return d.use(0, cols)
}

// TableRow appends the event of one row to b. Values are the columns as text, in the order of
// StartTable's, under the session settings of the stream; nil is NULL. It keeps nothing of them.
func (d *Decoder) TableRow(values [][]byte, b *Batch) error {
	const keep = 1 << 20
	if len(values) != d.rel.width {
		return fmt.Errorf("decode: a row of %d columns, want %d", len(values), d.rel.width)
	}
	msg := append(d.tuple[:0], 'I', 0, 0, 0, 0, 'N')
	msg = binary.BigEndian.AppendUint16(msg, uint16(len(values)))
	for _, v := range values {
		if v == nil {
			msg = append(msg, 'n')
			continue
		}
		msg = binary.BigEndian.AppendUint32(append(msg, 't'), uint32(len(v)))
		msg = append(msg, v...)
	}
	if d.tuple = msg; cap(msg) > keep {
		d.tuple = nil
	}
	_, err := d.insert(msg, b)
	return err
}

// IDColumn is the name of the column that holds the event id.
func (d *Decoder) IDColumn() string { return d.m.columns[roleID].name }

// TimeColumn is the name of the column that holds the event's time, if it is read at all
// from the columns of [Decoder.StartTable]; else "".
func (d *Decoder) TimeColumn() string {
	if d.rel == nil || d.rel.clock == clockNone {
		return ""
	}
	return d.m.columns[roleTimestamp].name
}
