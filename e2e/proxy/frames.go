package proxy

import (
	"encoding/binary"
	"sync"
)

// frames follows the Kafka protocol of one connection just far enough to know which
// request a response answers: both sides send a four-byte size, then that many bytes; a
// request begins with API key (2), version (2) and correlation id (4), a response with
// the correlation id.
type frames struct {
	ways [both]framing

	mu   sync.Mutex
	keys map[uint32]int16 // correlation id → API key of the requests not yet answered
}

// framing finds the frames' heads in a stream. Owned by the direction's writer.
type framing struct {
	head []byte // the head's bytes seen so far
	skip int    // bytes of the frame's body still to come
}

// pass looks at bytes that are about to be forwarded. It returns those to forward, and
// whether the link is to be cut behind them: a response was dropped.
func (f *frames) pass(d Direction, b []byte, p *Proxy) ([]byte, bool) {
	w, want := &f.ways[d], 12
	if d == Down {
		want = 8
	}
	for i := 0; i < len(b); {
		if w.skip > 0 {
			n := min(w.skip, len(b)-i)
			w.skip -= n
			i += n
			continue
		}
		n := min(want-len(w.head), len(b)-i)
		w.head = append(w.head, b[i:i+n]...)
		i += n
		if len(w.head) < want {
			break
		}
		w.skip = int(binary.BigEndian.Uint32(w.head)) - (want - 4)
		if d == Up {
			f.sent(binary.BigEndian.Uint32(w.head[8:]), int16(binary.BigEndian.Uint16(w.head[4:])))
		} else if key, ok := f.answered(binary.BigEndian.Uint32(w.head[4:])); ok && p.drops(key, true) {
			return b[:max(0, i-want)], true
		}
		w.head = w.head[:0]
	}
	return b, false
}

func (f *frames) sent(id uint32, key int16) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.keys == nil {
		f.keys = map[uint32]int16{}
	}
	f.keys[id] = key
}

func (f *frames) answered(id uint32) (int16, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key, ok := f.keys[id]
	delete(f.keys, id)
	return key, ok
}
