package decode

import (
	"strings"
	"testing"
)

// benchRow is a row of about 300 bytes with all standard headers and two of its own.
func benchRow() []byte {
	payload := `{"order": 4711, "pad": "` + strings.Repeat("x", 300-26) + `"}`
	return wireInsert(testOID, "4f9c6c1e-58a0-4f5a-9d0b-0f4f3a3b2c1d", "order", "order-4711", "OrderPlaced",
		payload, nil, `{"tenant": "acme", "schema": "v1"}`, "c0ffee00-58a0-4f5a-9d0b-0f4f3a3b2c1d",
		"place-order-4711", "2026-01-02 03:04:05.678901+00")
}

func benchmarkDecode(b *testing.B, row []byte) {
	s := newStream(b, Config{})
	s.begin()
	b.SetBytes(int64(len(row)))
	b.ReportAllocs()
	for b.Loop() {
		if s.b.Bytes() > 1<<20 {
			s.b.Reset()
		}
		if _, err := s.d.Decode(row, s.b); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) { benchmarkDecode(b, benchRow()) }

func BenchmarkDecodeNoRowHeaders(b *testing.B) {
	benchmarkDecode(b, wireInsert(testOID, "4f9c6c1e-58a0-4f5a-9d0b-0f4f3a3b2c1d", "order", "order-4711", "OrderPlaced",
		`{"pad": "`+strings.Repeat("x", 290)+`"}`, nil, nil, "c0ffee00-58a0-4f5a-9d0b-0f4f3a3b2c1d",
		"place-order-4711", "2026-01-02 03:04:05.678901+00"))
}
