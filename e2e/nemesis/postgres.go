package nemesis

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walrelay/walrelay/e2e/proxy"
	"github.com/walrelay/walrelay/e2e/stack"
	"github.com/walrelay/walrelay/e2e/workload"
)

var postgresFaults = []fault{
	{name: "postgres crashes", lane: postgres, weight: 3, least: 0, most: 2 * time.Second, do: downBy((*world).crashPostgres)},
	{name: "postgres killed", lane: postgres, weight: 2, least: 0, most: 2 * time.Second, do: downBy((*world).killPostgres)},
	{name: "postgres shut down fast", lane: postgres, weight: 3, least: 0, most: 2 * time.Second, do: downBy((*world).shutDownPostgres)},
	{name: "postgres paused", lane: postgres, weight: 2, least: 200 * time.Millisecond, most: 8 * time.Second, do: (*world).pausePostgres},
	{name: "walsender terminated", lane: postgres, weight: 2, do: (*world).terminateWalsender},
	{name: "all relays' sessions terminated", lane: postgres, weight: 1, do: (*world).terminateAll},
	{name: "link to postgres cut", lane: postgres, weight: 3, do: cut(pgProxy)},
	{name: "link to postgres half-open", lane: postgres, weight: 3, least: 300 * time.Millisecond, most: 9 * time.Second, do: stall(pgProxy)},
	{name: "link to postgres slow", lane: postgres, weight: 2, least: time.Second, most: 4 * time.Second, do: slow(pgProxy)},
	{name: "link to postgres cut in a message", lane: postgres, weight: 2, least: time.Second, most: 2 * time.Second, do: cutInside(pgProxy, 20_000)},
	{name: "postgres unreachable", lane: postgres, weight: 2, least: 300 * time.Millisecond, most: 4 * time.Second, do: refuse(pgProxy)},
	{name: "postgres' disk full", lane: postgres, weight: 1, least: 500 * time.Millisecond, most: 3 * time.Second, do: (*world).fillPostgres, disk: true},
	{name: "a large transaction", lane: postgres, weight: 2, do: (*world).bulk},
}

func pgProxy(w *world, _ Step) *proxy.Proxy { return w.pg.Proxy }

// downBy is a fault after which Postgres is started again.
func downBy(down func(w *world) error) func(w *world, s Step) (func() error, error) {
	return func(w *world, _ Step) (func() error, error) {
		if err := down(w); err != nil {
			return nil, err
		}
		return func() error { return w.pg.Start(w.ctx) }, nil
	}
}

func (w *world) crashPostgres() error { return w.pg.Stop(w.ctx, stack.Immediate) }
func (w *world) killPostgres() error  { return w.pg.Kill() }

// shutDownPostgres is a fast shutdown, which no relay may hold up for long (G8).
func (w *world) shutDownPostgres() error {
	ctx, cancel := context.WithTimeout(w.ctx, 40*time.Second)
	defer cancel()
	if err := w.pg.Stop(ctx, stack.Fast); err != nil {
		w.violated("G8: Postgres' shutdown hangs: %v", err)
		return w.pg.Stop(w.ctx, stack.Immediate)
	}
	return nil
}

func (w *world) pausePostgres(Step) (func() error, error) {
	w.pg.Pause()
	return func() error { w.pg.Resume(); return nil }, nil
}

func (w *world) terminateWalsender(Step) (func() error, error) {
	return nil, w.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active", name)
}

func (w *world) terminateAll(Step) (func() error, error) {
	return nil, w.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'walrelay%'")
}

func (w *world) sql(query string, args ...any) error {
	ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.pg.Direct(name))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, query, args...)
	return err
}

// fillPostgres leaves the server no room for WAL: it goes down by itself, sooner or later.
func (w *world) fillPostgres(Step) (func() error, error) {
	free, err := fill(w.pg.DataDir())
	if err != nil {
		return nil, err
	}
	return func() error {
		if err := free(); err != nil {
			return err
		}
		if err := w.pg.Stop(w.ctx, stack.Immediate); err != nil {
			return err
		}
		return w.pg.Start(w.ctx)
	}, nil
}

// bulk is load, not a fault: more than the relay may hold, in one transaction.
func (w *world) bulk(s Step) (func() error, error) {
	return nil, workload.Bulk(w.ctx, w.pg.Direct(name), table, w.types[s.A%len(w.types)], "bulk-"+s.At.String()+"-", 1000+40*s.B, 300)
}

// Faults of links, in front of either server.

type target func(w *world, s Step) *proxy.Proxy

func direction(s Step) proxy.Direction {
	return []proxy.Direction{proxy.Up, proxy.Down, proxy.Both}[s.B%3]
}

func cut(of target) func(w *world, s Step) (func() error, error) {
	return func(w *world, s Step) (func() error, error) {
		of(w, s).Cut()
		return nil, nil
	}
}

// held is a fault of a link until it is told to pass; ended says what ends it beside.
func held(of target, begin func(p *proxy.Proxy, s Step), ended func(p *proxy.Proxy, s Step)) func(w *world, s Step) (func() error, error) {
	return func(w *world, s Step) (func() error, error) {
		p := of(w, s)
		begin(p, s)
		return func() error {
			if ended != nil {
				ended(p, s)
			}
			p.Pass()
			return nil
		}, nil
	}
}

// stall is half-open: nothing moves, nothing fails. At its end what was sent meanwhile
// arrives, or the link is found to be dead.
func stall(of target) func(w *world, s Step) (func() error, error) {
	return held(of, func(p *proxy.Proxy, s Step) { p.Set(direction(s), proxy.Fault{Stall: true}) },
		func(p *proxy.Proxy, s Step) {
			if s.A%2 == 0 {
				p.Cut()
			}
		})
}

func slow(of target) func(w *world, s Step) (func() error, error) {
	return held(of, func(p *proxy.Proxy, s Step) {
		f := proxy.Fault{Delay: time.Duration(20+5*s.A) * time.Millisecond}
		if s.A%2 == 0 {
			f = proxy.Fault{Rate: 20_000 + 2000*s.A}
		}
		p.Set(direction(s), f)
	}, nil)
}

func cutInside(of target, within int) func(w *world, s Step) (func() error, error) {
	return held(of, func(p *proxy.Proxy, s Step) {
		p.Set(proxy.Direction(s.B%2), proxy.Fault{ResetAfter: 1 + s.A*within/64})
	}, nil)
}

func refuse(of target) func(w *world, s Step) (func() error, error) {
	return held(of, func(p *proxy.Proxy, s Step) {
		p.Refuse(true)
		p.Cut()
	}, nil)
}
