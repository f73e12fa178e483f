package decode

import (
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
)

const (
	maxRowHeaders  = 4096 // in one row's headers column
	maxKnownNames  = 1024
	maxKnownLength = 256
	maxDropped     = 64 // names to report
)

// headerName is a name from a headers column.
type headerName struct {
	text  string
	owner int // whose the name is, if not the row's
}

const (
	ownerRow   = iota // nobody else's
	ownerRelay        // a standard header or one of the relay's own
	ownerExtra        // the extra header number owner - ownerExtra
)

// headerNames interns the names of rows' headers: there are few of them, in the
// same order in every row.
type headerNames struct {
	taken  map[string]int // owners of the names that rows can't give
	known  map[string]headerName
	recent [32]headerName // by place in the object

	dropped map[string]bool
	fresh   []string // dropped names that were not reported yet
}

func newHeaderNames(m *mapping) headerNames {
	n := headerNames{taken: map[string]int{}, known: map[string]headerName{}, dropped: map[string]bool{}}
	for _, h := range m.standard {
		n.taken[h.name] = ownerRelay
	}
	for i, h := range m.extra {
		n.taken[h.name] = ownerExtra + i
	}
	return n
}

// find returns the name at a place of the object.
func (n *headerNames) find(place int, raw []byte) headerName {
	if place < len(n.recent) && n.recent[place].text == string(raw) {
		return n.recent[place]
	}
	name, ok := n.known[string(raw)]
	if !ok {
		name = headerName{text: string(raw)}
		name.owner = n.taken[name.text]
		if strings.HasPrefix(name.text, headerPrefix) {
			name.owner = ownerRelay
		}
		if len(n.known) >= maxKnownNames || len(raw) > maxKnownLength {
			return name
		}
		n.known[name.text] = name
	}
	if place < len(n.recent) {
		n.recent[place] = name
	}
	return name
}

// drop notes that a row's header was left out.
func (n *headerNames) drop(name string) {
	name = name[:min(len(name), maxKnownLength)]
	if !n.dropped[name] && len(n.dropped) < maxDropped {
		n.dropped[name] = true
		n.fresh = append(n.fresh, name)
	}
}

// DroppedNames returns the names of rows' headers that were left out for the first
// time since the last call: each once, and at most 64 in the decoder's life.
func (d *Decoder) DroppedNames() []string {
	fresh := d.names.fresh
	d.names.fresh = nil
	return fresh
}

// headers writes the event's headers to mem, in the order that the documentation
// gives, and sets id and key where they are a header's value. Reason says why the headers
// column can't be carried; the event is then without its headers.
func (d *Decoder) headers(mem []byte, ev *Event, tuple []byte) (_ []byte, reason string) {
	rel := d.rel
	start, count := len(mem), len(rel.standard)+d.tailCount
	for i := range rel.standard {
		h := &rel.standard[i]
		s := d.given(h)
		if s.isNull() {
			count--
			continue
		}
		mem = append(mem, h.name...)
		mem = appendLength(mem, s.size())
		at := len(mem)
		mem = append(mem, tuple[s.off:s.end]...)
		switch h.role {
		case roleID:
			ev.ID = mem[at:len(mem):len(mem)]
		case roleKey:
			ev.Key = mem[at:len(mem):len(mem)]
		}
	}
	if s := d.column(roleHeaders); !s.isNull() {
		own := 0
		mem, own, reason = d.rowHeaders(mem, s.of(tuple))
		count += own
	}
	for i := range rel.extra {
		h := &rel.extra[i]
		if s := d.given(h); !s.isNull() || h.nullable {
			mem = append(mem, h.name...)
			mem = appendValue(mem, s.of(tuple))
			count++
		}
	}
	if !d.unplaced {
		mem = append(mem, d.position...)
		var scratch [maxDigits]byte
		mem = appendValue(mem, strconv.AppendUint(scratch[:0], ev.Seq, 10))
	}
	mem = append(mem, d.tail...)
	ev.Headers = Headers{Count: count, Wire: mem[start:len(mem):len(mem)]}
	return mem, reason
}

// given is the column that a header's value comes from; NULL where there is none.
func (d *Decoder) given(h *headerColumn) span {
	s := null
	if h.index >= 0 {
		s = d.spans[h.index]
	}
	if s.isNull() && h.fallback >= 0 {
		s = d.spans[h.fallback]
	}
	return s
}

