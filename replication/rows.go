package replication

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Scan says which rows of the table to read.
type Scan struct {
	Snapshot string // an exported one; "": what is committed when the read begins

	// Since leaves out rows of transactions with an id below it, which are known to be delivered. That is
	// so only in a history of the cluster which has the row ID of the transaction XID: if it isn't found, or the ids
	// have gone round since, every row is read. 0: every row.
	Since    uint64
	IDColumn string
	ID       string
	XID      uint32

	// Of the rows that are read, those of transactions with an id below Known are known to be
	// delivered, and those whose time is not past Newest may be. Zero: none are; all may be.
	Known  uint64
	Newest time.Time

	TimeColumn string // what rows are ordered by first, if the server keeps no commit times; "": nothing
}

// Rows is a read of the table, one row after the other, in a transaction of its own.
type Rows struct {
	Columns []Column
	Whole   string // why every row is read; "": only those since Scan.Since
	Order   string // what the rows are ordered by, for people

	conn        *pgconn.PgConn
	version     int
	now         uint64 // the next transaction id
	commitTimes bool   // the server keeps them

	from   string // SQL: the table
	where  string // the rows
	list   string // the columns, and whether the row is known
	order  string
	reader *pgconn.ResultReader
}

// wholeTable is the reason where nobody asked for less.
const wholeTable = "there is no earlier position to go by"

// OpenRows begins a read: a connection, and a snapshot that stays as it is until Close.
func OpenRows(ctx context.Context, cfg Config, scan Scan) (*Rows, error) {
	r, err := openRows(ctx, cfg, scan)
	if err != nil {
		return nil, err
	}
	cat, err := readCatalog(ctx, r.query, cfg, r.version)
	if err != nil {
		r.Close(ctx)
		return nil, err
	}
	r.Columns = cat.columns
	r.orderBy(scan)
	return r, nil
}

// CountRows is how many rows a read would bring. It does not mind what publication and columns are like.
func CountRows(ctx context.Context, cfg Config, scan Scan) (int64, error) {
	r, err := openRows(ctx, cfg, scan)
	if err != nil {
		return 0, err
	}
	defer r.Close(ctx)
	return r.Count(ctx)
}

func openRows(ctx context.Context, cfg Config, scan Scan) (*Rows, error) {
	pc, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	pc.DialFunc = cfg.dial
	for _, timeout := range []string{"statement_timeout", "idle_in_transaction_session_timeout"} {
		pc.RuntimeParams[timeout] = "0" // it may have to wait for Kafka
	}
	conn, err := pgconn.ConnectConfig(ctx, pc)
	if err != nil {
		return nil, classifyConnect("connect to Postgres", err)
	}
	r := &Rows{conn: conn}
	if err := r.begin(ctx, cfg, scan); err != nil {
		r.Close(ctx)
		return nil, err
	}
	return r, nil
}

func (r *Rows) query(ctx context.Context, sql string) ([][]byte, error) {
	got, err := row(ctx, r.conn, sql)
	if err != nil {
		err = classify("read the table", err)
	}
	return got, err
}

func (r *Rows) begin(ctx context.Context, cfg Config, scan Scan) error {
	begin := "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
	if _, err := r.query(ctx, begin); err != nil {
		return err
	}
	if scan.Snapshot != "" {
		if _, err := r.query(ctx, "SET TRANSACTION SNAPSHOT "+quoteLiteral(scan.Snapshot)); err != nil {
			return err
		}
	}
	got, err := r.query(ctx, fmt.Sprintf(`/* walrelay: reader */ SELECT relkind, has_table_privilege(c.oid, 'SELECT'), current_user,`+
		` pg_snapshot_xmax(pg_current_snapshot()), current_setting('track_commit_timestamp'), current_setting('server_version_num')`+
		` FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relname = %s`,
		quoteLiteral(cfg.Table.Schema), quoteLiteral(cfg.Table.Name)))
	if err != nil {
		return err
	}
	if len(got) != 6 {
		return &ContinuityError{Fault: TableUnusable, Reason: "replication: table " + cfg.Table.String() + " does not exist"}
	}
	if string(got[1]) != "t" {
		return &AuthError{Op: "replication: read the table", Err: fmt.Errorf("role %s may not read %s", quoteIdent(string(got[2])), cfg.Table),
			Remedy: "GRANT SELECT ON " + cfg.Table.String() + " TO " + quoteIdent(string(got[2]))}
	}
	if r.version, err = strconv.Atoi(string(got[5])); err != nil {
		return fmt.Errorf("replication: read the table: %w", err)
	}
	if r.now, err = strconv.ParseUint(string(got[3]), 10, 64); err != nil {
		return fmt.Errorf("replication: read the table: %w", err)
	}
	r.commitTimes = string(got[4]) == "on"
	r.from = " FROM ONLY " + cfg.Table.String()
	if string(got[0]) == "p" {
		r.from = " FROM " + cfg.Table.String() // the rows are in its partitions
	}
	return r.limit(ctx, scan, r.now)
}

