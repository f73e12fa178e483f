package decode

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Column is a column of the outbox table.
type Column struct {
	Name string
	Type uint32 // type oid
}

// relation is a mapping applied to the columns of one Relation message.
type relation struct {
	oid      uint32
	width    int        // columns
	index    [roles]int // of each role's column; -1 = the role is off
	standard []headerColumn
	extra    []headerColumn
	fixed    int // bytes of the headers' names and lengths at most

	bytea bool     // the payload is bytea
	clock clockFmt // of the timestamp role's column
}

type headerColumn struct {
	name     []byte // behind its length
	role     role   // of a standard header
	index    int
	fallback int  // the column to take where that one is NULL or absent; -1 = none
	nullable bool // NULL gives a null header, not none
}

// clockFmt is how a timestamp column is read.
type clockFmt int

const (
	clockNone clockFmt = iota // not at all: the commit time is used
	clockZoned
	clockUTC // timestamp without time zone, which Debezium takes for UTC
)

// resolve finds the mapping's columns among those of the table.
func (m *mapping) resolve(cols []Column) (*relation, error) {
	rel := &relation{width: len(cols)}
	find := func(name string) int {
		return slices.IndexFunc(cols, func(c Column) bool { return c.Name == name })
	}
	for r := range roles {
		rel.index[r] = -1
		if m.columns[r].name != "" {
			rel.index[r] = find(m.columns[r].name)
		}
	}
	for r := range roles {
		if err := m.checkRole(r, rel, cols); err != nil {
			return nil, err
		}
	}
	for _, h := range m.standard {
		fallback := -1
		if h.role == roleIdempotencyKey && !m.debezium {
			fallback = rel.index[roleID]
		}
		if i := rel.index[h.role]; i >= 0 || fallback >= 0 {
			rel.standard = append(rel.standard, headerColumn{name: appendName(nil, h.name), role: h.role, index: i, fallback: fallback})
		}
	}
	for _, h := range m.extra {
		i := rel.index[roleTraceparent]
		if h.column != "" {
			i = find(h.column)
			if err := m.checkHeader(h, i, cols); err != nil {
				return nil, err
			}
		}
		rel.extra = append(rel.extra, headerColumn{name: appendName(nil, h.name), index: i, fallback: -1, nullable: m.debezium && h.column != ""})
	}
	for _, h := range slices.Concat(rel.standard, rel.extra) {
		rel.fixed += len(h.name) + binary.MaxVarintLen32
	}
	rel.read(cols, m.debezium)
	return rel, nil
}

// read decides how payload and timestamp are read.
func (rel *relation) read(cols []Column, debezium bool) {
	rel.bytea = cols[rel.index[rolePayload]].Type == oidBytea
	i := rel.index[roleTimestamp]
	switch {
	case i < 0:
	case cols[i].Type == oidTimestamptz:
		rel.clock = clockZoned
	case cols[i].Type == oidTimestamp && debezium:
		rel.clock = clockUTC
	}
}

func (m *mapping) checkRole(r role, rel *relation, cols []Column) error {
	col, spec := m.columns[r], roleSpecs[r]
	i := rel.index[r]
	if i < 0 {
		switch {
		case spec.needed || col.explicit:
			return m.missing("role "+spec.name, col.name, "is not there", m.remap(r))
		case m.needs[r] && rel.index[roleTopic] < 0:
			return m.missing("role "+spec.name, col.name, fmt.Sprintf("is not there, and the topic %q needs it", m.topics.template),
				fmt.Sprintf("map another column by --column %s=NAME, or give a --topic without {%s}", spec.name, spec.name))
		}
		return nil
	}
	if !spec.carries(cols[i].Type) {
		return m.missing("role "+spec.name, col.name,
			fmt.Sprintf("has type %s, which can't be carried", typeName(cols[i].Type)),
			fmt.Sprintf("it must be %s; change its type or %s", spec.types, m.remap(r)))
	}
	return nil
}

func (m *mapping) checkHeader(h extraHeader, i int, cols []Column) error {
	const remedy = "correct or drop the --header flag"
	if i < 0 {
		return m.missing("header "+h.name, h.column, "is not there", remedy)
	}
	if !isText(cols[i].Type) {
		return m.missing("header "+h.name, h.column, "has type bytea, which has no text form", remedy)
	}
	return nil
}

// lost is the error for a role that the table had before.
func (m *mapping) lost(r role) error {
	return m.missing("role "+r.String(), m.columns[r].name, "was there before and is gone",
		fmt.Sprintf("add it again, or turn the role off by --column %s=", r))
}

func (m *mapping) missing(role, column, reason, remedy string) error {
	return &MappingError{Role: role, Column: column, Table: m.name(), Reason: reason, Remedy: remedy}
}

func (m *mapping) name() string { return m.schema + "." + m.table }

// remap is the way out of a column that doesn't do for its role.
func (m *mapping) remap(r role) string {
	var text strings.Builder
	fmt.Fprintf(&text, "map the role to another column by --column %s=NAME", r)
	if !roleSpecs[r].needed && !m.needs[r] {
		fmt.Fprintf(&text, " or turn it off by --column %s=", r)
	}
	text.WriteString(" (rows from before a change of the table are read with the columns of that time)")
	return text.String()
}

// typeName names the types that people are likely to have used.
func typeName(oid uint32) string {
	names := map[uint32]string{
		16: "boolean", oidBytea: "bytea", 19: "name", oidInt8: "bigint", oidInt2: "smallint", oidInt4: "integer",
		oidText: "text", oidJSON: "json", 142: "xml", 700: "real", 701: "double precision", 1009: "text[]",
		oidBpchar: "char", oidVarchar: "varchar", 1082: "date", oidTimestamp: "timestamp",
		oidTimestamptz: "timestamptz", 1700: "numeric", 2950: "uuid", oidJSONB: "jsonb",
	}
	if name, ok := names[oid]; ok {
		return name
	}
	return fmt.Sprintf("oid %d (a domain, enum or extension's type; see pg_type)", oid)
}
