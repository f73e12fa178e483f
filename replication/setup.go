package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// Setup creates what is missing of the plan and leaves alone what is there. It
// returns the steps as far as they went, also beside an error. What differs from
// the plan but works is noted; what doesn't work is a *SetupError with the SQL
// that mends it; what needs more privileges is an *AuthError with the SQL to run.
func Setup(ctx context.Context, cfg Config, opts SetupOptions) ([]Step, error) {
	steps, err := Plan(cfg, opts)
	if err != nil {
		return nil, err
	}
	pc, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	pc.DialFunc = cfg.dial
	// A slot creation that is given up must be cancelled: it would go on in the
	// server, and leave a slot behind that nobody knows of.
	pc.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: 3 * time.Second}
	}
	conn, err := pgconn.ConnectConfig(ctx, pc)
	if err != nil {
		return nil, classifyConnect("connect to Postgres", err)
	}
	defer hangUp(context.WithoutCancel(ctx), conn)

	in := &installer{cfg: cfg, pc: pc, conn: conn}
	if in.server, in.pid, _, err = readServer(ctx, conn, in.query); err != nil {
		return nil, err
	}
	return steps, in.run(ctx, steps)
}

type installer struct {
	cfg    Config
	pc     *pgconn.Config
	conn   *pgconn.PgConn
	server Server
	pid    int32

	denied    []Step // for want of privileges
	deniedErr error
	published bool // the publication is as it should be
	fresh     bool // and was not there before
}

func (in *installer) query(ctx context.Context, sql string) ([][]byte, error) {
	got, err := row(ctx, in.conn, sql)
	if err != nil {
		err = classify("set up", err)
	}
	return got, err
}

func (in *installer) run(ctx context.Context, steps []Step) error {
	for i := range steps {
		step := &steps[i]
		kind, _, _ := strings.Cut(step.Name, " ")
		if (kind == "slot" || kind == "anchor" && !step.Drop) && !in.published {
			in.denied = append(in.denied, *step) // it must not be older than the publication
			continue
		}
		if err := in.make(ctx, step, kind); err != nil {
			return err
		}
		if err := in.inspect(ctx, step, kind); err != nil {
			return err
		}
	}
	if in.denied == nil {
		return nil
	}
	var names, sql []string
	for _, step := range in.denied {
		names, sql = append(names, step.Name), append(sql, step.SQL+";")
	}
	return &AuthError{Op: "replication: set up " + strings.Join(names, ", "), Err: in.deniedErr,
		Remedy: "have a privileged role run:\n" + strings.Join(sql, "\n")}
}

// make runs a step unless what it makes is there. A lack of privileges is noted,
// and ends nothing: other steps may need less.
func (in *installer) make(ctx context.Context, step *Step, kind string) error {
	got, err := in.query(ctx, step.exists)
	if err != nil {
		return err
	}
	if step.Done = got != nil; step.Done {
		return nil
	}
	op := "set up " + step.Name
	if kind == "slot" {
		var blocker string
		if blocker, err = in.createSlot(ctx, step); blocker != "" {
			op += ", which waits for the end of a transaction (" + blocker + ")"
		}
	} else {
		_, err = in.conn.Exec(ctx, step.SQL).ReadAll()
	}
	var pe *pgconn.PgError
	switch {
	case err == nil:
		step.Made = true
		return nil
	case errors.As(err, &pe) && pe.Code == "42501": // insufficient_privilege
		in.denied = append(in.denied, *step)
		if in.deniedErr == nil {
			in.deniedErr = serverError{pe}
		}
		return nil
	case errors.As(err, &pe) && in.denied != nil && (pe.Code == "42P01" || pe.Code == "3F000" || pe.Code == "42704"):
		in.denied = append(in.denied, *step) // undefined table, schema or role: the step that makes it was denied
		return nil
	case errors.As(err, &pe) && (pe.Code == "42P01" || pe.Code == "3F000"):
		return &SetupError{Reason: "replication: set up " + step.Name + ": " + pe.Message,
			Remedy: "create the table with `walrelay setup --create-table`, or name yours with --table"}
	case errors.As(err, &pe) && pe.Code == "53400": // configuration_limit_exceeded
		return &SetupError{Reason: "replication: set up " + step.Name + ": " + pe.Message,
			Remedy: "drop a slot that nobody uses, or raise max_replication_slots and restart Postgres"}
	}
	return classify(op, err)
}

