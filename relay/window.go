package relay

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
)

// ReachError is returned for a window that cannot be shown again whole.
type ReachError struct {
	Reason   string
	From, To pglogrepl.LSN // what --from-lsn and --to-lsn may lie between, inclusive; zero: unknown, or nothing
	Remedy   string
}

func (e *ReachError) Error() string {
	text := "relay: replay: " + e.Reason
	if e.To != 0 {
		text += fmt.Sprintf("; reachable: %s to %s", e.From, e.To)
	}
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// errReopen asks for another session: the stream of this one was read to find the window.
var errReopen = errors.New("relay: the window is found")

// plan decides which window is replayed, and puts it on record. A window is
// [from, limit) in commit LSNs; what the live relay has delivered commits below its safe LSN.
func (p *Replay) plan(ctx context.Context, pg *replication.Session) error {
	live, err := p.delivered(ctx, pg)
	if err != nil {
		return err
	}
	lowest, highest := pg.Slot.Confirmed, live.Safe
	refuse := func(remedy, format string, args ...any) error {
		return &ReachError{Reason: fmt.Sprintf(format, args...), From: lowest, To: highest, Remedy: remedy}
	}
	if highest > pg.Server.WALEnd {
		return refuse("", "the server's WAL ends at %s, events up to %s were delivered: the cluster was restored to an earlier state", pg.Server.WALEnd, highest)
	}
	limit := highest
	if p.cfg.To != 0 {
		if p.cfg.To > highest {
			return refuse("wait for the relay, or leave --to-lsn out", "--to-lsn %s is beyond what is delivered", p.cfg.To)
		}
		limit = min(limit, p.cfg.To+1)
	}
	from := p.cfg.From
	if !p.cfg.FromTime.IsZero() {
		if p.found == 0 {
			if p.found, err = p.find(ctx, pg, limit); err != nil {
				return err
			}
			return errReopen
		}
		from = p.found
	}
	switch {
	case from < lowest:
		return refuse("what lies before is no longer kept; a larger --replay-retain keeps more from now on", "--from-lsn %s is before the anchor", from)
	case from > highest:
		return refuse("", "--from-lsn %s is beyond what is delivered", from)
	}
	start := checkpoint.Position{
		SystemID: pg.Server.SystemID, Timeline: pg.Server.Timeline, Slot: p.cfg.Postgres.Slot, Publication: p.cfg.Postgres.Publication,
		Safe: from, Trusted: from,
	}
	return p.begin(start, max(limit, from))
}

// delivered is the live relay's position: the checkpoint, or where there is none what
// the slot has confirmed.
func (p *Replay) delivered(ctx context.Context, pg *replication.Session) (checkpoint.Position, error) {
	if p.cfg.live != nil {
		return *p.cfg.live, nil
	}
	if p.cfg.Store != nil {
		p.cfg.Store.For(pg.Server.SystemID, p.cfg.Postgres.Slot)
		pos, err := p.cfg.Store.Load(ctx)
		if err == nil {
			err = p.sameWAL(pos, pg)
		}
		if !errors.Is(err, checkpoint.ErrNone) {
			return pos, err
		}
	}
	confirmed, err := pg.ConfirmedBy(ctx, p.cfg.Postgres.Slot)
	if err == nil && confirmed == 0 {
		err = &ReachError{Reason: fmt.Sprintf("there is neither a checkpoint nor slot %q to say what was delivered", p.cfg.Postgres.Slot),
			Remedy: "run it where the relay's --checkpoint is"}
	}
	return checkpoint.Position{Safe: confirmed}, err
}

// sameWAL checks that a position speaks of the WAL that the server has.
func (p *Replay) sameWAL(pos checkpoint.Position, pg *replication.Session) error {
	if err := pos.Belongs(pg.Server.SystemID, p.cfg.Postgres.Slot); err != nil {
		return err
	}
	if pos.Timeline != pg.Server.Timeline {
		return &ReachError{Reason: fmt.Sprintf("the server is on timeline %d, the saved position on timeline %d", pg.Server.Timeline, pos.Timeline),
			Remedy: "let `walrelay run` go on first: it proves what of that was delivered. A replay from before the promotion has to be given up (`walrelay replay --abandon`)"}
	}
	return nil
}

// find returns the commit LSN of the first transaction with outbox rows that was
// committed at FromTime or later, or limit if all were earlier. Commit times don't rise strictly with the
// LSN: two commits at once may have them a moment the wrong way round.
func (p *Replay) find(ctx context.Context, pg *replication.Session, limit pglogrepl.LSN) (pglogrepl.LSN, error) {
	if err := pg.Start(ctx, 0); err != nil {
		return 0, err
	}
	defer context.AfterFunc(ctx, pg.Wake)()
	p.cfg.Decoder.Table = pg.Catalog.Table
	p.cfg.Decoder.Start("")
	rows := newBatch(0)
	earlier := false // a transaction from before FromTime came by
	for {
		m, err := pg.Next()
		if err != nil {
			return 0, fmt.Errorf("%w: %w", errConnection, err)
		}
		switch m.Kind {
		case replication.Data:
		case replication.Keepalive:
			if _, open := p.cfg.Decoder.Txn(); !open && m.WALEnd >= limit {
				return limit, nil
			}
			continue
		default:
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			continue
		}
		kind, err := p.cfg.Decoder.Decode(m.WAL, rows.Batch)
		if err != nil {
			return 0, err
		}
		t, _ := p.cfg.Decoder.Txn()
		switch {
		case kind == decode.Begin && t.Commit >= limit, kind == decode.Commit && t.End >= limit:
			return limit, nil
		case kind != decode.Row:
		case t.Time.Before(p.cfg.FromTime):
			rows.DropLast()
			earlier = true
		case !earlier:
			return 0, &ReachError{
				Reason: fmt.Sprintf("the first transaction after the anchor was committed at %s: whether there was one between --from-time and that cannot be told", t.Time.UTC().Format(time.RFC3339Nano)),
				From:   pg.Slot.Confirmed, To: limit, Remedy: "give a later --from-time, or --from-lsn " + pg.Slot.Confirmed.String() + " for all there is",
			}
		default:
			return t.Commit, nil
		}
	}
}

// keeps says whether the filter chooses an event.
func (f Filter) keeps(ev *decode.Event, eventType []byte) bool {
	has := func(list []string, v []byte) bool {
		return len(list) == 0 || v != nil && slices.Contains(list, string(v))
	}
	byGlob := func(glob string) bool { ok, _ := path.Match(glob, ev.Topic); return ok }
	return has(f.Keys, ev.Key) && has(f.EventTypes, eventType) && (len(f.Topics) == 0 || slices.ContainsFunc(f.Topics, byGlob))
}
