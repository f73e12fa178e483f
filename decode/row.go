package decode

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strings"
)

// span is a column's value within a tuple; off < 0 is NULL.
type span struct{ off, end int }

var null = span{-1, -1}

func (s span) isNull() bool { return s.off < 0 }
func (s span) size() int    { return s.end - s.off }

// of returns the value's bytes; nil for NULL, and not nil for an empty value.
func (s span) of(tuple []byte) []byte {
	if s.off < 0 {
		return nil
	}
	return tuple[s.off:s.end:s.end]
}

const tupleAt = 8 // in an Insert message: type, relation oid, 'N', number of columns

// insert reads an Insert message. The tuple is checked and split where it lies; then
// the value and the headers are written side by side into the batch's memory. Id and key
// are, as a rule, the values of their headers.
func (d *Decoder) insert(wal []byte, b *Batch) (Kind, error) {
	if len(wal) < tupleAt {
		return Other, protocolError(wal, len(wal), "the message is cut short")
	}
	if !d.open {
		return Other, protocolError(wal, 0, "a row outside of a transaction")
	}
	if d.rel == nil || binary.BigEndian.Uint32(wal[1:]) != d.rel.oid {
		d.Ignored++
		return Other, nil
	}
	if wal[5] != 'N' {
		return Other, protocolError(wal, 5, "an insert without a new row")
	}
	if int(binary.BigEndian.Uint16(wal[6:])) != d.rel.width {
		return Other, protocolError(wal, 6, "the row's number of columns is not its relation's")
	}
	if err := d.split(wal); err != nil {
		return Other, err
	}
	tuple := wal[tupleAt:]
	ms, err := d.timestamp(tuple)
	if err != nil {
		return Other, err
	}
	before := b.used
	room := d.room(tuple)
	mem, value, err := d.value(b.alloc(room), tuple)
	if err != nil {
		b.release(before)
		return Other, err
	}
	ev := b.add(before)
	*ev = Event{Value: value, Timestamp: ms, Partition: -1, Commit: d.txn.Commit, Seq: d.txn.Rows}
	mem, reason := d.headers(mem, ev, tuple)
	if ev.Key == nil {
		mem, ev.Key = keep(mem, d.column(roleKey).of(tuple))
	}
	b.keep(room, mem)
	d.txn.Rows++

	if ev.ID == nil {
		d.poison(b, ev, "the event id is NULL")
	}
	topic, refused := d.topic(tuple)
	ev.Topic = topic
	if refused != "" {
		d.poison(b, ev, refused).BadTopic = true
	}
	if s := d.column(rolePartition); !s.isNull() {
		if ev.Partition, refused = partition(s.of(tuple)); refused != "" {
			d.poison(b, ev, refused)
		}
	}
	if reason != "" {
		d.poison(b, ev, reason)
	}
	return Row, nil
}

// keep appends p to mem and returns it there; nil stays nil.
func keep(mem, p []byte) (_, kept []byte) {
	if p == nil {
		return mem, nil
	}
	at := len(mem)
	mem = append(mem, p...)
	return mem, mem[at:len(mem):len(mem)]
}

// room is how much memory the current row takes at most: each column once, and again what
// may be given twice.
func (d *Decoder) room(tuple []byte) int {
	rel := d.rel
	n := len(tuple) + rel.fixed + len(d.position) + len(d.tail) + maxDigits + 1 + d.column(roleID).size() + d.column(roleKey).size()
	for i := range rel.extra {
		n += d.given(&rel.extra[i]).size()
	}
	if s := d.column(roleHeaders); !s.isNull() {
		// Lengths in their wire form take no more than quotes and punctuation in JSON, unless
		// a name or a value has 8 KiB or more.
		n += s.size()/1024 + 16
	}
	return n
}

const maxDigits = 20 // of a 64-bit number

// value writes the payload to mem.
func (d *Decoder) value(mem, tuple []byte) (_, value []byte, err error) {
	text := d.column(rolePayload).of(tuple)
	if d.rel.bytea && text != nil {
		return d.unhex(mem, text)
	}
	mem, value = keep(mem, text)
	return mem, value, nil
}

// split finds the columns of a TupleData, relative to its first column.
func (d *Decoder) split(wal []byte) error {
	tuple := wal[tupleAt:]
	d.spans = d.spans[:d.rel.width]
	pos := 0
	for i := range d.spans {
		if pos >= len(tuple) {
			return protocolError(wal, tupleAt+pos, "the row is cut short")
		}
		switch tuple[pos] {
		case 't':
			if len(tuple)-pos < 5 {
				return protocolError(wal, tupleAt+pos, "the row is cut short")
			}
			n := int(int32(binary.BigEndian.Uint32(tuple[pos+1:])))
			pos += 5
			if n < 0 || n > len(tuple)-pos {
				return protocolError(wal, tupleAt+pos-4, "a column is longer than the message")
			}
			d.spans[i] = span{pos, pos + n}
			pos += n
		case 'n':
			d.spans[i] = null
			pos++
		case 'u':
			return protocolError(wal, tupleAt+pos, "a new row with an unchanged value")
		case 'b':
			return protocolError(wal, tupleAt+pos, "a value in binary form, which was not asked for")
		default:
			return protocolError(wal, tupleAt+pos, "a column of unknown kind")
		}
	}
	if pos != len(tuple) {
		return protocolError(wal, tupleAt+pos, "the row goes on behind its last column")
	}
	return nil
}

