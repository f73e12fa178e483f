package sink

import (
	"encoding/csv"
	"encoding/hex"
	"os"
	"strconv"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/decode"
)

// table reads a tab-separated file of testdata: its header and its rows.
func table(t testing.TB, name string) (header []string, rows [][]string) {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comma = '\t'
	all, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return all[0], all[1:]
}

// G6: a key goes to the partition that the Java client picks (vectors made by kafka-clients 4.3.1).
func TestG6PartitionIsThatOfTheJavaClient(t *testing.T) {
	header, rows := table(t, "murmur2.tsv")
	for _, row := range rows {
		key, err := hex.DecodeString(row[0])
		if err != nil {
			t.Fatal(err)
		}
		if key == nil {
			key = []byte{}
		}
		if got := strconv.Itoa(int(murmur2(key) & 0x7fffffff)); got != row[1] {
			t.Errorf("murmur2(%x) = %s, Java says %s", key, got, row[1])
		}
		for i := 2; i < len(row); i++ {
			count, _ := strconv.Atoi(header[i][2:])
			want, _ := strconv.Atoi(row[i])
			got, ok := partitionOf(&decode.Event{Key: key, Partition: -1}, int32(count))
			if !ok || got != int32(want) {
				t.Errorf("key %x of %d partitions: %d, Java says %d", key, count, got, want)
			}
		}
	}
}

// G6: a row's own choice of partition wins over its key, and one that does not exist is refused.
func TestG6RowChoosesItsPartition(t *testing.T) {
	ev := decode.Event{Key: []byte("k"), Partition: 4}
	if got, ok := partitionOf(&ev, 5); got != 4 || !ok {
		t.Errorf("partition %d, %v", got, ok)
	}
	if _, ok := partitionOf(&ev, 4); ok {
		t.Error("partition 4 of 4 was accepted")
	}
}

// G2: an event without a key goes to the same partition whenever it is sent, and such events spread evenly.
func TestG2NoKeyFollowsIdentity(t *testing.T) {
	const partitions, events = 12, 24000
	var rows, txns [partitions]int
	for i := range events {
		a := decode.Event{Partition: -1, Commit: 0x16B374D848, Seq: uint64(i)}                 // one large transaction
		b := decode.Event{Partition: -1, Commit: pglogrepl.LSN(0x16B374D848 + uint64(i)*0x58)} // many small ones
		pa, _ := partitionOf(&a, partitions)
		pb, _ := partitionOf(&b, partitions)
		again, _ := partitionOf(&a, partitions)
		if again != pa {
			t.Fatalf("partition %d, then %d", pa, again)
		}
		rows[pa]++
		txns[pb]++
	}
	for p := range partitions {
		for _, n := range []int{rows[p], txns[p]} {
			if n < events/partitions*9/10 || n > events/partitions*11/10 {
				t.Errorf("partition %d got %d of %d events", p, n, events)
			}
		}
	}
}
