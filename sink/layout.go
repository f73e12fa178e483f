package sink

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/segmentio/kafka-go/protocol"
)

// kafka-go's decoder makes arrays and strings of the length that it reads, before
// it looks whether so many bytes are there: four wrong bytes cost gigabytes or a
// panic. So each answer is first walked by its layout, compiled once per request and version from the struct tags that
// the decoder itself goes by; what passes the walk cannot make the decoder allocate more than a
// small multiple of the frame.

// layout consumes one value from the front of b; ok is false if it is not there whole.
type layout func(b []byte) (rest []byte, ok bool)

type layoutKey struct {
	key     protocol.ApiKey
	version int16
}

var layouts sync.Map // layoutKey → layout

func checkLayout(frame []byte, key protocol.ApiKey, version int16) error {
	l, ok := layouts.Load(layoutKey{key, version})
	if !ok {
		compiled, err := responseLayout(key, version)
		if err != nil {
			return err
		}
		l, _ = layouts.LoadOrStore(layoutKey{key, version}, compiled)
	}
	if _, ok := l.(layout)(frame[4:]); !ok {
		return fmt.Errorf("%w: malformed %s answer", errProtocol, key)
	}
	return nil
}

// responseLayout is the layout behind the correlation id.
func responseLayout(key protocol.ApiKey, version int16) (layout, error) {
	// An empty answer ends in an error, but in a message of the right type too.
	_, msg, err := protocol.ReadResponse(bytes.NewReader([]byte{0, 0, 0, 4, 0, 0, 0, 0}), key, version)
	if msg == nil {
		return nil, err
	}
	t := reflect.TypeOf(msg).Elem()
	flexible := false
	for _, f := range fields(t) {
		for _, tag := range f.tags {
			flexible = flexible || tag.tagged && tag.min <= version
		}
	}
	body := structLayout(t, version, flexible)
	if !flexible {
		return body, nil
	}
	return sequence{tagsLayout, body}.layout, nil
}

// sequence is one layout after the other.
type sequence []layout

func (s sequence) layout(b []byte) ([]byte, bool) {
	ok := true
	for _, l := range s {
		if b, ok = l(b); !ok {
			return nil, false
		}
	}
	return b, true
}

func structLayout(t reflect.Type, version int16, flexible bool) layout {
	var s sequence
	for _, f := range fields(t) {
		for _, tag := range f.tags {
			if tag.min <= version && version <= tag.max {
				if !tag.tagged {
					s = append(s, valueLayout(f.typ, version, flexible))
				}
				break
			}
		}
	}
	if flexible {
		s = append(s, tagsLayout)
	}
	return s.layout
}

var readerFrom = reflect.TypeFor[io.ReaderFrom]()

func valueLayout(t reflect.Type, version int16, flexible bool) layout {
	if reflect.PointerTo(t).Implements(readerFrom) { // a record set
		return sized(int32Length)
	}
	switch t.Kind() {
	case reflect.Bool, reflect.Int8:
		return fixed(1)
	case reflect.Int16:
		return fixed(2)
	case reflect.Int32:
		return fixed(4)
	case reflect.Int64, reflect.Float64:
		return fixed(8)
	case reflect.Struct:
		return structLayout(t, version, flexible)
	case reflect.String:
		if flexible {
			return sized(compactLength)
		}
		return sized(int16Length)
	case reflect.Slice:
		length := int32Length
		if flexible {
			length = compactLength
		}
		if t.Elem().Kind() == reflect.Uint8 {
			return sized(length)
		}
		return array(length, valueLayout(t.Elem(), version, flexible))
	}
	panic("sink: no layout for " + t.String())
}

func fixed(n int) layout {
	return func(b []byte) ([]byte, bool) {
		if len(b) < n {
			return nil, false
		}
		return b[n:], true
	}
}

func sized(length lengthFunc) layout {
	return func(b []byte) ([]byte, bool) {
		n, b, ok := length(b)
		if !ok || n > len(b) {
			return nil, false
		}
		return b[n:], true
	}
}

func array(length lengthFunc, elem layout) layout {
	return func(b []byte) ([]byte, bool) {
		n, b, ok := length(b)
		if !ok || n > len(b) { // no element is smaller than a byte
			return nil, false
		}
		for ; n > 0 && ok; n-- {
			b, ok = elem(b)
		}
		return b, ok
	}
}

// tagsLayout is a tag buffer (KIP-482). No message of kafka-go reads a tagged field: all are skipped.
func tagsLayout(b []byte) ([]byte, bool) {
	n, b, ok := uvarint(b)
	if !ok || n > uint64(len(b)) {
		return nil, false
	}
	for ; n > 0; n-- {
		var size uint64
		if _, b, ok = uvarint(b); !ok {
			return nil, false
		}
		if size, b, ok = uvarint(b); !ok || size > uint64(len(b)) {
			return nil, false
		}
		b = b[size:]
	}
	return b, true
}

// lengthFunc reads a length; null counts as 0.
type lengthFunc func(b []byte) (n int, rest []byte, ok bool)

func int16Length(b []byte) (int, []byte, bool) {
	if len(b) < 2 {
		return 0, nil, false
	}
	return max(0, int(int16(binary.BigEndian.Uint16(b)))), b[2:], true
}

func int32Length(b []byte) (int, []byte, bool) {
	if len(b) < 4 {
		return 0, nil, false
	}
	return max(0, int(int32(binary.BigEndian.Uint32(b)))), b[4:], true
}

func compactLength(b []byte) (int, []byte, bool) {
	n, b, ok := uvarint(b)
	if !ok || n > maxFrame {
		return 0, nil, false
	}
	return max(0, int(n)-1), b, true
}

func uvarint(b []byte) (uint64, []byte, bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, false
	}
	return v, b[n:], true
}

type field struct {
	typ  reflect.Type
	tags []fieldTag
}

// fieldTag is one alternative of a `kafka:"min=v0,max=v8,nullable|…"` struct tag.
type fieldTag struct {
	min, max int16
	tagged   bool // in the tag buffer; on the field _ it only marks the message as flexible
}

func fields(t reflect.Type) []field {
	var all []field
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() && f.Name != "_" {
			continue
		}
		var tags []fieldTag
		for alternative := range strings.SplitSeq(f.Tag.Get("kafka"), "|") {
			if tag, ok := parseTag(alternative); ok {
				if f.Name == "_" && !tag.tagged {
					continue // holds a version range, not a value
				}
				tags = append(tags, tag)
			}
		}
		all = append(all, field{f.Type, tags})
	}
	return all
}

func parseTag(s string) (tag fieldTag, ok bool) {
	tag.min, tag.max = -1, -1
	for option := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(option, "=v")
		v, _ := strconv.ParseInt(value, 10, 16)
		switch name {
		case "min":
			tag.min = int16(v)
		case "max":
			tag.max = int16(v)
		case "tag":
			tag.tagged = true
		}
	}
	return tag, tag.min >= 0
}
