package decode

import "github.com/jackc/pglogrepl"

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
