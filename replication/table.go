package replication

// Table is a table's name, as the catalog has it.
type Table struct{ Schema, Name string }

// ParseTable reads [schema.]name by SQL's rules: folded to lower case unless in
// double quotes. The schema is public if absent.
func ParseTable(s string) (Table, error) { panic("not yet") }

// String returns the name quoted for SQL where it needs to be.
func (t Table) String() string { panic("not yet") }
