package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// gauges look at both ends and at the relay five times a second, from the outside, and
// show it in the footer; where there is no terminal, in a line every three seconds.
type gauges struct {
	*demo
	began time.Time
	stop  context.CancelFunc
	done  chan struct{}

	// owned by the goroutine
	conn   *pgx.Conn
	server server
	lags   []int64
	log    int             // bytes of the relay's log that were shown
	shown  map[string]bool // lines, without their time
	said   time.Time
}

// server is what Postgres says of itself.
type server struct {
	up             bool
	confirmed, end string
	lag            int64
}

func (d *demo) watch() *gauges {
	ctx, stop := context.WithCancel(context.Background())
	g := &gauges{demo: d, began: time.Now(), shown: map[string]bool{}, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(g.done)
		g.run(ctx)
	}()
	return g
}

func (g *gauges) close() {
	g.stop()
	<-g.done
}

func (g *gauges) run(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		g.server = g.ask(ctx)
		g.lags = append(g.lags, g.server.lag)
		g.lags = g.lags[max(0, len(g.lags)-30):]
		g.showLog()
		g.show(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	g.showLog()
	if g.conn != nil {
		g.conn.Close(context.Background())
	}
}

// ask reads the slot's confirmed LSN and the end of the WAL.
func (g *gauges) ask(ctx context.Context) (s server) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if g.conn == nil || g.conn.IsClosed() {
		conn, err := pgx.Connect(ctx, g.pg.Direct(database))
		if err != nil {
			return server{}
		}
		g.conn = conn
	}
	err := g.conn.QueryRow(ctx, `SELECT coalesce(confirmed_flush_lsn::text, ''), pg_current_wal_lsn()::text, coalesce((pg_current_wal_lsn() - confirmed_flush_lsn)::bigint, 0)
		FROM pg_replication_slots WHERE slot_name = 'walrelay'`).Scan(&s.confirmed, &s.end, &s.lag)
	s.up = err == nil
	return s
}

// showLog prints what the relay has logged since, but nothing twice.
func (g *gauges) showLog() {
	log := g.relay.Log()
	end := strings.LastIndexByte(log, '\n') + 1
	if end <= g.log {
		return
	}
	for line := range strings.SplitSeq(strings.TrimSpace(log[g.log:end]), "\n") {
		if text := logLine(g.view, line); !g.shown[text] {
			g.shown[text] = true
			g.view.say("%s", text)
		}
	}
	g.log = end
}

func (g *gauges) show(ctx context.Context) {
	committed, takenBack := g.shop.counts()
	c := g.consumer.counts()
	counts := fmt.Sprintf("committed %s   delivered %s   taken back %s   duplicates %s", number(committed), number(c.events()), number(takenBack), number(c.repeats))
	positions := "Postgres does not answer"
	if g.server.up {
		positions = fmt.Sprintf("confirmed LSN %s   WAL end %s   lag %s", g.server.confirmed, g.server.end, size(g.server.lag))
	}
	relay, reason := g.readiness(ctx)
	if !g.view.Live {
		if time.Since(g.said) >= 3*time.Second {
			g.said = time.Now()
			g.view.say("  %s   %s%s", counts, positions, reason)
		}
		return
	}
	g.view.status(
		g.view.paint(dim, strings.Repeat("─", 78)),
		"  "+strings.Join([]string{g.light("Postgres", g.server.up), relay, g.light(g.kafkaName(), g.kafkaUp.Load())}, g.view.paint(dim, " ──▶ "))+
			g.view.paint(dim, "   "+time.Since(g.began).Round(time.Second).String()+reason),
		"  "+counts,
		"  "+positions+" "+g.view.paint(cyan, sparkline(g.lags)))
}

func (g *gauges) light(name string, up bool) string {
	if up {
		return g.view.paint(green, "●") + " " + name
	}
	return g.view.paint(red, "○") + " " + name
}

// readiness is the relay's light: green where /readyz is 200, yellow where it is not and
// gives a reason.
func (g *gauges) readiness(ctx context.Context) (light, reason string) {
	err := g.relay.Ready(ctx)
	if err == nil || !strings.HasPrefix(err.Error(), "/readyz") { // nobody listens
		return g.light("walrelay", err == nil), ""
	}
	return g.view.paint(yellow, "◐") + " walrelay", "   " + err.Error()
}
