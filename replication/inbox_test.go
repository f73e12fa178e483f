package replication

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/jackc/pgx/v5/pgproto3"
)

// messages are frames of all sizes, behind each other.
func messages(rng *rand.Rand, n int) (bodies [][]byte, wire []byte) {
	for range n {
		size := rng.IntN(600)
		switch rng.IntN(50) {
		case 0:
			size = rng.IntN(2 * maxBuffer)
		case 1:
			size = 0
		}
		body := bytes.Repeat([]byte{byte(rng.IntN(256))}, size)
		bodies = append(bodies, body)
		msg, _ := (&pgproto3.CopyData{Data: body}).Encode(nil)
		wire = append(wire, msg...)
	}
	return bodies, wire
}

// pieces reads in pieces of any size, and now and then nothing.
type pieces struct {
	rng  *rand.Rand
	from io.Reader
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.rng.IntN(5) == 0 {
		return 0, errDrained
	}
	return p.from.Read(b[:1+p.rng.IntN(len(b))])
}

// G6: messages are what was sent, however the bytes come, and whoever reads them: the driver
// leaves what is behind its message to the stream, and the stream the rest to the driver.
func TestG6InboxCutsMessages(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 0))
		want, wire := messages(rng, 300)
		in := &inbox{from: &pieces{rng, bytes.NewReader(wire)}}
		driver := pgproto3.NewFrontend(in, io.Discard)
		for i, streaming := 0, false; i < len(want); {
			var got []byte
			var err error
			if streaming {
				_, got, err = in.next()
			} else {
				var m pgproto3.BackendMessage
				if m, err = driver.Receive(); err == nil {
					got = m.(*pgproto3.CopyData).Data
				}
			}
			if errors.Is(err, errDrained) {
				continue
			}
			if err != nil || !bytes.Equal(got, want[i]) {
				t.Fatalf("seed %d: message %d of %d bytes came as %d, %v", seed, i, len(want[i]), len(got), err)
			}
			if i++; rng.IntN(20) == 0 {
				streaming = !streaming
			}
		}
	}
}

// G7: a large row's memory is given back, and rows that come one after the other share one buffer.
func TestG7InboxShrinks(t *testing.T) {
	row := func(n int) []byte {
		msg, _ := (&pgproto3.CopyData{Data: make([]byte, n)}).Encode(nil)
		return msg
	}
	in := &inbox{from: iotest.HalfReader(bytes.NewReader(bytes.Join([][]byte{row(3 * keepBuffer), row(300), row(1 << 20), row(300), row(1 << 20), row(300)}, nil)))}
	var sizes []int
	for range 6 {
		if _, _, err := in.next(); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, len(in.buf))
	}
	if sizes[0] != 3*keepBuffer+headSize || sizes[2] > keepBuffer || sizes[5] != sizes[2] {
		t.Errorf("sizes of the buffer: %d", sizes)
	}
}

// A length that can't be is an error, not an index.
func TestInboxRefusesLengths(t *testing.T) {
	for _, head := range []string{"d\x00\x00\x00\x03", "d\xff\xff\xff\xff", "d\x80\x00\x00\x00"} {
		in := &inbox{from: bytes.NewReader([]byte(head))}
		if _, _, err := in.next(); err == nil {
			t.Errorf("%q: no error", head)
		}
	}
}
