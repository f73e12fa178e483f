package checker

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Compare holds the observation against the truth, which must be in commit order.
func Compare(truth []Event, observed Observed, samples []Sample) *Report {
	c := &comparison{Report: &Report{Committed: len(truth), Samples: len(samples)}, truth: truth, partitions: map[string]int32{}}
	c.index()
	for p := range observed {
		c.partitions[p.Topic] = max(c.partitions[p.Topic], p.Partition+1)
	}
	c.assign(observed)
	for p, seen := range c.match(observed) {
		c.walk(p, seen)
	}
	for i, e := range truth {
		if c.first[i] == nil {
			c.Lost.add("event %s, commit %s seq %d, for %s", e.ID, e.Commit, e.Seq, e.Topic)
			continue
		}
		c.Delivered++
	}
	c.checkSamples(samples)
	return c.Report
}

type position struct {
	commit pglogrepl.LSN
	seq    uint64
}

type comparison struct {
	*Report
	truth      []Event
	byID       map[string][]int // → index in truth
	byPosition map[position]int
	partitions map[string]int32 // topic → number of partitions
	source     string           // the first walrelay-source seen

	place []Place   // of each event; keyless ones: where their first record is
	rank  []int     // of each event among those of its partition
	first []*Record // of each event; nil: lost
	ranks map[Place]int
}

func (c *comparison) index() {
	n := len(c.truth)
	c.byID, c.byPosition = make(map[string][]int, n), make(map[position]int, n)
	c.place, c.rank, c.first, c.ranks = make([]Place, n), make([]int, n), make([]*Record, n), map[Place]int{}
	for i, e := range c.truth {
		c.byID[e.ID] = append(c.byID[e.ID], i)
		c.byPosition[position{e.Commit, e.Seq}] = i
	}
}

// assign finds each event's partition: the row's own choice, else Java's murmur2 of the
// key. Keyless events are where they are seen first; they only have to stay there.
func (c *comparison) assign(observed Observed) {
	seen := map[int]Place{}
	places := slices.SortedFunc(maps.Keys(observed), func(a, b Place) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	for _, p := range places {
		records := observed[p]
		for i := range records {
			if r := &records[i]; r.NoKey {
				if at, ok := c.find(r); ok && seen[at] == (Place{}) {
					seen[at] = p
				}
			}
		}
	}
	hash := kgo.StickyKeyPartitioner(nil)
	for i, e := range c.truth {
		p := Place{e.Topic, e.Partition}
		switch n := c.partitions[e.Topic]; {
		case e.Partition >= 0 || n == 0:
		case e.NoKey:
			p.Partition = -1
			if at, ok := seen[i]; ok {
				p.Partition = at.Partition
			}
		default:
			p.Partition = int32(hash.ForTopic(e.Topic).Partition(&kgo.Record{Key: []byte(e.Key)}, int(n)))
		}
		c.place[i], c.rank[i] = p, c.ranks[p]
		c.ranks[p]++
	}
}

// find is the event of a record: by its position, or else by its id.
func (c *comparison) find(r *Record) (int, bool) {
	if r.Positioned {
		if i, ok := c.byPosition[position{r.Commit, r.Seq}]; ok && (c.truth[i].ID == r.ID || len(c.byID[r.ID]) == 0) {
			return i, true
		}
	}
	if list := c.byID[r.ID]; len(list) > 0 {
		return list[0], true
	}
	return 0, false
}

// publication is a record where it belongs, and its event.
type publication struct {
	*Record
	at int // index of the event
}

// match checks every record by itself and returns, for each partition, those that
// belong there.
func (c *comparison) match(observed Observed) map[Place][]publication {
	walks := map[Place][]publication{}
	for p, records := range observed {
		c.Records += len(records)
		for i := range records {
			r := &records[i]
			at, ok := c.find(r)
			if !ok {
				c.Phantom.add("event %s, commit %s seq %d, at %s offset %d", r.ID, r.Commit, r.Seq, p, r.Offset)
				continue
			}
			c.checkContent(at, p, r)
			if p != c.place[at] {
				e := c.truth[at]
				c.WrongPlace.add("event %s, commit %s seq %d, at %s offset %d, belongs to %s", e.ID, e.Commit, e.Seq, p, r.Offset, c.place[at])
				if c.first[at] == nil {
					c.first[at] = r
				}
				continue
			}
			if c.first[at] == nil || c.first[at].Topic != p.Topic || c.first[at].Partition != p.Partition {
				c.first[at] = r
			}
			walks[p] = append(walks[p], publication{r, at})
		}
	}
	return walks
}

var sourceForm = regexp.MustCompile(`^[0-9a-f]{8}$`)

func (c *comparison) checkContent(at int, p Place, r *Record) {
	e := c.truth[at]
	report := func(f *Finding, what string) {
		f.add("event %s, commit %s seq %d, at %s offset %d: %s", e.ID, e.Commit, e.Seq, p, r.Offset, what)
	}
	if c.source == "" {
		c.source = r.Source
	}
	switch {
	case !r.Positioned:
		report(&c.WrongPosition, "no walrelay-lsn and walrelay-seq")
	case r.Commit != e.Commit || r.Seq != e.Seq:
		report(&c.WrongPosition, "the headers say "+r.Commit.String())
	case !sourceForm.MatchString(r.Source) || r.Source != c.source:
		report(&c.WrongPosition, "walrelay-source is "+r.Source+", was "+c.source)
	}
	if r.Key != e.Key || r.NoKey != e.NoKey {
		report(&c.WrongKey, "another key")
	}
	if r.Value != e.Value {
		report(&c.WrongValue, "another value")
	}
	if name := headerDifference(e.Headers, r.Headers); name != "" {
		report(&c.WrongHeaders, "header "+name)
	}
	if r.Timestamp != e.Timestamp {
		report(&c.WrongTimestamp, "another timestamp")
	}
}