// describe renders what is the same in all events of a transaction: the commit LSN with
// the name of the header behind it.
func (d *Decoder) describe(commit pglogrepl.LSN) {
	var scratch [2*8 + 1]byte
	p := appendName(d.position[:0], headerLSN)
	p = appendValue(p, appendLSN(scratch[:0], commit))
	d.position = appendName(p, headerSeq)
}

// finish renders what comes last in all events: source and marks.
func (d *Decoder) finish() {
	d.tail, d.tailCount = d.tail[:0], len(d.Marks)
	if !d.unplaced {
		d.tailCount += 2 // LSN and number come before
	}
	if d.source != nil {
		d.tail = appendValue(appendName(d.tail, headerSource), d.source)
		d.tailCount++
	}
	for _, m := range d.Marks {
		d.tail = appendValue(appendName(d.tail, m.Key), m.Value)
	}
}

// rowHeaders appends the members of a headers column. Strings are given raw,
// without their escapes, null as a null header, and anything else as JSON.
// If the reason is not "", the column can't be carried and mem is as it was.
func (d *Decoder) rowHeaders(mem, text []byte) (_ []byte, count int, reason string) {
	before := mem
	i := skipSpace(text, 0)
	if i >= len(text) || text[i] != '{' {
		return before, 0, "the headers are not a JSON object"
	}
	i = skipSpace(text, i+1)
	if i < len(text) && text[i] == '}' {
		i++
	} else if mem, count, i, reason = d.members(mem, text, i); reason != "" {
		return before, 0, reason
	}
	if skipSpace(text, i) != len(text) {
		return before, 0, notJSON
	}
	return mem, count, ""
}

// members appends an object's members from i on, and returns where it ends.
func (d *Decoder) members(mem, text []byte, i int) (_ []byte, count, end int, reason string) {
	for place := 0; ; place++ {
		if place == maxRowHeaders {
			return mem, count, i, "the headers are more than 4096"
		}
		at := len(mem)
		name, next := d.memberName(&mem, place, text, i)
		if next >= 0 {
			mem, next = appendMember(mem, text, next)
		}
		if next < 0 {
			return mem, count, i, notJSON
		}
		if d.owned(name) {
			d.DroppedHeaders++
			d.names.drop(name.text)
			mem = mem[:at]
		} else {
			count++
		}
		i = skipSpace(text, next)
		if i < len(text) && text[i] == '}' {
			return mem, count, i + 1, ""
		}
		if i >= len(text) || text[i] != ',' {
			return mem, count, i, notJSON
		}
		i = skipSpace(text, i+1)
	}
}

const notJSON = "the headers are not legal JSON"

// memberName appends the name that begins at i, and returns where its value
// begins; next < 0 = this is not JSON.
func (d *Decoder) memberName(mem *[]byte, place int, text []byte, i int) (name headerName, next int) {
	if i >= len(text) || text[i] != '"' {
		return name, -1
	}
	end, escaped := skipString(text, i+1)
	if end < 0 {
		return name, -1
	}
	var raw []byte
	*mem, raw = appendString(*mem, text[i+1:end-1], escaped)
	if next = skipColon(text, end); next >= len(text) {
		return name, -1
	}
	return d.names.find(place, raw), next
}

// appendMember appends the value that begins at i, and returns where it ends; next < 0 = it
// is not JSON.
func appendMember(mem, text []byte, i int) (_ []byte, next int) {
	if text[i] == '"' {
		end, escaped := skipString(text, i+1)
		if end >= 0 {
			mem, _ = appendString(mem, text[i+1:end-1], escaped)
		}
		return mem, end
	}
	end := skipValue(text, i, 2)
	switch {
	case end < 0:
	case text[i] == 'n': // null
		mem = appendValue(mem, nil)
	default:
		mem = appendValue(mem, text[i:end])
	}
	return mem, end
}

// appendString appends the content of a JSON string behind its length, and returns it.
func appendString(mem, raw []byte, escaped bool) (_, content []byte) {
	at := len(mem)
	mem = appendValue(mem, raw)
	from := at + lengthSize(len(raw))
	if !escaped {
		return mem, mem[from:]
	}
	content = unescape(mem[from:from], raw) // never longer than raw
	short := lengthSize(len(content))
	mem = append(appendLength(mem[:at], len(content)), content...) // moves it forward, if at all
	return mem, mem[at+short:]
}

// owned says whether the current row's header of that name comes from elsewhere.
func (d *Decoder) owned(name headerName) bool {
	if name.owner < ownerExtra {
		return name.owner == ownerRelay
	}
	h := &d.rel.extra[name.owner-ownerExtra]
	return h.nullable || h.index >= 0 && !d.spans[h.index].isNull()
}
