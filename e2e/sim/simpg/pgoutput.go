package simpg

import (
	"encoding/binary"
	"time"

	"github.com/jackc/pglogrepl"
)

// The messages of pgoutput, protocol version 1, and the frames around them.
// https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
// https://www.postgresql.org/docs/current/protocol-replication.html

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func micros(t time.Time) uint64 { return uint64(t.Sub(epoch).Microseconds()) }

var be = binary.BigEndian

// copyData appends a CopyData message whose content f appends.
func copyData(b []byte, f func([]byte) []byte) []byte {
	at := len(b)
	b = append(b, 'd', 0, 0, 0, 0)
	b = f(b)
	be.PutUint32(b[at+1:], uint32(len(b)-at-1))
	return b
}

// xlogData appends one pgoutput message as the walsender sends it.
func xlogData(b []byte, lsn pglogrepl.LSN, now time.Time, message func([]byte) []byte) []byte {
	return copyData(b, func(b []byte) []byte {
		b = append(b, 'w')
		b = be.AppendUint64(b, uint64(lsn))
		b = be.AppendUint64(b, uint64(lsn))
		b = be.AppendUint64(b, micros(now))
		return message(b)
	})
}

func keepalive(b []byte, end pglogrepl.LSN, now time.Time, reply bool) []byte {
	return copyData(b, func(b []byte) []byte {
		b = append(b, 'k')
		b = be.AppendUint64(b, uint64(end))
		b = be.AppendUint64(b, micros(now))
		if reply {
			return append(b, 1)
		}
		return append(b, 0)
	})
}

func beginMessage(t *Txn) func([]byte) []byte {
	return func(b []byte) []byte {
		b = append(b, 'B')
		b = be.AppendUint64(b, uint64(t.Commit))
		b = be.AppendUint64(b, micros(t.Time))
		return be.AppendUint32(b, t.XID)
	}
}

func commitMessage(t *Txn) func([]byte) []byte {
	return func(b []byte) []byte {
		b = append(b, 'C', 0)
		b = be.AppendUint64(b, uint64(t.Commit))
		b = be.AppendUint64(b, uint64(t.End))
		return be.AppendUint64(b, micros(t.Time))
	}
}

func relationMessage(oid uint32, schema, table string, columns []Column) func([]byte) []byte {
	return func(b []byte) []byte {
		b = append(b, 'R')
		b = be.AppendUint32(b, oid)
		b = append(append(b, schema...), 0)
		b = append(append(b, table...), 0)
		b = append(b, 'd')
		b = be.AppendUint16(b, uint16(len(columns)))
		for _, c := range columns {
			b = append(b, 0)
			b = append(append(b, c.Name...), 0)
			b = be.AppendUint32(b, c.Type)
			b = be.AppendUint32(b, 0xffffffff)
		}
		return b
	}
}

func insertMessage(oid uint32, columns []Column, row *Row) func([]byte) []byte {
	return func(b []byte) []byte {
		b = append(b, 'I')
		b = be.AppendUint32(b, oid)
		b = append(b, 'N')
		b = be.AppendUint16(b, uint16(len(columns)))
		for _, c := range columns {
			v := row.Values[c.Name]
			if v == nil {
				b = append(b, 'n')
				continue
			}
			b = append(b, 't')
			b = be.AppendUint32(b, uint32(len(v)))
			b = append(b, v...)
		}
		return b
	}
}
