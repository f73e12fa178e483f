package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// connectTimeout applies where the connection string names none.
const connectTimeout = 10 * time.Second

// session are the settings that fix how the server renders values as text, so
// that the same row always has the same bytes, and how it reads ours.
var session = map[string]string{
	"client_encoding":               "UTF8",
	"TimeZone":                      "UTC",
	"DateStyle":                     "ISO, MDY",
	"IntervalStyle":                 "postgres",
	"extra_float_digits":            "3",
	"bytea_output":                  "hex",
	"standard_conforming_strings":   "on",
	"search_path":                   "pg_catalog",
	"default_transaction_read_only": "off",
}

// foreign are libpq's parameters that this driver would hand to the server as
// settings. Each is safe to leave out: it only tunes the socket.
var foreign = []string{
	"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
	"gssencmode", "fallback_application_name", "load_balance_hosts",
}

// parse reads the configuration without any I/O but libpq's files.
func (cfg Config) parse() (*pgconn.Config, error) {
	if err := checkSlot(cfg.Slot); err != nil {
		return nil, &SetupError{Reason: fmt.Sprintf("slot name %q: %v", cfg.Slot, err), Remedy: "set --slot"}
	}
	if err := checkSlot(AnchorSlot(cfg.Slot)); err != nil && cfg.ReplayRetain > 0 {
		return nil, &SetupError{Reason: fmt.Sprintf("slot name %q: %v", AnchorSlot(cfg.Slot), err), Remedy: "--replay-retain needs a --slot of at most 56 bytes"}
	}
	if err := checkIdent(cfg.Publication); err != nil {
		return nil, &SetupError{Reason: fmt.Sprintf("publication name %q: %v", cfg.Publication, err), Remedy: "set --publication"}
	}
	for _, part := range []string{cfg.Table.Schema, cfg.Table.Name} {
		if err := checkIdent(part); err != nil {
			return nil, &SetupError{Reason: fmt.Sprintf("table name %s: %v", cfg.Table, err), Remedy: "set --table"}
		}
	}
	pc, err := pgconn.ParseConfig(cfg.URL)
	if err != nil {
		return nil, &SetupError{Reason: "the Postgres connection string can't be used: " + parseReason(err),
			Remedy: "set --postgres-url to postgres://USER@HOST:PORT/DATABASE or to libpq's keywords"}
	}
	if pc.ConnectTimeout == 0 {
		pc.ConnectTimeout = connectTimeout
	}
	for _, name := range foreign {
		delete(pc.RuntimeParams, name)
	}
	if pc.RuntimeParams["application_name"] == "" {
		pc.RuntimeParams["application_name"] = "walrelay"
	}
	maps.Copy(pc.RuntimeParams, session)
	pc.MaxProtocolMessageBodyLen = maxAnswer
	if pc.ValidateConnect == nil && manyHosts(pc) {
		// A standby can't serve us. Where another host may be the primary, go on to it.
		pc.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	return pc, nil
}

// maxAnswer bounds what the driver reads: all but the stream, which it does not read. The
// largest answer is the list of a table's columns.
const maxAnswer = 16 << 20

// manyHosts tells several hosts from the repetition that sslmode=prefer makes.
func manyHosts(pc *pgconn.Config) bool {
	for _, fb := range pc.Fallbacks {
		if fb.Host != pc.Host || fb.Port != pc.Port {
			return true
		}
	}
	return false
}

// parseReason says why a connection string is refused, without the string: the
// driver hides passwords as well as it can, which is not always.
func parseReason(err error) string {
	if inner := errors.Unwrap(err); inner != nil && !strings.Contains(inner.Error(), "://") {
		return inner.Error()
	}
	if _, reason, ok := strings.Cut(err.Error(), "`: "); ok && !strings.Contains(reason, "://") {
		return reason
	}
	return "it is malformed"
}

// dialer keeps an idle link's state alive in routers, and finds a dead peer when
// the stream's own checks can't.
var dialer = net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}}

func (cfg Config) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if cfg.Dial != nil {
		return cfg.Dial(ctx, network, addr)
	}
	return dialer.DialContext(ctx, network, addr)
}

// connectStream opens the replication connection. The socket is the one below
// TLS that it ended up with.
func connectStream(ctx context.Context, cfg Config, pc *pgconn.Config) (*pgconn.PgConn, *socket, error) {
	var sock *socket
	pc = pc.Copy()
	pc.RuntimeParams["replication"] = "database"
	pc.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		sock.in = &inbox{from: r}
		return pgproto3.NewFrontend(sock.in, w)
	}
	conn, err := connect(ctx, pc, func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := cfg.dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		sock = &socket{Conn: c, network: network, addr: addr}
		return sock, nil
	})
	if err != nil {
		return nil, nil, classifyConnect("connect to Postgres", err)
	}
	sock.plain = conn.Conn() == net.Conn(sock)
	return conn, sock, nil
}

// connect is pgconn.ConnectConfig with a dial that serves only it: the driver would
// dial again, behind our back, to cancel what a broken connection was doing.
func connect(ctx context.Context, pc *pgconn.Config, dial pgconn.DialFunc) (*pgconn.PgConn, error) {
	var done atomic.Bool
	defer done.Store(true)
	pc.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if done.Load() {
			return nil, net.ErrClosed
		}
		return dial(ctx, network, addr)
	}
	return pgconn.ConnectConfig(ctx, pc)
}

// hangUp closes a connection. It returns when nothing of it is left: the driver
// may have closed it before, and be draining it in a goroutine of its own.
func hangUp(ctx context.Context, conn *pgconn.PgConn) {
	conn.Close(ctx)
	conn.Conn().Close()
	<-conn.CleanupDone()
}

// errOtherServer keeps the side connection off the other hosts of the
// connection string.
var errOtherServer = errors.New("not the server that the stream comes from")

// connectSide opens an ordinary connection to the server that sock is connected
// to, with a limit on what a statement may take.
func connectSide(ctx context.Context, cfg Config, pc *pgconn.Config, sock *socket) (*pgconn.PgConn, error) {
	pc = pc.Copy()
	pc.RuntimeParams["statement_timeout"] = "10s"
	conn, err := connect(ctx, pc, func(ctx context.Context, network, addr string) (net.Conn, error) {
		if network != sock.network || addr != sock.addr {
			return nil, errOtherServer
		}
		return cfg.dial(ctx, network, addr)
	})
	if err != nil {
		return nil, classifyConnect("connect to Postgres beside the stream", err)
	}
	return conn, nil
}

// row runs one statement by the simple protocol and returns its only row, nil
// where there is none. A nil value is NULL.
func row(ctx context.Context, conn *pgconn.PgConn, sql string) ([][]byte, error) {
	var only [][]byte
	results, rows := 0, 0
	reader := conn.Exec(ctx, sql)
	for reader.NextResult() {
		results++
		for r := reader.ResultReader(); r.NextRow(); rows++ {
			only = only[:0]
			for _, v := range r.Values() {
				only = append(only, bytes.Clone(v))
			}
		}
	}
	if err := reader.Close(); err != nil {
		return nil, err
	}
	if results != 1 || rows > 1 {
		return nil, fmt.Errorf("unexpected shape of the answer to: %s", sql)
	}
	if rows == 0 {
		return nil, nil
	}
	return only, nil
}
