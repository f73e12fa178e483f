package sink

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"

	"github.com/walrelay/walrelay/decode"
)

// A record batch, version 2 (https://kafka.apache.org/documentation/#recordbatch):
//
//	 0  int64  base offset            0: the broker sets it
//	 8  int32  length                 of all that follows
//	12  int32  partition leader epoch -1
//	16  int8   magic                  2
//	17  uint32 CRC-32C                of all that follows
//	21  int16  attributes             codec in the lowest three bits; transactional, control
//	23  int32  last offset delta
//	27  int64  base timestamp
//	35  int64  max timestamp
//	43  int64  producer id            \
//	51  int16  producer epoch          > written by seal
//	53  int32  base sequence          /
//	57  int32  number of records
//	61         records, compressed as one
//
// It is encoded in two steps, so that the next batches can be encoded while the ones
// before are still in flight: the records and the static header first, identity and checksum by seal.
const (
	sizePrefix  = 4 // RawRecordSet begins with the size of the record set
	batchHeader = 61
)

// transactional is the bit of the attributes that makes a record batch part of a transaction.
const transactional int8 = 1 << 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// identity is what makes repetitions of a record batch recognisable.
type identity struct {
	producer int64
	epoch    int16
}

// noIdentity is that of a partition that has to get one. The zero value is a valid id.
var noIdentity = identity{-1, -1}

// writeHeader fills in the static header of buf: size prefix, header, records.
func writeHeader(buf []byte, attributes int8, records int32, base, newest int64) {
	be := binary.BigEndian
	be.PutUint32(buf, uint32(len(buf)-sizePrefix))
	h := buf[sizePrefix:]
	be.PutUint64(h[0:], 0)
	be.PutUint32(h[8:], uint32(len(h)-12))
	be.PutUint32(h[12:], 0xffffffff)
	h[16] = 2
	be.PutUint16(h[21:], uint16(attributes))
	be.PutUint32(h[23:], uint32(records-1))
	be.PutUint64(h[27:], uint64(base))
	be.PutUint64(h[35:], uint64(newest))
	be.PutUint32(h[57:], uint32(records))
}

// seal gives the batch its identity and checksum.
func seal(buf []byte, id identity, sequence int32) {
	be := binary.BigEndian
	h := buf[sizePrefix:]
	be.PutUint64(h[43:], uint64(id.producer))
	be.PutUint16(h[51:], uint16(id.epoch))
	be.PutUint32(h[53:], uint32(sequence))
	be.PutUint32(h[17:], crc32.Checksum(h[21:], castagnoli))
}

// nextSequence is the sequence n records behind s. Sequences are 31 bits wide and wrap to 0.
func nextSequence(s, n int32) int32 {
	return int32((int64(s) + int64(n)) & 0x7fffffff)
}

// recordSize returns the size of a record without its length prefix.
func recordSize(ev *decode.Event, time, offset int64) int {
	return 1 + varintSize(time) + varintSize(offset) + bytesSize(ev.Key) + bytesSize(ev.Value) +
		varintSize(int64(ev.Headers.Count)) + len(ev.Headers.Wire)
}

// appendRecord appends the record of ev, size being its recordSize.
func appendRecord(b []byte, size int, ev *decode.Event, time, offset int64) []byte {
	b = appendVarint(b, int64(size))
	b = append(b, 0) // attributes, unused
	b = appendVarint(b, time)
	b = appendVarint(b, offset)
	b = appendBytes(b, ev.Key)
	b = appendBytes(b, ev.Value)
	b = appendVarint(b, int64(ev.Headers.Count))
	return append(b, ev.Headers.Wire...)
}

// appendVarint appends v in zigzag encoding, seven bits a byte.
func appendVarint(b []byte, v int64) []byte {
	u := uint64(v<<1) ^ uint64(v>>63)
	for u >= 0x80 {
		b = append(b, byte(u)|0x80)
		u >>= 7
	}
	return append(b, byte(u))
}

func varintSize(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	return (bits.Len64(u|1) + 6) / 7
}

// appendBytes appends p with its length, nil as length -1.
func appendBytes(b, p []byte) []byte {
	if p == nil {
		return append(b, 1)
	}
	return append(appendVarint(b, int64(len(p))), p...)
}

func bytesSize(p []byte) int {
	if p == nil {
		return 1
	}
	return varintSize(int64(len(p))) + len(p)
}
