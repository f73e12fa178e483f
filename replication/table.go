package replication

import (
	"fmt"
	"strings"
)

// Table is a table's name as the catalog has it.
type Table struct{ Schema, Name string }

// ParseTable reads [schema.]name by SQL's rules: folded to lower case unless in
// double quotes. The schema is public where none is given.
func ParseTable(s string) (Table, error) {
	var parts []string
	for rest := strings.TrimSpace(s); ; {
		part, tail, err := cutIdent(rest)
		if err != nil {
			return Table{}, fmt.Errorf("table name %q: %w", s, err)
		}
		parts = append(parts, part)
		if tail == "" {
			break
		}
		rest = tail[1:] // the dot
	}
	switch len(parts) {
	case 1:
		return Table{Schema: "public", Name: parts[0]}, nil
	case 2:
		return Table{Schema: parts[0], Name: parts[1]}, nil
	}
	return Table{}, fmt.Errorf("table name %q: it has %d parts, want [schema.]name", s, len(parts))
}

// cutIdent reads one identifier; tail is empty or begins with the dot behind it.
func cutIdent(s string) (ident, tail string, err error) {
	if !strings.HasPrefix(s, `"`) {
		i := strings.IndexByte(s, '.')
		if i < 0 {
			i = len(s)
		}
		ident = strings.ToLower(s[:i])
		if strings.ContainsAny(ident, "\" \t\n'();,") {
			return "", "", fmt.Errorf("put %s in double quotes, or correct it", s[:i])
		}
		return ident, s[i:], checkIdent(ident)
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		if s[i] != '"' {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == '"' {
			b.WriteByte('"')
			i++
			continue
		}
		if tail = s[i+1:]; tail != "" && tail[0] != '.' {
			return "", "", fmt.Errorf("%q follows the closing quote", tail)
		}
		return b.String(), tail, checkIdent(b.String())
	}
	return "", "", fmt.Errorf("a double quote is missing")
}

// checkIdent refuses what Postgres would refuse, or cut off in silence.
func checkIdent(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("a part of it is empty")
	case len(s) > 63:
		return fmt.Errorf("%q is longer than Postgres' 63 bytes", s)
	case strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("it holds a zero byte")
	}
	return nil
}

// checkSlot applies Postgres' rule for slot names.
func checkSlot(s string) error {
	if err := checkIdent(s); err != nil {
		return err
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return fmt.Errorf("only a-z, 0-9 and _ are allowed")
		}
	}
	return nil
}

// String returns the name quoted for SQL where it has to be.
func (t Table) String() string { return quoteIdent(t.Schema) + "." + quoteIdent(t.Name) }

// quoteIdent quotes an identifier unless it is plain: then SQL to be read by
// people stays readable.
func quoteIdent(s string) string {
	plain := s != "" && (s[0] == '_' || s[0] >= 'a' && s[0] <= 'z') && !strings.Contains(reserved, " "+s+" ")
	for _, c := range []byte(s) {
		plain = plain && (c == '_' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9')
	}
	if plain {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// quoteLiteral quotes a string for sessions with standard_conforming_strings,
// which connect sets, and for the replication grammar, which knows no escapes.
func quoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// reserved are the key words that can't name an object unquoted: pg_get_keywords()
// on 14 to 18, catcode R or T.
const reserved = " all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate" +
	" collation column concurrently constraint create cross current_catalog current_date current_role current_schema" +
	" current_time current_timestamp current_user default deferrable desc distinct do else end except false fetch for" +
	" foreign freeze from full grant group having ilike in initially inner intersect into is isnull join lateral" +
	" leading left like limit localtime localtimestamp natural not notnull null offset on only or order outer" +
	" overlaps placing primary references returning right select session_user similar some symmetric system_user" +
	" table tablesample then to trailing true union unique user using variadic verbose when where window with "
