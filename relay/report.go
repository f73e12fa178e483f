package relay

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/walrelay/walrelay/checkpoint"
	"github.com/walrelay/walrelay/replication"
)

// Report is where a relay stands, seen from outside of it. As JSON its names stay as they
// are, and what is not known is null.
type Report struct {
	Time       time.Time       `json:"time"`  // by the server's clock
	State      State           `json:"state"` // of the slot
	Server     ReportServer    `json:"server"`
	Source     string          `json:"source"` // header walrelay-source of events from this cluster, timeline and slot
	Slot       *ReportSlot     `json:"slot"`
	Holder     *ReportHolder   `json:"holder"`
	Checkpoint *ReportPosition `json:"checkpoint"`
	Delivered  LSN             `json:"delivered_lsn"` // the highest of what relay, checkpoint and slot say
	Lag        ReportLag       `json:"lag"`
	Replay     *ReportWindow   `json:"replay"`
	Relay      *Live           `json:"relay"`
	RelayError string          `json:"relay_error"` // why there is nothing to say of the relay
}

// State is what a slot is doing.
type State string

const (
	Streaming State = "streaming" // somebody reads from it
	Stopped   State = "stopped"   // nobody does
	Lost      State = "lost"      // the server gave it up
	Missing   State = "missing"   // it does not exist
	Standby   State = "standby"   // the server is none to stream from
)

type ReportServer struct {
	Version  string `json:"version"`
	Database string `json:"database"`
	SystemID string `json:"system_id"`
	Timeline int32  `json:"timeline"`
	WALEnd   LSN    `json:"wal_end_lsn"`
}

type ReportSlot struct {
	Name      string `json:"name"`
	Confirmed LSN    `json:"confirmed_lsn"`
	Restart   LSN    `json:"restart_lsn"`
	WALStatus string `json:"wal_status"`
	Invalid   string `json:"invalidation_reason"`
	Retained  int64  `json:"retained_bytes"` // WAL that the server keeps for it
	Headroom  *int64 `json:"headroom_bytes"` // WAL until the server gives it up; null: without limit
}

type ReportHolder struct {
	PID         int32      `json:"pid"`
	Application string     `json:"application"`
	User        string     `json:"user"`
	Address     string     `json:"address"`
	Since       *time.Time `json:"since"`
	State       string     `json:"state"`
}

type ReportPosition struct {
	Store      string     `json:"store"`
	Safe       LSN        `json:"safe_lsn"`
	Commit     LSN        `json:"last_commit_lsn"` // of the last transaction that is delivered whole
	Committed  *time.Time `json:"last_commit_time"`
	OpenCommit LSN        `json:"open_commit_lsn"` // of the one that is delivered in part
	OpenRows   uint64     `json:"open_rows"`
	Error      string     `json:"error"` // why it can't be used; empty where there simply is none
}

// ReportLag is what is written and not delivered.
type ReportLag struct {
	Bytes   *int64     `json:"bytes"`             // of WAL, other tables' too
	Events  *int64     `json:"events"`            // rows of the outbox table, about
	Exact   bool       `json:"events_exact"`      // not about
	Capped  bool       `json:"events_capped"`     // there are more
	Seconds *float64   `json:"seconds"`           // age of the oldest of them
	Oldest  *string    `json:"oldest_event_id"`   // its id,
	Written *time.Time `json:"oldest_event_time"` // and its time
	Unknown string     `json:"events_unknown"`    // why they are not known
}

// ReportWindow is what a replay can reach: transactions that commit in [From, To].
type ReportWindow struct {
	Anchor string `json:"anchor"`
	From   LSN    `json:"from_lsn"`
	To     LSN    `json:"to_lsn"`
	Lost   bool   `json:"lost"`
}

// Sources are where a report comes from.
type Sources struct {
	Server *replication.Observer
	Config Config                               // Postgres, Decoder and Store
	Place  string                               // of the store, for people
	Ask    func(context.Context) (*Live, error) // the relay itself; nil: it can't be asked
}

// Look makes a report. Its errors are those of the server, without which there is nothing to tell.
func (from Sources) Look(ctx context.Context) (*Report, error) {
	v, err := from.Server.Look(ctx)
	if err != nil {
		return nil, err
	}
	r := newReport(v, from.Config.Postgres.Slot)
	pos := from.position(ctx, r)
	from.ask(ctx, r)
	r.settle(v, pos)
	if !r.Lag.Exact {
		from.count(ctx, r, v, pos)
	}
	r.age(v.Now)
	return r, nil
}

