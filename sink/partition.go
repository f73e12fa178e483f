package sink

import (
	"encoding/binary"

	"github.com/walrelay/walrelay/decode"
)

// partitionOf returns the partition of an event among count (> 0). ok is false when the row
// asks for a partition that does not exist.
//
// A row's own choice wins. A key goes where every Java producer sends it, also an
// empty one. Without a key the place follows from the event's identity, so that a
// repeat lands on the same partition as the first publication.
func partitionOf(ev *decode.Event, count int32) (partition int32, ok bool) {
	switch {
	case ev.Partition >= 0:
		return ev.Partition, ev.Partition < count
	case ev.Key != nil:
		return int32(murmur2(ev.Key)&0x7fffffff) % count, true
	default:
		return int32(spread(uint64(ev.Commit), ev.Seq) % uint64(count)), true
	}
}

// murmur2 is the hash of Kafka's Java client, org.apache.kafka.common.utils.Utils.murmur2.
func murmur2(key []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
	)
	h := seed ^ uint32(len(key))
	for len(key) >= 4 {
		k := binary.LittleEndian.Uint32(key) * m
		k = (k ^ k>>24) * m
		h = h*m ^ k
		key = key[4:]
	}
	switch len(key) {
	case 3:
		h ^= uint32(key[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(key[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(key[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}

// spread mixes an event's identity into 64 even bits (the finalizer of splitmix64).
func spread(commit, seq uint64) uint64 {
	x := commit ^ seq*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
