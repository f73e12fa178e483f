package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/replication"
)

// anchorEvery is how often the anchor is looked at; more often where the server gives up
// idle slots sooner.
const anchorEvery = 10 * time.Second

// anchor is what is known of the anchor; of the goroutine that keeps it, but for what is atomic.
type anchor struct {
	told    string    // what was said of it last
	touched time.Time // when it was moved last, or shown to be in use

	lsn, bytes, headroom, xids atomic.Int64 // as last asked
}

// keepAnchor keeps the anchor as far behind the saved position as is configured.
//
// It is moved in steps of a sixteenth of that distance: at each step the server reads the
// WAL from the oldest transaction on that was open at the anchor. It stands still while a replay is unfinished,
// and while one runs.
func (s *session) keepAnchor(ctx context.Context) {
	for {
		wait := anchorEvery
		a, err := s.pg.Anchor(ctx)
		switch missing := errors.As(err, new(*replication.ContinuityError)); {
		case s.cfg.Postgres.ReplayRetain == 0:
			if err == nil {
				s.sayOfAnchor(fmt.Sprintf("slot %q is an anchor for replays, and --replay-retain is off: nobody moves it, and the server keeps WAL for it without end; set --replay-retain, or drop it by `walrelay setup --drop-anchor`", a.Slot))
			}
			return
		case missing:
			s.sayOfAnchor("no replay is possible: " + err.Error())
		case err == nil:
			s.anchor.saw(a)
			if a.IdleTimeout > 0 {
				wait = min(wait, a.IdleTimeout/4)
			}
			release, free, why := s.holdReplays()
			s.sayOfAnchor(cmp.Or(why, s.worry(a)))
			err = s.moveAnchor(ctx, a, free)
			release()
		}
		if err != nil {
			s.log.Debug().Err(err).Msg("the anchor stays where it is")
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// sayOfAnchor warns of what is new.
func (s *session) sayOfAnchor(text string) {
	if text != s.anchor.told && text != "" {
		s.log.Warn().Msg(text)
	}
	s.anchor.told = text
}

// worry says what will invalidate the anchor.
func (s *session) worry(a replication.Anchor) string {
	switch retain := int64(s.cfg.Postgres.ReplayRetain); {
	case a.Limit >= 0 && a.Limit <= retain:
		return fmt.Sprintf("max_slot_wal_keep_size (%d bytes) is not above --replay-retain (%d): the server will give the anchor up; raise the one or lower the other", a.Limit, retain)
	case a.Headroom >= 0 && a.Headroom < a.Limit/10:
		return "less than a tenth of max_slot_wal_keep_size is left before the server gives the anchor up"
	}
	return ""
}

// moveAnchor moves the anchor if it is due and free to be moved; else it shows the server, if
// that is due, that the anchor is in use.
func (s *session) moveAnchor(ctx context.Context, a replication.Anchor, free bool) error {
	retain := pglogrepl.LSN(s.cfg.Postgres.ReplayRetain)
	_, saved := s.track.positions()
	to := a.LSN
	if free && saved.Safe > retain && saved.Safe-retain >= a.LSN+max(retain/16, 1) {
		to = saved.Safe - retain
	}
	if to == a.LSN && (a.IdleTimeout == 0 || time.Since(s.anchor.touched) < a.IdleTimeout/3) {
		return nil
	}
	err := s.pg.AdvanceAnchor(ctx, to)
	if err == nil {
		s.anchor.touched = time.Now()
		s.anchor.lsn.Store(int64(to))
	}
	return err
}

// holdReplays says whether no replay runs nor is unfinished, and if one is, what to tell of
// it; none begins before release.
func (s *session) holdReplays() (release func(), free bool, why string) {
	now, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	release, err := s.cfg.Replays.Lock(now)
	if err != nil {
		if now.Err() == nil {
			why = "the anchor stands still: " + err.Error()
		}
		return func() {}, false, why
	}
	run, err := s.cfg.Replays.Load()
	switch {
	case errors.Is(err, checkpoint.ErrNone):
		return release, true, ""
	case err != nil:
		return release, false, "the anchor stands still: " + err.Error()
	}
	return release, false, fmt.Sprintf("the anchor stands still, and the server keeps WAL for it, until replay %s is finished: run `walrelay replay %s`, or give it up by `walrelay replay --abandon`", run.RunID, run.Asked)
}

func (a *anchor) saw(at replication.Anchor) {
	a.lsn.Store(int64(at.LSN))
	a.bytes.Store(at.WALBytes)
	a.headroom.Store(at.Headroom)
	a.xids.Store(at.XIDs)
}

// register makes visible what the anchor costs.
func (a *anchor) register(reg prometheus.Registerer) {
	a.headroom.Store(-1)
	for _, g := range []struct {
		name, help string
		value      *atomic.Int64
	}{
		{"walrelay_anchor_lsn", "What commits from here on can be replayed, in bytes of WAL.", &a.lsn},
		{"walrelay_anchor_wal_bytes", "WAL that the server keeps for replays.", &a.bytes},
		{"walrelay_anchor_wal_headroom_bytes", "WAL that may still be written before the server gives the anchor up; -1: without limit, or not known yet.", &a.headroom},
		{"walrelay_anchor_xid_age", "Transactions since the oldest one whose catalog rows the anchor keeps from vacuum.", &a.xids},
	} {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help}, func() float64 { return float64(g.value.Load()) }))
	}
}
