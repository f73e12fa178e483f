package simkafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Record is one record as it was produced.
type Record struct {
	Key, Value []byte // nil = null
	Headers    []Header
	Timestamp  int64 // milliseconds
}

// Header is a record header; a nil Value is null.
type Header struct {
	Key   string
	Value []byte
}

// Batch is a record batch, version 2.
type Batch struct {
	Producer int64 // -1: not idempotent
	Epoch    int16
	First    int32 // sequence of the first record
	Records  []Record
	Bytes    int // on the wire

	checksum uint32
}

// last is the sequence of the last record.
func (b *Batch) last() int32 {
	return int32((int64(b.First) + int64(len(b.Records)) - 1) & 0x7fffffff)
}

var (
	castagnoli   = crc32.MakeTable(crc32.Castagnoli)
	decompressor = kgo.DefaultDecompressor()
	errShort     = errors.New("the record batch ends too early")

	// A decoder that is made in a bubble may not be collected outside of it.
	zstdDecoder, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0))
)

func decompress(p []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	if codec == kgo.CodecZstd {
		return zstdDecoder.DecodeAll(p, nil)
	}
	return decompressor.Decompress(p, codec)
}

// parseBatch reads the one record batch that a produce request carries for a partition.
// https://kafka.apache.org/documentation/#recordbatch
func parseBatch(p []byte) (*Batch, error) {
	if len(p) < 61 {
		return nil, errShort
	}
	be := binary.BigEndian
	b := &Batch{Producer: int64(be.Uint64(p[43:])), Epoch: int16(be.Uint16(p[51:])), First: int32(be.Uint32(p[53:])), Bytes: len(p)}
	attributes, lastDelta, base, newest := be.Uint16(p[21:]), int32(be.Uint32(p[23:])), int64(be.Uint64(p[27:])), int64(be.Uint64(p[35:]))
	count := int32(be.Uint32(p[57:]))
	b.checksum = be.Uint32(p[17:])
	switch {
	case int(be.Uint32(p[8:])) != len(p)-12:
		return nil, fmt.Errorf("its length says %d, it has %d", be.Uint32(p[8:]), len(p)-12)
	case p[16] != 2:
		return nil, fmt.Errorf("its magic is %d", p[16])
	case b.checksum != crc32.Checksum(p[21:], castagnoli):
		return nil, errors.New("the checksum is wrong")
	case count < 1 || lastDelta != count-1:
		return nil, fmt.Errorf("%d records with a last offset delta of %d", count, lastDelta)
	case attributes&^7 != 0:
		return nil, fmt.Errorf("attributes %x", attributes)
	}
	body := p[61:]
	if codec := attributes & 7; codec != 0 {
		var err error
		if body, err = decompress(body, kgo.CompressionCodecType(codec)); err != nil {
			return nil, err
		}
	}
	r := &reader{rest: body}
	latest := base
	for i := range count {
		rec, delta, ordinal := r.record()
		if r.err != nil {
			return nil, r.err
		}
		if ordinal != int64(i) {
			return nil, fmt.Errorf("record %d says that it is number %d", i, ordinal)
		}
		rec.Timestamp = base + delta
		latest = max(latest, rec.Timestamp)
		b.Records = append(b.Records, rec)
	}
	if len(r.rest) > 0 {
		return nil, fmt.Errorf("%d bytes behind the last record", len(r.rest))
	}
	if latest != newest {
		return nil, fmt.Errorf("its newest timestamp says %d and is %d", newest, latest)
	}
	return b, nil
}

// reader takes a record apart. After its first error everything is zero.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) record() (rec Record, delta, ordinal int64) {
	size := r.varint()
	if r.err != nil || size < 0 || size > int64(len(r.rest)) {
		r.err = errShort
		return
	}
	behind := r.rest[size:]
	r.rest = r.rest[:size]
	if len(r.rest) > 0 && r.rest[0] != 0 {
		r.err = errors.New("a record has attributes")
	}
	r.rest = r.rest[min(1, len(r.rest)):]
	delta, ordinal = r.varint(), r.varint()
	rec.Key, rec.Value = r.bytes(), r.bytes()
	n := r.varint()
	for i := int64(0); i < n && r.err == nil; i++ {
		rec.Headers = append(rec.Headers, Header{string(r.bytes()), r.bytes()})
	}
	if r.err == nil && len(r.rest) > 0 {
		r.err = fmt.Errorf("%d bytes behind a record's last header", len(r.rest))
	}
	r.rest = behind
	return
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.err, r.rest = errShort, nil
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) bytes() []byte {
	n := r.varint()
	if n < 0 || r.err != nil {
		return nil
	}
	if n > int64(len(r.rest)) {
		r.err, r.rest = errShort, nil
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	if b == nil {
		b = []byte{}
	}
	return b
}
