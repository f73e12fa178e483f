package relay

import (
	"os"
	"time"

	"github.com/jackc/pglogrepl"
)

// Live is what a running relay tells about itself, as a JSON document. Names stay as
// they are; what is not known is null.
type Live struct {
	Address   string     `json:"address"` // where it was asked
	PID       int        `json:"pid"`
	Started   time.Time  `json:"started"`
	SystemID  string     `json:"system_id"` // "" before the first session
	Slot      string     `json:"slot"`
	Ready     bool       `json:"ready"`
	Reason    string     `json:"reason"`        // why it is not ready
	Delivered LSN        `json:"delivered_lsn"` // below it every outbox row is acknowledged by the brokers
	Saved     LSN        `json:"saved_lsn"`     // of that, what the checkpoint has
	Oldest    float64    `json:"oldest_unpublished_seconds"`
	Fault     string     `json:"last_error"` // the newest of any side, also when it has passed
	FaultTime *time.Time `json:"last_error_time"`
}

// LSN is a position that JSON has as Postgres prints it; 0 is null.
type LSN pglogrepl.LSN

func (l LSN) String() string { return pglogrepl.LSN(l).String() }

// MarshalJSON and UnmarshalJSON are for encoding/json.
func (l LSN) MarshalJSON() ([]byte, error) {
	if l == 0 {
		return []byte("null"), nil
	}
	return []byte(`"` + l.String() + `"`), nil
}

func (l *LSN) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if len(b) < 2 {
		b = []byte(`""`)
	}
	lsn, err := pglogrepl.ParseLSN(string(b[1 : len(b)-1]))
	*l = LSN(lsn)
	return err
}

// Live is safe to call from any goroutine.
func (r *Relay) Live() Live {
	delivered, saved := r.track.positions()
	l := Live{
		PID: os.Getpid(), Started: r.started, SystemID: delivered.SystemID, Slot: r.cfg.Postgres.Slot,
		Delivered: LSN(delivered.Safe), Saved: LSN(saved.Safe),
	}
	l.Ready, l.Reason = r.Ready()
	r.state.mu.Lock()
	defer r.state.mu.Unlock()
	if !r.state.oldest.IsZero() {
		l.Oldest = max(time.Since(r.state.oldest).Seconds(), 0)
	}
	l.Fault = r.state.fault
	if l.Fault != "" {
		at := r.state.faultAt.UTC()
		l.FaultTime = &at
	}
	return l
}
