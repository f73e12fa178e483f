package decode

import (
	"encoding/binary"
	"iter"
	"math/bits"
)

// Header is one Kafka record header. A nil Value is a null header.
type Header struct {
	Key   string
	Value []byte
}

// Headers are the headers of an event as a Kafka record has them, but for their number:
// for each its name and its value behind their lengths
// (https://kafka.apache.org/documentation/#record). They are written once, while the row
// is decoded, and copied into the record as they are: as a list of [Header] they took
// more memory than the bytes of a small row, and were walked twice.
type Headers struct {
	Count int
	Wire  []byte
}

// NewHeaders makes headers of a list.
func NewHeaders(list ...Header) Headers {
	var h Headers
	for _, x := range list {
		h.Add(x.Key, x.Value)
	}
	return h
}

// Add appends a header. Headers of a decoded event move to memory of their own by it.
func (h *Headers) Add(name string, value []byte) {
	h.Wire = appendValue(appendName(h.Wire[:len(h.Wire):len(h.Wire)], name), value)
	h.Count++
}

// All goes through names and values, which point into Wire.
func (h Headers) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for rest := h.Wire; len(rest) > 0; {
			var name, value []byte
			name, rest = cutBytes(rest)
			value, rest = cutBytes(rest)
			if !yield(name, value) {
				return
			}
		}
	}
}

// List returns the headers one by one; values point into Wire.
func (h Headers) List() []Header {
	list := make([]Header, 0, h.Count)
	for name, value := range h.All() {
		list = append(list, Header{string(name), value})
	}
	return list
}

// cutBytes takes bytes behind their length off the front; a length of -1 is nil.
func cutBytes(b []byte) (p, rest []byte) {
	n, k := binary.Varint(b)
	if n < 0 {
		return nil, b[k:]
	}
	return b[k : k+int(n) : k+int(n)], b[k+int(n):]
}

func appendName(b []byte, name string) []byte {
	return append(appendLength(b, len(name)), name...)
}

// appendValue appends p behind its length; nil has the length -1.
func appendValue(b, p []byte) []byte {
	if p == nil {
		return append(b, 1)
	}
	return append(appendLength(b, len(p)), p...)
}

// appendLength appends n ≥ 0 as Kafka's varint: zigzag encoded, seven bits a byte.
func appendLength(b []byte, n int) []byte {
	if n < 1<<6 {
		return append(b, byte(n)<<1)
	}
	return binary.AppendVarint(b, int64(n))
}

// lengthSize is how many bytes appendLength appends.
func lengthSize(n int) int { return (bits.Len64(uint64(n)<<1|1) + 6) / 7 }