func newReport(v *replication.View, slot string) *Report {
	r := &Report{
		Time:   v.Now.UTC(),
		State:  Stopped,
		Server: ReportServer{Version: v.Version, Database: v.Database, SystemID: v.SystemID, Timeline: v.Timeline, WALEnd: LSN(v.WALEnd)},
		Source: checkpoint.Position{SystemID: v.SystemID, Timeline: v.Timeline, Slot: slot}.Source(),
	}
	if s := v.Slot; s != nil {
		r.Slot = &ReportSlot{Name: s.Name, Confirmed: LSN(s.Confirmed), Restart: LSN(s.Restart), WALStatus: s.WALStatus, Invalid: s.Invalid, Headroom: s.Headroom}
		if s.Restart != 0 && s.WALStatus != "lost" {
			r.Slot.Retained = max(int64(v.WALEnd)-int64(s.Restart), 0)
		}
	}
	if h := v.Holder; h != nil {
		r.Holder = &ReportHolder{PID: h.PID, Application: h.Application, User: h.User, Address: h.Address, State: h.State}
		if !h.Since.IsZero() {
			since := h.Since.UTC()
			r.Holder.Since = &since
		}
	}
	switch {
	case v.Standby:
		r.State = Standby
	case v.Slot == nil:
		r.State = Missing
	case v.Slot.WALStatus == "lost":
		r.State = Lost
	case v.Holder != nil:
		r.State = Streaming
	}
	return r
}

// position loads what is saved; zero where that says nothing about this slot.
func (from Sources) position(ctx context.Context, r *Report) checkpoint.Position {
	if from.Config.Store == nil {
		return checkpoint.Position{}
	}
	r.Checkpoint = &ReportPosition{Store: from.Place}
	from.Config.Store.For(r.Server.SystemID, from.Config.Postgres.Slot)
	pos, err := from.load(ctx)
	if err == nil {
		err = pos.Belongs(r.Server.SystemID, from.Config.Postgres.Slot)
	}
	if err != nil {
		if !errors.Is(err, checkpoint.ErrNone) {
			r.Checkpoint.Error = err.Error()
		}
		return checkpoint.Position{}
	}
	c := r.Checkpoint
	c.Safe, c.Commit, c.OpenCommit, c.OpenRows = LSN(pos.Safe), LSN(pos.Last.Commit), LSN(pos.Open.Commit), pos.Open.Rows
	if !pos.Last.Time.IsZero() {
		at := pos.Last.Time.UTC()
		c.Committed = &at
	}
	return pos
}

// load doesn't wait for a store in Kafka as long as ctx would let it: there is more to tell.
func (from Sources) load(ctx context.Context) (checkpoint.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return from.Config.Store.Load(ctx)
}

// ask takes in what the relay says, if it is the one of this slot.
func (from Sources) ask(ctx context.Context, r *Report) {
	if from.Ask == nil {
		return
	}
	live, err := from.Ask(ctx)
	switch {
	case err != nil:
		r.RelayError = err.Error()
	case live.Slot != from.Config.Postgres.Slot || live.SystemID != "" && live.SystemID != r.Server.SystemID:
		r.RelayError = live.Address + ": the relay of another slot or cluster answers there"
	default:
		r.Relay = live
	}
}

// settle tells how far delivery is, and what of that follows without a count.
func (r *Report) settle(v *replication.View, pos checkpoint.Position) {
	r.Delivered = LSN(pos.Safe)
	if r.Slot != nil {
		r.Delivered = max(r.Delivered, r.Slot.Confirmed)
	}
	if r.Relay != nil {
		r.Delivered = max(r.Delivered, r.Relay.Delivered)
	}
	if r.Delivered != 0 {
		bytes := max(int64(r.Server.WALEnd)-int64(r.Delivered), 0)
		r.Lag.Bytes = &bytes
		if pglogrepl.LSN(r.Delivered) >= v.Inserted { // what is visible was committed below it
			r.Lag.Events, r.Lag.Exact = new(int64), true
		}
	}
	if a := v.Anchor; a != nil {
		r.Replay = &ReportWindow{Anchor: a.Name, From: LSN(a.Confirmed), To: r.Delivered, Lost: a.WALStatus == "lost"}
		if pos.Safe != 0 {
			r.Replay.To = LSN(pos.Safe)
		}
	}
}

// count asks the table.
func (from Sources) count(ctx context.Context, r *Report, v *replication.View, pos checkpoint.Position) {
	d := from.Config.Decoder
	b, err := from.Server.Backlog(ctx, v, pos.Last.XID, d.Column("id"), d.Column("timestamp"))
	if err != nil {
		r.Lag.Unknown = err.Error()
		return
	}
	r.Lag.Events, r.Lag.Capped = &b.Events, b.Capped
	if !b.Written.IsZero() {
		at := b.Written.UTC()
		r.Lag.Oldest, r.Lag.Written = &b.ID, &at
	}
}

// age tells the lag in seconds, from the table or from the relay.
func (r *Report) age(now time.Time) {
	var age float64
	switch {
	case r.Lag.Events != nil && *r.Lag.Events == 0:
	case r.Lag.Written != nil:
		age = max(now.Sub(*r.Lag.Written).Seconds(), 0)
	case r.Relay != nil && r.Relay.Oldest > 0:
		age = r.Relay.Oldest
	default:
		return
	}
	r.Lag.Seconds = &age
}
