package decode

import (
	"slices"
	"strings"
)

// Config says how rows become events. Columns, Headers, Topic, TopicAllow and
// Preset are the values of the flags of these names, as given.
type Config struct {
	Schema, Table string // of the outbox; a partitioned table's root

	Preset  string   // "" or "default", "debezium"
	Columns []string // ROLE=NAME; ROLE= turns the role off
	Headers []string // NAME=COLUMN

	Topic      string   // template; "" = outbox.event.{aggregate_type}
	TopicAllow []string // globs; none = the template with * for each placeholder
	Internal   []string // topics that no row may choose; none = walrelay-checkpoint
	DeadLetter string   // pattern of dead-letter topics; "" = {topic}.DLT
}

// Names of the standard headers.
const (
	headerEventID        = "event-id"
	headerEventType      = "event-type"
	headerAggregateType  = "aggregate-type"
	headerAggregateID    = "aggregate-id"
	headerCorrelationID  = "correlation-id"
	headerIdempotencyKey = "idempotency-key"
	headerTraceparent    = "traceparent"
	headerDebeziumID     = "id"

	headerPrefix = "walrelay-" // ours, whatever follows
	headerLSN    = headerPrefix + "lsn"
	headerSeq    = headerPrefix + "seq"
	headerSource = headerPrefix + "source"
)

// mapping is a checked Config: which column has which role.
type mapping struct {
	schema, table string
	columns       [roles]column
	standard      []standardHeader // in order; before those of the headers column
	extra         []extraHeader    // in order; behind them

	debezium bool
	topics   topics
	needs    [roles]bool // roles that the topic template needs
}

type column struct {
	name     string // "" = the role is off
	explicit bool   // named by the configuration: must be there
}

type standardHeader struct {
	name string
	role role
}

type extraHeader struct {
	name   string
	column string // "" = the traceparent role's
}

func newMapping(cfg Config) (*mapping, error) {
	m := &mapping{schema: cfg.Schema, table: cfg.Table}
	if m.schema == "" || m.table == "" {
		return nil, configError("--table", cfg.Schema+"."+cfg.Table, "needs a schema and a name")
	}
	switch cfg.Preset {
	case "", "default":
	case "debezium":
		m.debezium = true
	default:
		return nil, configError("--preset", cfg.Preset, "is not known: use default or debezium")
	}
	if err := m.setColumns(cfg.Columns); err != nil {
		return nil, err
	}
	m.setStandard()
	if err := m.setHeaders(cfg.Headers); err != nil {
		return nil, err
	}
	if err := m.topics.configure(cfg); err != nil {
		return nil, err
	}
	for _, p := range m.topics.parts {
		if p.literal == "" {
			if m.columns[p.role].name == "" {
				return nil, configError("--topic", m.topics.template, "needs the role %s, which is turned off", p.role)
			}
			m.needs[p.role] = true
		}
	}
	return m, nil
}

// setColumns takes the preset's columns and lays ROLE=NAME over them.
func (m *mapping) setColumns(flags []string) error {
	for r, spec := range roleSpecs {
		m.columns[r].name = spec.column
		if m.debezium {
			m.columns[r].name = spec.debezium
		}
	}
	var seen [roles]bool
	for _, flag := range flags {
		name, col, ok := strings.Cut(flag, "=")
		if !ok {
			return configError("--column", flag, "is not of the form ROLE=NAME")
		}
		r, ok := parseRole(name)
		if !ok {
			return configError("--column", flag, "names no role; the roles are %s", roleNames())
		}
		if seen[r] {
			return configError("--column", flag, "maps the role %s a second time", r)
		}
		seen[r] = true
		col = strings.TrimSpace(col)
		if col == "" && roleSpecs[r].needed {
			return configError("--column", flag, "turns off a role that every event needs; give the name of a column")
		}
		m.columns[r] = column{name: col, explicit: col != ""}
	}
	return nil
}

// setStandard decides which roles become headers. Debezium's outbox router writes
// the event id as "id" and nothing else that was not asked for.
func (m *mapping) setStandard() {
	if m.debezium {
		m.standard = []standardHeader{{headerDebeziumID, roleID}}
	} else {
		m.standard = []standardHeader{
			{headerEventID, roleID},
			{headerEventType, roleEventType},
			{headerAggregateType, roleAggregateType},
			{headerAggregateID, roleKey},
		}
	}
	m.standard = append(m.standard,
		standardHeader{headerCorrelationID, roleCorrelationID},
		standardHeader{headerIdempotencyKey, roleIdempotencyKey})
}

func (m *mapping) setHeaders(flags []string) error {
	for _, flag := range flags {
		name, col, ok := strings.Cut(flag, "=")
		name, col = strings.TrimSpace(name), strings.TrimSpace(col)
		switch {
		case !ok || name == "" || col == "":
			return configError("--header", flag, "is not of the form NAME=COLUMN")
		case strings.HasPrefix(name, headerPrefix):
			return configError("--header", flag, "takes a name that begins with %s: these are the relay's own", headerPrefix)
		case m.isStandard(name):
			return configError("--header", flag, "takes the name of a standard header; map its role by --column instead")
		case slices.ContainsFunc(m.extra, func(x extraHeader) bool { return x.name == name }):
			return configError("--header", flag, "gives the header a second time")
		}
		m.extra = append(m.extra, extraHeader{name, col})
	}
	if m.columns[roleTraceparent].name != "" {
		m.extra = append(m.extra, extraHeader{name: headerTraceparent})
	}
	return nil
}

// isStandard says whether the relay itself writes the header.
func (m *mapping) isStandard(name string) bool {
	if name == headerTraceparent {
		return m.columns[roleTraceparent].name != ""
	}
	return slices.ContainsFunc(m.standard, func(h standardHeader) bool { return h.name == name })
}
