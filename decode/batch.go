package decode

import "unsafe"

const (
	chunkSize = 256 << 10

	// Rows above a quarter of a chunk get memory of their own, so that the end of a
	// chunk that stays unused is never more than a quarter of it.
	largeBytes = chunkSize / 4

	eventSize  = int(unsafe.Sizeof(Event{}) + unsafe.Sizeof(mark{}))
	poisonSize = 1024 // a PoisonError with its texts, about
)

// Batch holds events and owns all their bytes. One goroutine at a time uses it.
//
// What an event carries is copied once, into a chunk of memory; its slices point
// into that copy. Chunks stay with the batch: when it is filled again
// nothing is allocated.
type Batch struct {
	Events []Event // in the order of the WAL

	marks  []mark // marks[i] = what was in use before Events[i] was appended
	used   mark
	chunks [][]byte // len = chunkSize each
	large  [][]byte // rows with memory of their own
	size   int      // bytes to keep over a Reset
}

// mark is a state of a batch's memory. Everything before it is in use.
type mark struct {
	chunk, off int32 // in chunks
	large      int32 // how many
	loose      int   // bytes outside of chunks: large rows, texts
}

// NewBatch makes an empty batch. Of the memory that it grows to, it keeps about
// size bytes of each kind (rows, events) for its next use when it is reset.
func NewBatch(size int) *Batch { return &Batch{size: size} }

// Bytes returns how much memory the events take: their rows, with what is left
// unused at the end of chunks, and the events themselves.
func (b *Batch) Bytes() int {
	return int(b.used.chunk)*chunkSize + int(b.used.off) + b.used.loose + len(b.Events)*eventSize
}

// Reset empties the batch. All slices of its events are invalid from here on.
func (b *Batch) Reset() {
	if b.used.loose > 0 { // stale events would keep large rows alive
		clear(b.Events)
		b.release(mark{})
	}
	b.chunks = cut(b.chunks, max(b.size/chunkSize, 1))
	b.Events, b.marks = b.Events[:0], b.marks[:0]
	if cap(b.Events)*eventSize > b.size {
		b.Events, b.marks = nil, nil
	}
	b.used = mark{}
}

// cut lets go of all chunks but the first n.
func cut(chunks [][]byte, n int) [][]byte {
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
	clear(b.large[m.large:])
	b.large, b.used = b.large[:m.large], m
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

// alloc returns an empty slice with room for n bytes. They are in use when keep has
// been told how many it were.
func (b *Batch) alloc(n int) []byte {
	u := &b.used
	if n > largeBytes {
		return make([]byte, 0, n)
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
	return b.chunks[u.chunk][u.off : u.off : int(u.off)+n]
}

// keep puts in use what was written to the slice that alloc returned for n bytes.
func (b *Batch) keep(n int, p []byte) {
	if n > largeBytes || cap(p) > n {
		b.large = append(b.large, p)
		b.used.large++
		b.used.loose += cap(p)
		return
	}
	b.used.off += int32(len(p))
}
