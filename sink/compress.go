package sink

import (
	"fmt"
	"io"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/compress/zstd"
)

// codecs are the values of Config.Compression. zstd's level 1 costs half of kafka-go's
// default, 3, for the same ratio on outbox rows.
var codecs = map[string]compress.Codec{
	"":       nil,
	"none":   nil,
	"gzip":   &compress.GzipCodec,
	"snappy": &compress.SnappyCodec,
	"lz4":    &compress.Lz4Codec,
	"zstd":   &zstd.Codec{Level: 1},
}

// pack appends to dst a size prefix, room for the batch's header, and the records of
// raw, compressed.
func pack(dst *appender, codec compress.Codec, raw []byte) error {
	*dst = append(*dst, make([]byte, sizePrefix+batchHeader)...)
	w := codec.NewWriter(dst)
	_, err := w.Write(raw[sizePrefix+batchHeader:])
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("sink: compress a record batch with %s: %w", codec.Name(), err)
	}
	return nil
}

// appender is a byte slice that grows by what is written to it.
type appender []byte

var _ io.Writer = (*appender)(nil)

func (a *appender) Write(p []byte) (int, error) {
	*a = append(*a, p...)
	return len(p), nil
}
