package simpg

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// The relay's queries are recognised by the comment that each of them begins with; the
// answers have the columns that it asks for, in their order.
var marker = regexp.MustCompile(`^/\* walrelay: (\w+) \*/`)

// answer returns the columns and the row of the answer to a query; no columns: the model
// doesn't know it.
func (s *Server) answer(ss *session, sql string) (columns []string, row [][]byte, err *pgproto3.ErrorResponse) {
	if ss.stream {
		switch {
		case sql == "IDENTIFY_SYSTEM":
			return []string{"systemid", "timeline", "xlogpos", "dbname"},
				texts(s.cfg.SystemID, s.timeline, s.end, "app"), nil
		case strings.HasPrefix(sql, "TIMELINE_HISTORY "):
			n, _ := strconv.Atoi(strings.TrimPrefix(sql, "TIMELINE_HISTORY "))
			return []string{"filename", "content"}, texts(fmt.Sprintf("%08X.history", n), s.history(n)), nil
		}
	}
	if strings.HasPrefix(sql, "BEGIN ISOLATION LEVEL ") {
		return []string{}, nil, nil
	}
	m := marker.FindStringSubmatch(sql)
	if m == nil {
		return nil, nil, nil
	}
	clock := s.now().UnixMicro()
	switch m[1] {
	case "server":
		return make([]string, 8), texts(s.cfg.Version, "f", "logical", 10, s.cfg.WALSenderTimeout.Milliseconds(), ss.pid, "app", clock), nil
	case "slot":
		var holder, who any
		if s.slot.pid != 0 {
			holder, who = s.slot.pid, "walrelay"
		}
		return make([]string, 11), texts("pgoutput", "logical", "app", "f", "reserved", "", s.slot.persisted, s.slot.confirmed, holder, who, ""), nil
	case "catalog":
		return make([]string, 14), s.catalogRow(clock), nil
	case "holder":
		var holder any
		if s.slot.pid != 0 {
			holder = s.slot.pid
		}
		return make([]string, 2), texts(holder, clock), nil
	case "walsender":
		wait := "Activity"
		if s.sessions[s.slot.pid] == nil {
			return make([]string, 1), nil, nil
		}
		if time.Now().Before(s.busy) {
			wait = ""
		}
		return make([]string, 1), texts(wait), nil
	case "marker":
		s.record(64)
		s.grown()
		return make([]string, 1), texts(s.end), nil
	case "position":
		return make([]string, 1), texts(s.end), nil
	case "anchor":
		return make([]string, 6), nil, nil
	case "snapshot":
		xmin := s.nextXID
		for t := range s.open {
			xmin = min(xmin, t.XID)
		}
		return make([]string, 2), texts(xmin, s.end), nil
	case "reader": // the role may not SELECT: what is in the table is not counted
		return make([]string, 6), texts("r", "f", "walrelay", s.nextXID, "off", s.cfg.Version), nil
	case "headroom":
		return make([]string, 1), texts(nil), nil
	case "wal":
		return make([]string, 2), texts(s.end, nil), nil
	}
	return nil, nil, nil
}

func (s *Server) catalogRow(clock int64) [][]byte {
	type column struct {
		Name      string `json:"name"`
		Type      uint32 `json:"type"`
		TypeName  string `json:"typename"`
		Generated bool   `json:"generated"`
	}
	var columns []column
	var names []string
	for _, c := range s.columns {
		columns = append(columns, column{c.Name, c.Type, "type", false})
		names = append(names, c.Name)
	}
	all, _ := json.Marshal(columns)
	listed, _ := json.Marshal(names)
	member := s.membership != 0
	return texts(s.publication, "t", "f", s.tableOID, "r", "p", s.membership, truth(member), nil, string(listed), string(all), "f", clock, s.publication)
}

func truth(b bool) string {
	if b {
		return "t"
	}
	return "f"
}

// texts renders values as a DataRow has them; nil is NULL.
func texts(values ...any) [][]byte {
	row := make([][]byte, len(values))
	for i, v := range values {
		if v != nil {
			row[i] = fmt.Append(nil, v)
		}
	}
	return row
}

// history is the content of timeline n's history file.
func (s *Server) history(n int) string {
	var b strings.Builder
	for i, at := range s.switches {
		if i+1 < n {
			fmt.Fprintf(&b, "%d\t%s\tno recovery target specified\n", i+1, at)
		}
	}
	return b.String()
}
