package decode

import "strings"

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

// find returns the name at a place of the object, and how many bytes of memory a
// name takes that could not be interned.
func (n *headerNames) find(place int, raw []byte) (name headerName, loose int) {
	if place < len(n.recent) && n.recent[place].text == string(raw) {
		return n.recent[place], 0
	}
	name, ok := n.known[string(raw)]
	if !ok {
		name = headerName{text: string(raw)}
		name.owner = n.taken[name.text]
		if strings.HasPrefix(name.text, headerPrefix) {
			name.owner = ownerRelay
		}
		if len(n.known) >= maxKnownNames || len(raw) > maxKnownLength {
			return name, len(raw)
		}
		n.known[name.text] = name
	}
	if place < len(n.recent) {
		n.recent[place] = name
	}
	return name, 0
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

// headers makes the event's header list, in the order that the documentation
// gives. Reason says why the headers column can't be carried; the list is then
// without its headers.
func (d *Decoder) headers(b *Batch, row, seq []byte) (list []Header, reason string) {
	rel := d.rel
	list = b.list(rel.headers)
	for i := range rel.standard {
		h := &rel.standard[i]
		s := null
		if h.index >= 0 {
			s = d.spans[h.index]
		}
		if s.isNull() && h.fallback >= 0 {
			s = d.spans[h.fallback]
		}
		if !s.isNull() {
			list = append(list, Header{h.name, row[s.off:s.end:s.end]})
		}
	}
	if s := d.column(roleHeaders); !s.isNull() {
		list, reason = d.rowHeaders(b, list, s.of(row))
	}
	for i := range rel.extra {
		h := &rel.extra[i]
		s := null
		if h.index >= 0 {
			s = d.spans[h.index]
		}
		if !s.isNull() || h.nullable {
			list = append(list, Header{h.name, s.of(row)})
		}
	}
	list = append(list, Header{headerLSN, b.lsnOf(d.txn.Commit)}, Header{headerSeq, seq[:len(seq):len(seq)]})
	if d.source != nil {
		list = append(list, Header{headerSource, d.source})
	}
	list = append(list, d.Marks...)
	return b.keepList(list), reason
}

// rowHeaders appends the members of a headers column. Strings are given raw,
// without their escapes, null as a null header, and anything else as JSON.
// If the reason is not "", the column can't be carried and the list is as it was.
func (d *Decoder) rowHeaders(b *Batch, list []Header, text []byte) (_ []Header, reason string) {
	before := list
	i := skipSpace(text, 0)
	if i >= len(text) || text[i] != '{' {
		return before, "the headers are not a JSON object"
	}
	i = skipSpace(text, i+1)
	if i < len(text) && text[i] == '}' {
		i++
	} else if list, i, reason = d.members(b, list, text, i); reason != "" {
		return before, reason
	}
	if skipSpace(text, i) != len(text) {
		return before, notJSON
	}
	return list, ""
}

// members appends an object's members from i on, and returns where it ends.
func (d *Decoder) members(b *Batch, list []Header, text []byte, i int) (_ []Header, end int, reason string) {
	for place := 0; ; place++ {
		if place == maxRowHeaders {
			return list, i, "the headers are more than 4096"
		}
		name, value, next := d.member(b, place, text, i)
		if next < 0 {
			return list, i, notJSON
		}
		if d.owned(name) {
			d.DroppedHeaders++
			d.names.drop(name.text)
		} else {
			if cap(list)-len(list) <= d.rel.headers {
				list = b.grow(list, d.rel.headers+1)
			}
			list = append(list, Header{name.text, value})
		}
		i = skipSpace(text, next)
		if i < len(text) && text[i] == '}' {
			return list, i + 1, ""
		}
		if i >= len(text) || text[i] != ',' {
			return list, i, notJSON
		}
		i = skipSpace(text, i+1)
	}
}

const notJSON = "the headers are not legal JSON"

// member reads the name and value that begin at i; next < 0 = they are not JSON.
func (d *Decoder) member(b *Batch, place int, text []byte, i int) (name headerName, value []byte, next int) {
	if i >= len(text) || text[i] != '"' {
		return name, nil, -1
	}
	end, escaped := skipString(text, i+1)
	if end < 0 {
		return name, nil, -1
	}
	raw := b.unquote(text[i+1:end-1], escaped)
	if i = skipColon(text, end); i < 0 || i >= len(text) {
		return name, nil, -1
	}
	if text[i] == '"' {
		if next, escaped = skipString(text, i+1); next < 0 {
			return name, nil, -1
		}
		value = b.unquote(text[i+1:next-1], escaped)
	} else {
		if next = skipValue(text, i, 2); next < 0 {
			return name, nil, -1
		}
		if text[i] != 'n' { // null
			value = text[i:next:next]
		}
	}
	name, loose := d.names.find(place, raw)
	b.used.loose += loose
	return name, value, next
}

// unquote returns a string's content. Only one with escapes is copied.
func (b *Batch) unquote(raw []byte, escaped bool) []byte {
	if !escaped {
		return raw[:len(raw):len(raw)]
	}
	dst := unescape(b.alloc(len(raw))[:0], raw)
	return dst[:len(dst):len(dst)]
}

// owned says whether the current row's header of that name comes from elsewhere.
func (d *Decoder) owned(name headerName) bool {
	if name.owner < ownerExtra {
		return name.owner == ownerRelay
	}
	h := &d.rel.extra[name.owner-ownerExtra]
	return h.nullable || h.index >= 0 && !d.spans[h.index].isNull()
}
