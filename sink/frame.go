package sink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

const (
	maxFrame   = 64 << 20 // no answer is larger; a broker's own default for requests is 100 MB
	keepBuffer = 64 << 10 // larger scratch memory is not kept between messages
)

// errProtocol is wrapped by everything that a broker sends and Kafka's protocol does not know.
var errProtocol = errors.New("not Kafka's protocol")

// readFrame reads one size-prefixed message into buf's memory and returns it without the size.
// Memory grows with the bytes that came, not with the size that was announced.
// A clean end before the first byte is io.EOF.
func readFrame(r io.Reader, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return buf, err
	}
	size := int32(binary.BigEndian.Uint32(head[:]))
	switch {
	case head[0] == 0x15 && head[1] == 3: // a TLS alert record: the answer to what is no ClientHello
		return buf, errWantsTLS
	case string(head[:]) == "HTTP":
		return buf, fmt.Errorf("%w: an HTTP server answered", errProtocol)
	case size < 4 || size > maxFrame:
		return buf, fmt.Errorf("%w: an answer of %d bytes", errProtocol, size)
	}
	buf = buf[:0]
	for len(buf) < int(size) {
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(int(size), max(4<<10, 2*cap(buf))))
			copy(grown, buf)
			buf = grown
		}
		n, err := io.ReadFull(r, buf[len(buf):min(cap(buf), int(size))])
		buf = buf[:len(buf)+n]
		if err != nil {
			return buf, io.ErrUnexpectedEOF
		}
	}
	return buf, nil
}

// decodeResponse decodes a frame by kafka-go's codec, after its layout was checked:
// the codec believes every length that it reads.
func decodeResponse(frame []byte, id int32, key protocol.ApiKey, version int16) (res protocol.Message, err error) {
	if got := int32(binary.BigEndian.Uint32(frame)); got != id {
		return nil, fmt.Errorf("%w: correlation id %d where %d was due", errProtocol, got, id)
	}
	defer func() { // record batches inside a fetch answer are beyond the check
		if r := recover(); r != nil {
			res, err = nil, fmt.Errorf("%w: malformed %s answer", errProtocol, key)
		}
	}()
	if key == protocol.Metadata && version == topicsVersion {
		return decodeTopics(frame)
	}
	if err := checkLayout(frame, key, version); err != nil {
		return nil, err
	}
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], uint32(len(frame)))
	_, res, err = protocol.ReadResponse(io.MultiReader(bytes.NewReader(size[:]), bytes.NewReader(frame)), key, version)
	if err != nil {
		return nil, fmt.Errorf("%w: %s answer: %w", errProtocol, key, err)
	}
	return res, nil
}

// encode puts the request into c.pieces.
//
// A produce request is not given to protocol.WriteRequest, which copies the record batches into 64 KiB pages and
// writes each of them by itself: BenchmarkEncode prints both.
func (c *conn) encode(w *call, req protocol.Message) error {
	c.out = c.out[:0]
	switch r := req.(type) {
	case *rawproduce.Request:
		return c.encodeProduce(w, r)
	case *topicsRequest:
		c.out = r.append(c.out, w.id, c.peer.client.cfg.ClientID)
		c.pieces = append(c.pieces[:0], c.out)
		return nil
	}
	if p, ok := req.(protocol.PreparedMessage); ok {
		p.Prepare(w.version)
	}
	out := bytes.NewBuffer(c.out)
	err := protocol.WriteRequest(out, w.version, w.id, c.peer.client.cfg.ClientID, req)
	c.out = out.Bytes()
	c.pieces = append(c.pieces[:0], c.out)
	return err
}

// encodeProduce lays the request out as alternating pieces of c.out and the caller's
// record batches (Produce v3 to v8: the layout is the same).
func (c *conn) encodeProduce(w *call, req *rawproduce.Request) error {
	if req.Acks == 0 {
		return errAcksNone
	}
	type cut struct {
		at      int // offset in out behind which the records come
		records []byte
	}
	var cuts []cut
	b, total := c.out, 0
	b = append(b, 0, 0, 0, 0) // size
	b = binary.BigEndian.AppendUint16(b, uint16(w.key))
	b = binary.BigEndian.AppendUint16(b, uint16(w.version))
	b = binary.BigEndian.AppendUint32(b, uint32(w.id))
	b = appendString(b, c.peer.client.cfg.ClientID)
	if req.TransactionalID == "" {
		b = append(b, 0xff, 0xff) // null
	} else {
		b = appendString(b, req.TransactionalID)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(req.Acks))
	b = binary.BigEndian.AppendUint32(b, uint32(req.Timeout))
	b = binary.BigEndian.AppendUint32(b, uint32(len(req.Topics)))
	for i := range req.Topics {
		t := &req.Topics[i]
		b = appendString(b, t.Topic)
		b = binary.BigEndian.AppendUint32(b, uint32(len(t.Partitions)))
		for j := range t.Partitions {
			p := &t.Partitions[j]
			records, err := recordBytes(p.RecordSet.Reader)
			if err != nil {
				return err
			}
			b = binary.BigEndian.AppendUint32(b, uint32(p.Partition))
			cuts = append(cuts, cut{len(b), records})
			total += len(records)
		}
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)+total-4))
	c.out, c.pieces = b, c.pieces[:0]
	from := 0
	for _, k := range cuts {
		c.pieces = append(c.pieces, b[from:k.at], k.records)
		from = k.at
	}
	if from < len(b) {
		c.pieces = append(c.pieces, b[from:])
	}
	return nil
}

// recordBytes takes what a raw record set's reader holds: a record set with its
// 4-byte size in front. An io.WriterTo that writes once lends its memory.
func recordBytes(r io.Reader) ([]byte, error) {
	if r == nil {
		return nil, protocol.ErrNoRecord
	}
	w, ok := r.(io.WriterTo)
	if !ok {
		b, err := io.ReadAll(r)
		if err == nil && len(b) < 4 {
			err = protocol.ErrNoRecord
		}
		return b, err
	}
	var b borrower
	if _, err := w.WriteTo(&b); err != nil {
		return nil, err
	}
	if len(b.bytes) < 4 {
		return nil, protocol.ErrNoRecord
	}
	return b.bytes, nil
}

// borrower keeps the slice of the first Write instead of a copy.
type borrower struct{ bytes []byte }

func (b *borrower) Write(p []byte) (int, error) {
	if b.bytes == nil {
		b.bytes = p[:len(p):len(p)]
	} else {
		b.bytes = append(b.bytes, p...)
	}
	return len(p), nil
}

func appendString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}
