package replication

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Catalog names the objects whose replacement would hide rows without an error.
type Catalog struct {
	Publication uint32 // oid of the publication
	Membership  uint32 // oid of what puts the table into it: its own row, or its schema's; 0: FOR ALL TABLES
	Table       uint32 // oid of the table
	Settings    uint32 // xmin of the publication's row: another one after every ALTER PUBLICATION … SET (…)
}

// Column is a column of the table that the stream carries.
type Column struct {
	Name     string `json:"name"`
	Type     uint32 `json:"type"`     // type oid
	TypeName string `json:"typename"` // for messages
}

// catalog is what the server's catalog says about publication and table.
type catalog struct {
	oids     Catalog
	columns  []Column // published
	hidden   []string // columns that a column list keeps out of the stream
	warnings []string
	clock    []byte // the server's, as clockSQL prints it
}

// catalogSQL reads all of it in one row. pg_publication_tables says what is
// published under which name: of a partitioned table the root only with
// publish_via_partition_root. Its columns rowfilter and attnames exist from 15 on.
const catalogSQL = `/* walrelay: catalog */ SELECT p.oid, p.pubinsert, p.puballtables, t.oid, t.relkind, t.relpersistence,` +
	` %[1]s, v.j IS NOT NULL, v.j ->> 'rowfilter', v.j -> 'attnames',` +
	` (SELECT json_agg(json_build_object('name', attname, 'type', atttypid::bigint, 'typename', format_type(atttypid, NULL),` +
	` 'generated', attgenerated <> '') ORDER BY attnum) FROM pg_attribute WHERE attrelid = t.oid AND attnum > 0 AND NOT attisdropped),` +
	` p.pubupdate OR p.pubdelete OR p.pubtruncate, ` + clockSQL + `, p.xmin` +
	` FROM (SELECT) one LEFT JOIN pg_publication p ON p.pubname = %[2]s` +
	` LEFT JOIN (pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace) ON n.nspname = %[3]s AND t.relname = %[4]s` +
	` LEFT JOIN LATERAL (SELECT to_jsonb(v) AS j FROM pg_publication_tables v` +
	` WHERE v.pubname = %[2]s AND v.schemaname = %[3]s AND v.tablename = %[4]s) v ON true`

const (
	memberRel    = `(SELECT r.oid FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = t.oid)`
	memberSchema = `(SELECT s.oid FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid)` // from 15 on
)

// readCatalog refuses every state in which committed rows of the table would not
// be streamed, or not whole.
func readCatalog(ctx context.Context, query querier, cfg Config, version int) (*catalog, error) {
	member := "coalesce(" + memberRel + ", 0)"
	if version >= 150000 {
		member = "coalesce(" + memberRel + ", " + memberSchema + ", 0)"
	}
	got, err := query(ctx, fmt.Sprintf(catalogSQL, member,
		quoteLiteral(cfg.Publication), quoteLiteral(cfg.Table.Schema), quoteLiteral(cfg.Table.Name)))
	if err != nil {
		return nil, err
	}
	if len(got) != 14 {
		return nil, fmt.Errorf("replication: check the publication: %d columns", len(got))
	}
	text := func(i int) string { return string(got[i]) }
	pub, table := fmt.Sprintf("publication %q", cfg.Publication), "table "+cfg.Table.String()
	alter := "ALTER PUBLICATION " + quoteIdent(cfg.Publication)
	refuse := func(fault Fault, reason, remedy string) (*catalog, error) {
		return nil, &ContinuityError{Fault: fault, Reason: "replication: " + reason, Remedy: remedy}
	}
	switch {
	case got[3] == nil:
		return refuse(TableUnusable, table+" does not exist", "correct --table, or create it with `walrelay setup --create-table`")
	case text(4) != "r" && text(4) != "p":
		return refuse(TableUnusable, cfg.Table.String()+" is not a table", "correct --table")
	case text(5) != "p":
		return refuse(TableUnusable, table+" is unlogged: its rows are not in the WAL", "ALTER TABLE "+cfg.Table.String()+" SET LOGGED")
	case got[0] == nil:
		return refuse(PublicationMissing, pub+" does not exist", "create it with `walrelay setup`")
	case text(1) != "t":
		return refuse(PublicationNarrow, pub+" does not publish inserts", alter+" SET (publish = 'insert')")
	case text(7) != "t" && text(4) == "p" && (text(6) != "0" || text(2) == "t"):
		return refuse(PublicationNarrow, pub+" publishes "+table+" under the names of its partitions", alter+" SET (publish_via_partition_root = true)")
	case text(7) != "t":
		return refuse(TableLeft, pub+" does not hold "+table, alter+" ADD TABLE "+cfg.Table.String())
	case got[8] != nil:
		return refuse(PublicationNarrow, pub+" has a row filter on "+table+", which hides rows: "+text(8), alter+" SET TABLE "+cfg.Table.String())
	}
	return parseCatalog(cfg, got)
}

