package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// FreshSlot is a slot that was just created, and the snapshot that it exported: what the
// snapshot sees was committed before the slot's position, all else comes in its stream.
type FreshSlot struct {
	Confirmed pglogrepl.LSN
	Snapshot  string // for SET TRANSACTION SNAPSHOT, until Release

	conn *pgconn.PgConn
}

// Release ends the snapshot. A transaction that has taken it keeps it.
func (f *FreshSlot) Release(ctx context.Context) { hangUp(ctx, f.conn) }

// CreateSlot creates the slot; drop says that the one of its name is to be dropped before,
// which fails if a session holds it. It waits for the transactions that are writing now, as
// long as ctx lets it, and says whom it waits for.
func CreateSlot(ctx context.Context, cfg Config, drop bool) (*FreshSlot, error) {
	pc, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	// A creation that is given up must be cancelled: it would go on in the server.
	pc.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: 3 * time.Second}
	}
	watcher := pc.Copy()
	watcher.DialFunc = cfg.dial
	pc = pc.Copy()
	pc.RuntimeParams["replication"] = "database"
	pc.DialFunc = cfg.dial
	conn, err := pgconn.ConnectConfig(ctx, pc)
	if err != nil {
		return nil, classifyConnect("connect to Postgres", err)
	}
	fresh, err := createSlot(ctx, conn, cfg, watcher, drop)
	if err != nil {
		hangUp(context.WithoutCancel(ctx), conn)
	}
	return fresh, err
}

func createSlot(ctx context.Context, conn *pgconn.PgConn, cfg Config, watcher *pgconn.Config, drop bool) (*FreshSlot, error) {
	name := `"` + cfg.Slot + `"`
	if drop {
		err := pglogrepl.DropReplicationSlot(ctx, conn, name, pglogrepl.DropReplicationSlotOptions{})
		var pe *pgconn.PgError
		if err != nil && !(errors.As(err, &pe) && pe.Code == "42704") { // undefined_object: it is gone already
			return nil, classify(fmt.Sprintf("drop slot %q", cfg.Slot), err)
		}
	}
	watch, stop := context.WithCancel(ctx)
	seen := make(chan string)
	go func() { seen <- watchBlocker(watch, cfg, watcher, int32(conn.PID())) }()
	made, err := pglogrepl.CreateReplicationSlot(ctx, conn, name, "pgoutput", pglogrepl.CreateReplicationSlotOptions{
		Mode: pglogrepl.LogicalReplication, SnapshotAction: "EXPORT_SNAPSHOT",
	})
	stop()
	op := fmt.Sprintf("create slot %q", cfg.Slot)
	if who := <-seen; who != "" {
		op += ", which waits for the end of a transaction (" + who + ")"
	}
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.Code == "53400" { // configuration_limit_exceeded
		return nil, &SetupError{Reason: "replication: " + op + ": " + pe.Message,
			Remedy: "drop a slot that nobody uses, or raise max_replication_slots and restart Postgres"}
	}
	if err != nil {
		return nil, classify(op, err)
	}
	at, err := parseLSN([]byte(made.ConsistentPoint))
	return &FreshSlot{Confirmed: at, Snapshot: made.SnapshotName, conn: conn}, err
}
