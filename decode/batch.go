package decode

import (
	"unsafe"

	"github.com/jackc/pglogrepl"
)

const (
	chunkSize   = 256 << 10
	headerChunk = 1 << 10 // headers, 40 KiB

	// Rows and header lists above a quarter of a chunk get memory of their own, so
	// that the end of a chunk that stays unused is never more than a quarter of it.
	largeBytes   = chunkSize / 4
	largeHeaders = headerChunk / 4

	eventSize  = int(unsafe.Sizeof(Event{}) + unsafe.Sizeof(mark{}))
	headerSize = int(unsafe.Sizeof(Header{}))
	poisonSize = 1024 // a PoisonError with its texts, about
)

// Batch holds events and owns all their bytes. One goroutine at a time uses it.
//
// A row is copied once, as it came, into a chunk of memory; an event's slices
// point into that copy. Chunks stay with the batch: when it is filled again
// nothing is allocated.
type Batch struct {
	Events []Event // in the order of the WAL

	marks   []mark // marks[i] = what was in use before Events[i] was appended
	used    mark
	chunks  [][]byte // len = chunkSize each
	headers [][]Header
	large   [][]byte   // rows with memory of their own
	lists   [][]Header // header lists with memory of their own
	size    int        // bytes to keep over a Reset

	// lsnText is the commit LSN lsn as text, in this batch's memory; 0 = none.
	lsn     pglogrepl.LSN
	lsnText []byte
}

// mark is a state of a batch's memory. Everything before it is in use.
type mark struct {
	chunk, off   int32 // in chunks
	list, header int32 // in headers
	large, lists int32 // how many
	loose        int   // bytes outside of chunks: large rows and lists, texts
}

// NewBatch makes an empty batch. Of the memory that it grows to, it keeps about
// size bytes of each kind (rows, headers, events) for its next use when it is reset.
func NewBatch(size int) *Batch { return &Batch{size: size} }

// Bytes returns how much memory the events take: their rows, with what is left
// unused at the end of chunks, headers and the events themselves.
func (b *Batch) Bytes() int {
	u := &b.used
	return int(u.chunk)*chunkSize + int(u.off) +
		(int(u.list)*headerChunk+int(u.header))*headerSize +
		u.loose + len(b.Events)*eventSize
}

// Reset empties the batch. All slices of its events are invalid from here on.
func (b *Batch) Reset() {
	if b.used.loose > 0 { // stale events would keep large rows alive
		clear(b.Events)
		b.release(mark{})
	}
	b.chunks = cut(b.chunks, max(b.size/chunkSize, 1))
	b.headers = cut(b.headers, max(b.size/(headerChunk*headerSize), 1))
	b.Events, b.marks = b.Events[:0], b.marks[:0]
	if cap(b.Events)*eventSize > b.size {
		b.Events, b.marks = nil, nil
	}
	b.used, b.lsn, b.lsnText = mark{}, 0, nil
}

// cut lets go of all chunks but the first n.
func cut[T any](chunks [][]T, n int) [][]T {
	n = min(n, len(chunks))
	clear(chunks[n:])
	return chunks[:n]
}

// DropLast takes the newest event out again, with its memory.
func (b *Batch) DropLast() {
	n := len(b.Events) - 1
	m := b.marks[n]
	b.release(m)
	b.Events[n] = Event{}
	b.Events, b.marks = b.Events[:n], b.marks[:n]
}

// release gives back everything behind m.
func (b *Batch) release(m mark) {
	if b.used.loose != m.loose { // stale headers would keep a large row alive
		for i, l := range b.headers[min(int(m.list), len(b.headers)):] {
			if i == 0 {
				l = l[m.header:]
			}
			clear(l)
		}
	}
	clear(b.large[m.large:])
	clear(b.lists[m.lists:])
	b.large, b.lists = b.large[:m.large], b.lists[:m.lists]
	b.used, b.lsn, b.lsnText = m, 0, nil
}

// add appends an empty event.
func (b *Batch) add(before mark) *Event {
	n := len(b.Events)
	if n == cap(b.Events) {
		b.growEvents()
	}
	b.Events, b.marks = b.Events[:n+1], append(b.marks, before)
	return &b.Events[n]
}

// growEvents makes room for more events: from some hundred on, for as many like these
// as make the batch's size. Doubling would leave as much garbage as there are events.
func (b *Batch) growEvents() {
	n := len(b.Events)
	room := max(2*n, 64)
	if n >= 256 {
		room = max(room, b.size/(b.Bytes()/n)+1)
	}
	b.Events = append(make([]Event, 0, room), b.Events...)
	b.marks = append(make([]mark, 0, room), b.marks...)
}

// alloc returns n bytes of undefined content.
func (b *Batch) alloc(n int) []byte {
	u := &b.used
	if n > largeBytes {
		p := make([]byte, n)
		b.large = append(b.large, p)
		u.large++
		u.loose += n
		return p
	}
	if len(b.chunks) == 0 {
		b.chunks = append(b.chunks, make([]byte, chunkSize))
	}
	if int(u.off)+n > chunkSize {
		u.chunk, u.off = u.chunk+1, 0
		if int(u.chunk) == len(b.chunks) {
			b.chunks = append(b.chunks, make([]byte, chunkSize))
		}
	}
	p := b.chunks[u.chunk][u.off : int(u.off)+n : int(u.off)+n]
	u.off += int32(n)
	return p
}

// list starts a header list with room for n. It is not in use before keepList,
// and an event makes one list only.
func (b *Batch) list(n int) []Header {
	if n > largeHeaders {
		return b.ownList(n)
	}
	u := &b.used
	if len(b.headers) == 0 {
		b.headers = append(b.headers, make([]Header, headerChunk))
	}
	if int(u.header)+n > headerChunk {
		u.list, u.header = u.list+1, 0
		if int(u.list) == len(b.headers) {
			b.headers = append(b.headers, make([]Header, headerChunk))
		}
	}
	return b.headers[u.list][u.header:u.header]
}

// grow moves an unfinished list to where it has room for n more.
func (b *Batch) grow(l []Header, n int) []Header {
	b.used.header = headerChunk // this chunk's rest is too short
	return append(b.list(2*len(l)+n), l...)
}

func (b *Batch) ownList(n int) []Header {
	l := make([]Header, 0, n)
	b.lists = append(b.lists, l)
	b.used.lists++
	b.used.loose += n * headerSize
	return l
}

// keepList puts a finished list in use.
func (b *Batch) keepList(l []Header) []Header {
	u := &b.used
	inChunk := int(u.list) < len(b.headers) && int(u.header) < headerChunk
	if inChunk && len(l) > 0 && &l[0] == &b.headers[u.list][u.header] {
		u.header += int32(len(l))
	}
	return l[:len(l):len(l)]
}