// column is the current row's value for a role; NULL where the role is off.
func (d *Decoder) column(r role) span {
	if i := d.rel.index[r]; i >= 0 {
		return d.spans[i]
	}
	return null
}

// timestamp is the row's time, or the commit's where the row has none that Kafka
// can carry: NULL, infinite, or before 1970.
func (d *Decoder) timestamp(tuple []byte) (int64, error) {
	if d.rel.clock == clockNone {
		return d.commitMs, nil
	}
	text := d.column(roleTimestamp).of(tuple)
	if text == nil {
		return d.commitMs, nil
	}
	ms, ok := parseTime(text, d.rel.clock == clockZoned)
	if !ok {
		return 0, d.m.missing("role timestamp", d.m.columns[roleTimestamp].name,
			"does not come in ISO form", "DateStyle must be ISO for the relay's role and database")
	}
	if ms < 0 {
		return d.commitMs, nil
	}
	return ms, nil
}

// unhex writes what a bytea's text stands for to mem.
func (d *Decoder) unhex(mem, text []byte) (_, value []byte, err error) {
	if len(text) < 2 || text[0] != '\\' || text[1] != 'x' {
		return mem, nil, d.m.missing("role payload", d.m.columns[rolePayload].name,
			"does not come in hex form", "bytea_output must be hex for the relay's role and database")
	}
	at := len(mem)
	mem, err = hex.AppendDecode(mem, text[2:])
	if err != nil {
		return mem, nil, &ProtocolError{Type: 'I', Offset: tupleAt, Reason: "a bytea that is not hex digits"}
	}
	return mem, mem[at:len(mem):len(mem)], nil
}

// topic is where the row asks to go: its topic column, else the template. The
// reason, if any, says why it can't.
func (d *Decoder) topic(row []byte) (topic, reason string) {
	t := &d.m.topics
	if s := d.column(roleTopic); s.end > s.off {
		return t.intern(row[s.off:s.end])
	}
	if d.sameTopic(row) {
		return t.last, ""
	}
	name := t.scratch[:0]
	for i := range t.parts {
		p := &t.parts[i]
		if p.literal != "" {
			name = append(name, p.literal...)
			continue
		}
		s := d.column(p.role)
		if s.isNull() {
			return "", "the row has no topic: " + p.role.String() + " is NULL"
		}
		// One byte more than Kafka allows is enough to be refused.
		name = append(name, row[s.off:min(s.end, s.off+maxTopic+1)]...)
	}
	return t.intern(name)
}

// sameTopic reports whether the template gives the topic of the row before, which it
// finds out without writing the name.
func (d *Decoder) sameTopic(row []byte) bool {
	t := &d.m.topics
	rest := t.last
	for i := range t.parts {
		p := &t.parts[i]
		if p.literal != "" {
			if !strings.HasPrefix(rest, p.literal) {
				return false
			}
			rest = rest[len(p.literal):]
			continue
		}
		s := d.column(p.role)
		if s.isNull() || len(rest) < s.size() || rest[:s.size()] != string(row[s.off:s.end]) {
			return false
		}
		rest = rest[s.size():]
	}
	return rest == "" && t.last != ""
}

// partition reads the partition role's column.
func partition(text []byte) (p int32, reason string) {
	if len(text) > 0 && text[0] == '-' {
		return -1, "the partition is negative"
	}
	n := int64(0)
	for _, c := range text {
		if c < '0' || c > '9' {
			return -1, "the partition is not a number"
		}
		if n = n*10 + int64(c-'0'); n > math.MaxInt32 {
			return -1, "the partition is greater than Kafka's greatest"
		}
	}
	if len(text) == 0 {
		return -1, "the partition is not a number"
	}
	return int32(n), ""
}

// poison marks the event; of several reasons the first is kept.
func (d *Decoder) poison(b *Batch, ev *Event, reason string) *PoisonError {
	if ev.Poison == nil {
		const most = 256
		ev.Poison = &PoisonError{
			EventID: string(ev.ID[:min(len(ev.ID), most)]),
			Commit:  ev.Commit, Seq: ev.Seq, Reason: reason,
		}
		b.used.loose += poisonSize
	}
	return ev.Poison
}
