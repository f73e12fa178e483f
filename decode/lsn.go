package decode

import "github.com/jackc/pglogrepl"

// lsnOf is the commit LSN as text. It is written once for a transaction's events.
func (b *Batch) lsnOf(commit pglogrepl.LSN) []byte {
	if b.lsnText == nil || b.lsn != commit {
		var scratch [2*8 + 1]byte
		text := appendLSN(scratch[:0], commit)
		b.lsn, b.lsnText = commit, b.alloc(len(text))
		copy(b.lsnText, text)
	}
	return b.lsnText
}

// appendLSN writes an LSN as Postgres prints it: 16/B374D848.
func appendLSN(dst []byte, lsn pglogrepl.LSN) []byte {
	dst = appendHex(dst, uint32(lsn>>32))
	dst = append(dst, '/')
	return appendHex(dst, uint32(lsn))
}

func appendHex(dst []byte, v uint32) []byte {
	const digits = "0123456789ABCDEF"
	shift := 28
	for shift > 0 && v>>shift == 0 {
		shift -= 4
	}
	for ; shift >= 0; shift -= 4 {
		dst = append(dst, digits[v>>shift&15])
	}
	return dst
}
