package decode

import (
	"bytes"
	"encoding/binary"
)

// reader takes fields off a message. After a field that is not there it returns
// zeros and end reports the place.
type reader struct {
	msg []byte
	pos int
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.msg)-r.pos {
		r.bad = true
		return nil
	}
	p := r.msg[r.pos : r.pos+n]
	r.pos += n
	return p
}

func (r *reader) uint8() uint8 {
	if p := r.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if p := r.take(2); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if p := r.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if p := r.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

// cstring returns a zero-terminated string, without the zero.
func (r *reader) cstring() []byte {
	n := bytes.IndexByte(r.msg[r.pos:], 0)
	if n < 0 {
		r.bad = true
		return nil
	}
	p := r.take(n + 1)
	if p == nil {
		return nil
	}
	return p[:n]
}

// end checks that the message held exactly the fields that were read.
func (r *reader) end() error {
	switch {
	case r.bad:
		return r.fail("the message is cut short")
	case r.pos != len(r.msg):
		return r.fail("the message goes on behind its last field")
	}
	return nil
}

func (r *reader) fail(reason string) error {
	return protocolError(r.msg, r.pos, reason)
}

func protocolError(msg []byte, pos int, reason string) error {
	e := &ProtocolError{Offset: pos, Reason: reason}
	if len(msg) > 0 {
		e.Type = msg[0]
	}
	return e
}
