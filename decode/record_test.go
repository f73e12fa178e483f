package decode

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// G6: headers are what they were made of, of any length, null and empty told apart.
func TestG6HeadersAreReadBack(t *testing.T) {
	list := []Header{{"", nil}, {"null", nil}, {"empty", []byte{}}, {"zürich", []byte("東京")}}
	for _, n := range []int{1, 63, 64, 127, 8191, 8192, 1 << 20} {
		list = append(list, Header{strings.Repeat("n", n), bytes.Repeat([]byte{0xff}, n)})
		if got := len(appendLength(nil, n)); got != lengthSize(n) {
			t.Errorf("length %d takes %d bytes, expected %d", n, got, lengthSize(n))
		}
	}
	h := NewHeaders(list...)
	same := func(a, b Header) bool {
		return a.Key == b.Key && bytes.Equal(a.Value, b.Value) && (a.Value == nil) == (b.Value == nil)
	}
	if h.Count != len(list) || !slices.EqualFunc(h.List(), list, same) {
		t.Errorf("%d headers are not the %d that were given", h.Count, len(list))
	}
}

// G6: headers that are added to an event stay out of its neighbour's memory.
func TestG6AddedHeadersMoveAway(t *testing.T) {
	s := newStream(t, Config{})
	ev := *s.row(values(nil)...)
	next := s.row(values(nil)...)
	want := render(next)
	ev.Headers.Add("walrelay-error", bytes.Repeat([]byte("x"), 500))
	if got := render(next); got != want {
		t.Errorf("the next event is %s\nwas %s", got, want)
	}
}