// age is the SQL for how many transaction ids ago, as of now, a row's was given. Ids of
// rows are 32 bits wide and go round.
func age(now uint64) string {
	return fmt.Sprintf("((%d - xmin::text::bigint) & 4294967295)", now&(1<<32-1)+1<<32)
}

// limit finds out whether Since may be relied on.
func (r *Rows) limit(ctx context.Context, scan Scan, now uint64) error {
	switch {
	case scan.Since == 0:
		r.Whole = wholeTable
		return nil
	case scan.Since > now:
		r.Whole = fmt.Sprintf("the server's transaction ids (now %d) are behind the saved one (%d): it was restored", now, scan.Since)
		return nil
	case now-scan.Since >= 1<<31:
		r.Whole = "too many transactions have been since the saved one to tell old rows by their transaction ids"
		return nil
	}
	found, err := r.query(ctx, fmt.Sprintf("/* walrelay: root */ SELECT 1%s WHERE %s = %s AND xmin::text = '%d' LIMIT 1",
		r.from, quoteIdent(scan.IDColumn), quoteLiteral(scan.ID), scan.XID))
	switch {
	case err != nil:
		return err
	case found == nil:
		r.Whole = "the last event delivered is not in the table as it was: it was pruned or changed, or the server was restored to a state before it"
	default:
		r.where = fmt.Sprintf(" WHERE %s <= %d", age(now), now-scan.Since)
	}
	return nil
}

// orderBy comes as near to the commit order as rows can tell.
func (r *Rows) orderBy(scan Scan) {
	var by, names []string
	now := r.now
	if r.commitTimes {
		by, names = append(by, "pg_xact_commit_timestamp(xmin) NULLS FIRST"), append(names, "commit time")
	}
	if scan.TimeColumn != "" && slices.ContainsFunc(r.Columns, func(c Column) bool { return c.Name == scan.TimeColumn }) {
		by, names = append(by, quoteIdent(scan.TimeColumn)+" NULLS FIRST"), append(names, scan.TimeColumn)
	}
	by, names = append(by, age(now)+" DESC", "tableoid", "ctid"), append(names, "transaction id", "place in the table")
	r.Order = strings.Join(names, ", then ")
	var columns []string
	for _, c := range r.Columns {
		columns = append(columns, quoteIdent(c.Name))
	}
	r.list, r.order = strings.Join(append(columns, repeat(scan, now, r.Whole == "", by)), ", "), strings.Join(by, ", ")
}

// Repeat says whether a row was delivered before.
type Repeat byte

const (
	NoRepeat    Repeat = '0'
	MayRepeat   Repeat = '1'
	KnownRepeat Repeat = '2'
)

// repeat is the SQL for it. The time of a row is at or before its commit; that of its commit is better.
func repeat(scan Scan, now uint64, rooted bool, order []string) string {
	known, later := "false", "false"
	if rooted && scan.Known > scan.Since && scan.Known <= now {
		known = fmt.Sprintf("%s > %d", age(now), now-scan.Known)
	}
	var times []string
	for _, by := range order {
		if expr, ok := strings.CutSuffix(by, " NULLS FIRST"); ok {
			times = append(times, expr)
		}
	}
	if len(times) > 0 && !scan.Newest.IsZero() {
		later = fmt.Sprintf("coalesce(%s) > timestamptz '%s'", strings.Join(times, ", "), scan.Newest.UTC().Format("2006-01-02 15:04:05.999999Z07:00"))
	}
	return fmt.Sprintf("CASE WHEN %s THEN '%c' WHEN %s THEN '%c' ELSE '%c' END", known, KnownRepeat, later, NoRepeat, MayRepeat)
}

// Count is how many rows there are. Not after Next.
func (r *Rows) Count(ctx context.Context) (int64, error) {
	got, err := r.query(ctx, "/* walrelay: count */ SELECT count(*)"+r.from+r.where)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(got[0]), 10, 64)
}

// Next returns the next row, as text and valid until the next call, and whether it was
// delivered before; io.EOF behind the last one.
func (r *Rows) Next(ctx context.Context) (values [][]byte, repeat Repeat, err error) {
	if r.reader == nil {
		result := r.conn.Exec(ctx, "SELECT "+r.list+r.from+r.where+" ORDER BY "+r.order)
		if !result.NextResult() {
			return nil, 0, classify("read the table", result.Close())
		}
		r.reader = result.ResultReader()
	}
	if r.reader.NextRow() {
		all := r.reader.Values()
		last := len(all) - 1
		return all[:last], Repeat(all[last][0]), nil
	}
	if _, err := r.reader.Close(); err != nil {
		return nil, 0, classify("read the table", err)
	}
	return nil, 0, io.EOF
}

// Close ends the read.
func (r *Rows) Close(ctx context.Context) { hangUp(ctx, r.conn) }