func parseCatalog(cfg Config, got [][]byte) (*catalog, error) {
	c := &catalog{clock: got[12]}
	for oid, b := range map[*uint32][]byte{&c.oids.Publication: got[0], &c.oids.Membership: got[6], &c.oids.Table: got[3], &c.oids.Settings: got[13]} {
		n, err := strconv.ParseUint(string(b), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("replication: check the publication: %w", err)
		}
		*oid = uint32(n)
	}
	var listed []string
	var columns []struct {
		Column
		Generated bool `json:"generated"`
	}
	if got[9] != nil {
		if err := json.Unmarshal(got[9], &listed); err != nil {
			return nil, fmt.Errorf("replication: check the column list: %w", err)
		}
	}
	if err := json.Unmarshal(got[10], &columns); err != nil {
		return nil, fmt.Errorf("replication: check the columns: %w", err)
	}
	for _, col := range columns {
		switch in := slices.Contains(listed, col.Name); {
		case in || listed == nil && !col.Generated:
			c.columns = append(c.columns, col.Column)
		case !col.Generated:
			c.hidden = append(c.hidden, col.Name)
		}
	}
	pub := fmt.Sprintf("publication %q ", cfg.Publication)
	if len(c.hidden) > 0 {
		c.warnings = append(c.warnings, pub+"has a column list that hides "+strings.Join(c.hidden, ", "))
	}
	if c.oids.Membership == 0 || string(got[11]) == "t" {
		c.warnings = append(c.warnings, pub+"publishes more than the inserts of this table: the server decodes and sends it all, and it is thrown away here")
	}
	return c, nil
}

// Verify proves, in one query on the side connection, that publication and table
// are still those that Open found: *ContinuityError if not. Any goroutine.
func (s *Session) Verify(ctx context.Context) error {
	now, err := readCatalog(ctx, s.side.row, s.cfg, s.Server.Version)
	if ce := (*ContinuityError)(nil); errors.As(err, &ce) {
		ce.Remedy += "; rows that are committed until then are not in the stream"
	}
	if err != nil {
		return err
	}
	s.setClock(now.clock)
	fault, changed := s.Catalog.differs(now.oids, s.cfg)
	for _, col := range now.hidden {
		if slices.ContainsFunc(s.Columns, func(c Column) bool { return c.Name == col }) {
			fault, changed = PublicationNarrow, fmt.Sprintf("publication %q has a new column list, which hides %s", s.cfg.Publication, col)
		}
	}
	if changed != "" {
		return &ContinuityError{Fault: fault, Reason: "replication: " + changed + " while it was streamed: rows committed in between are not in the stream"}
	}
	return nil
}

// Differs says what happened to table and publication, if anything, since they were c.
func (c Catalog) Differs(now Catalog, cfg Config) error {
	fault, changed := c.differs(now, cfg)
	if changed == "" {
		return nil
	}
	return &ContinuityError{Fault: fault, Reason: "replication: " + changed +
		" since the position was saved: rows written in between may not have been streamed"}
}

func (c Catalog) differs(now Catalog, cfg Config) (fault Fault, changed string) {
	switch {
	case now.Table != c.Table:
		return TableReplaced, "table " + cfg.Table.String() + " was replaced by another one of the same name"
	case now.Publication != c.Publication:
		return PublicationChanged, fmt.Sprintf("publication %q was replaced by another one of the same name", cfg.Publication)
	case now.Membership != c.Membership:
		return TableLeft, fmt.Sprintf("table %s left publication %q and came back", cfg.Table, cfg.Publication)
	case now.Settings != c.Settings:
		return PublicationChanged, fmt.Sprintf("publication %q was altered, perhaps more than once,", cfg.Publication)
	}
	return 0, ""
}

// publicationGone is for the server's word that the stream goes on without us.
func (s *Session) publicationGone(how string) error {
	return &ContinuityError{
		Fault:  PublicationMissing,
		Reason: fmt.Sprintf("replication: publication %q is missing: %s", s.cfg.Publication, how),
		Remedy: "create it with `walrelay setup`",
	}
}
