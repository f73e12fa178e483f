package replication

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
)

// window is received bytes: buf[r:w] is not taken yet.
type window struct {
	buf  []byte
	r, w int
}

const (
	minBuffer  = 16 << 10
	maxBuffer  = 1 << 20 // that reads grow it to
	keepBuffer = 4 << 20 // and that it may keep, once a row was so large

	maxMessage = 1 << 30 // Postgres itself makes no larger one
	growBy     = 8
)

// room returns where to put more bytes, for n from the front; what is not taken moves. A length
// is only a claim: there may be less room, as long as what has come so far does not fill it.
func (b *window) room(n int) []byte {
	n = max(min(n, max(keepBuffer, growBy*(b.w-b.r))), b.w-b.r+1)
	buf := b.buf
	if n > len(buf) || len(buf) > keepBuffer && n <= keepBuffer {
		buf = make([]byte, sizeFor(n))
	}
	if b.r > 0 || len(buf) != len(b.buf) {
		b.w, b.r = copy(buf, b.buf[b.r:b.w]), 0
	}
	b.buf = buf
	return b.buf[b.w:]
}

// sizeFor is the size of a buffer that holds n bytes: rows of about the same size find room in one.
func sizeFor(n int) int {
	if n > keepBuffer {
		return n
	}
	return max(minBuffer, 1<<bits.Len(uint(n-1)))
}

// inbox cuts what the server sends into messages.
//
// Before the stream runs the driver reads through it, and never gets a byte from behind the
// message that it reads: what comes behind the answer to START_REPLICATION stays here. Then
// next hands out the messages where they lie. The driver's own reader would copy
// them once more, and cost a row twice of what cutting it off does.
type inbox struct {
	window
	from io.Reader // the connection, above TLS
	left int       // of the message that the driver is reading
	need int       // of the message that next could not return yet, as far as it is known
}

const headSize = 5 // a type and a length, which counts itself

// Read is the driver's.
func (i *inbox) Read(p []byte) (int, error) {
	for i.left == 0 {
		if i.w-i.r >= headSize {
			i.left = 1 + max(headSize-1, i.length()) // of a length that can't be, the driver complains
		} else if err := i.more(headSize); err != nil {
			return 0, err
		}
	}
	p = p[:min(len(p), i.left)]
	if i.r == i.w {
		n, err := i.from.Read(p)
		i.left -= n
		return n, err
	}
	n := copy(p, i.buf[i.r:i.w])
	i.r, i.left = i.r+n, i.left-n
	return n, nil
}

// next returns a message, valid until the next call; errDrained if it is not there whole.
func (i *inbox) next() (kind byte, body []byte, err error) {
	for {
		have := i.buf[i.r:i.w]
		i.need = headSize
		if len(have) >= headSize {
			n := i.length()
			if n < headSize-1 || n > maxMessage {
				return 0, nil, fmt.Errorf("a message of %d bytes: not Postgres' protocol", n)
			}
			if i.need = 1 + n; len(have) >= i.need {
				i.r += i.need
				return have[0], have[headSize:i.need:i.need], nil
			}
		}
		if err := i.more(i.need); err != nil {
			return 0, nil, err
		}
	}
}

func (i *inbox) length() int { return int(int32(binary.BigEndian.Uint32(i.buf[i.r+1:]))) }

// more reads once. While the stream runs over a socket without TLS it is always
// drained: then fill reads into the window.
func (i *inbox) more(n int) error {
	n, err := i.from.Read(i.room(n))
	i.w += n
	if n > 0 {
		return nil
	}
	return err
}