// inspect looks at what is there now.
func (in *installer) inspect(ctx context.Context, step *Step, kind string) error {
	if !step.Done && !step.Made || step.Drop {
		return nil
	}
	switch kind {
	case "publication":
		cat, err := readCatalog(ctx, in.query, in.cfg, in.server.Version)
		if err != nil {
			return mustMend(err)
		}
		step.Note = strings.Join(cat.warnings, "; ")
		in.published, in.fresh = true, step.Made
	case "slot":
		slot, err := readSlot(ctx, in.query, in.cfg.Slot, in.server.Database, in.pid)
		switch {
		case errors.Is(err, ErrSlotInUse):
			step.Note = "in use"
		case err != nil:
			return mustMend(err)
		default:
			step.Note = "at " + slot.Confirmed.String()
		}
		return in.younger(step, in.cfg.Slot)
	case "anchor":
		anchor, err := readAnchor(ctx, in.query, in.cfg, in.server.Database, in.pid)
		if err != nil {
			return mustMend(err)
		}
		step.Note = "at " + anchor.LSN.String()
		if anchor.Limit >= 0 && anchor.Limit <= int64(in.cfg.ReplayRetain) {
			step.Note += "; max_slot_wal_keep_size (" + strconv.FormatInt(anchor.Limit, 10) + " bytes) is not above --replay-retain: the server will give it up"
		}
		return in.younger(step, anchor.Slot)
	case "role":
		got, err := in.query(ctx, step.exists+" AND rolcanlogin AND (rolreplication OR rolsuper)")
		if err == nil && got == nil {
			return &SetupError{Reason: "replication: " + step.Name + " exists and may not stream",
				Remedy: "ALTER ROLE " + strings.TrimPrefix(step.Name, "role ") + " LOGIN REPLICATION; and run `walrelay setup` again"}
		}
		return err
	}
	return nil
}

// younger refuses a slot that was there before its publication.
func (in *installer) younger(step *Step, slot string) error {
	if !step.Done || !in.fresh {
		return nil
	}
	return &SetupError{
		Reason: fmt.Sprintf("replication: slot %q is older than publication %q: it can't get past the WAL in between", slot, in.cfg.Publication),
		Remedy: "drop it (SELECT pg_drop_replication_slot(" + quoteLiteral(slot) + ")) and run `walrelay setup` again",
	}
}

// mustMend turns what breaks continuity in a running relay into what a setup says.
func mustMend(err error) error {
	if ce := (*ContinuityError)(nil); errors.As(err, &ce) {
		return &SetupError{Reason: ce.Reason, Remedy: cmp.Or(ce.Remedy, ce.Fault.commands("LSN"))}
	}
	return err
}

// blockedAfter is when a slot creation that takes long says what it waits for.
const blockedAfter = 2 * time.Second

// createSlot waits, as long as ctx lets it, for the transactions that were open
// when it began; blocker is the last one that it was seen to wait for.
func (in *installer) createSlot(ctx context.Context, step *Step) (blocker string, err error) {
	watch, stop := context.WithCancel(ctx)
	seen := make(chan string)
	go func() { seen <- watchBlocker(watch, in.cfg, in.pc, in.pid) }()
	_, err = in.conn.Exec(ctx, step.SQL).ReadAll()
	stop()
	return <-seen, err
}

// watchBlocker reports and returns the newest transaction that was seen to hold
// up the backend pid of ours, until ctx ends.
func watchBlocker(ctx context.Context, cfg Config, pc *pgconn.Config, pid int32) (who string) {
	tick := time.NewTicker(blockedAfter)
	defer tick.Stop()
	var conn *pgconn.PgConn
	defer func() {
		if conn != nil {
			hangUp(context.WithoutCancel(ctx), conn)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return who
		case <-tick.C:
		}
		if conn == nil {
			var err error
			if conn, err = pgconn.ConnectConfig(ctx, pc); err != nil {
				conn = nil
				continue
			}
		}
		got, err := row(ctx, conn, fmt.Sprintf(`SELECT CASE b.pid WHEN 0 THEN 'a prepared transaction (see pg_prepared_xacts)'`+
			` ELSE concat_ws(', ', 'pid ' || b.pid, usename, nullif(application_name, ''), state, 'open for ' || date_trunc('second', now() - xact_start)) END`+
			` FROM unnest(pg_blocking_pids(%d)) b(pid) LEFT JOIN pg_stat_activity a ON a.pid = b.pid LIMIT 1`, pid))
		if err == nil && got != nil && string(got[0]) != who {
			if who == "" {
				cfg.Log.Warn().Str("slot", cfg.Slot).Str("waits_for", string(got[0])).Msg("slot creation waits for an open transaction")
			}
			who = string(got[0])
		}
	}
}
