package decode

import "strings"

// role is what a column of the table means to an event.
type role int

const (
	roleID role = iota
	roleKey
	rolePayload
	roleAggregateType
	roleEventType
	roleTopic
	roleHeaders
	roleCorrelationID
	roleIdempotencyKey
	roleTimestamp
	rolePartition
	roleTraceparent
	roles // how many
)

// roleSpecs is what the documentation of --column says.
var roleSpecs = [roles]struct {
	name     string
	aliases  []string
	column   string // by default; "" = off
	debezium string // the same with the preset debezium
	needed   bool
	carries  func(oid uint32) bool
	types    string // which types carries accepts, for people
}{
	roleID:             {"id", []string{"event_id"}, "event_id", "id", true, isText, textTypes},
	roleKey:            {"key", []string{"aggregate_id", "aggregateid"}, "aggregate_id", "aggregateid", true, isText, textTypes},
	rolePayload:        {"payload", []string{"value"}, "payload", "payload", true, isPayload, "json, jsonb, text, varchar, char or bytea"},
	roleAggregateType:  {"aggregate_type", []string{"aggregatetype"}, "aggregate_type", "aggregatetype", false, isText, textTypes},
	roleEventType:      {"event_type", []string{"type"}, "event_type", "type", false, isText, textTypes},
	roleTopic:          {"topic", nil, "topic", "", false, isText, textTypes},
	roleHeaders:        {"headers", nil, "headers", "", false, isJSON, "json or jsonb"},
	roleCorrelationID:  {"correlation_id", nil, "correlation_id", "", false, isText, textTypes},
	roleIdempotencyKey: {"idempotency_key", nil, "idempotency_key", "", false, isText, textTypes},
	roleTimestamp:      {"timestamp", []string{"created_at"}, "created_at", "", false, isAny, ""},
	rolePartition:      {"partition", nil, "", "", false, isInt, "smallint, integer or bigint"},
	roleTraceparent:    {"traceparent", nil, "", "", false, isText, textTypes},
}

const textTypes = "a type whose text is the value: text, varchar, uuid, integer, numeric …, not bytea"

func (r role) String() string { return roleSpecs[r].name }

// parseRole finds a role by its name, or by the name of the column that usually
// has it.
func parseRole(name string) (role, bool) {
	name = strings.ReplaceAll(strings.TrimSpace(name), "-", "_")
	for r, spec := range roleSpecs {
		if name == spec.name {
			return role(r), true
		}
		for _, alias := range spec.aliases {
			if name == alias {
				return role(r), true
			}
		}
	}
	return 0, false
}

func roleNames() string {
	names := make([]string, roles)
	for r, spec := range roleSpecs {
		names[r] = spec.name
	}
	return strings.Join(names, ", ")
}

// Type oids, from Postgres' pg_type.dat. They are the same in every database.
const (
	oidBytea       = 17
	oidInt8        = 20
	oidInt2        = 21
	oidInt4        = 23
	oidText        = 25
	oidJSON        = 114
	oidBpchar      = 1042
	oidVarchar     = 1043
	oidTimestamp   = 1114
	oidTimestamptz = 1184
	oidJSONB       = 3802
)

func isAny(uint32) bool      { return true }
func isText(oid uint32) bool { return oid != oidBytea }
func isJSON(oid uint32) bool { return oid == oidJSON || oid == oidJSONB }
func isInt(oid uint32) bool  { return oid == oidInt2 || oid == oidInt4 || oid == oidInt8 }

func isPayload(oid uint32) bool {
	switch oid {
	case oidJSON, oidJSONB, oidText, oidVarchar, oidBpchar, oidBytea:
		return true
	}
	return false
}
