package replication

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
)

const slotConfirmed = 0x1000100

// got returns the status updates that the server has received by now.
func (st *stream) got() (all []status) {
	synctest.Wait()
	for {
		select {
		case one := <-st.status:
			all = append(all, one)
		default:
			return all
		}
	}
}

// follow reads until ctx ends or Next fails.
func follow(ctx context.Context, s *Session) error {
	defer context.AfterFunc(ctx, s.Wake)()
	for {
		if _, err := s.Next(); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// forTime reads for d, which must not fail.
func forTime(t *testing.T, s *Session, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := follow(ctx, s); err != nil {
		t.Fatal(err)
	}
}

// G3: every status carries the confirmed LSN in all three fields, from the slot's
// own on; it never moves back. G8: it flows while nothing happens and while the pipe
// is full.
func TestG3StatusCarriesWhatIsConfirmed(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
		check := func(what string, least, most int, lsn pglogrepl.LSN) {
			t.Helper()
			all := st.got()
			if len(all) < least || len(all) > most {
				t.Errorf("%s: %d updates", what, len(all))
			}
			for _, u := range all {
				if u.write != lsn || u.flush != lsn || u.apply != lsn {
					t.Errorf("%s: %+v, want %s", what, u, lsn)
				}
			}
		}
		forTime(t, s, 4500*time.Millisecond)
		check("idle", 4, 6, slotConfirmed)

		hold := func(d time.Duration) {
			t.Helper()
			ready := make(chan struct{})
			time.AfterFunc(d, func() { close(ready) })
			if err := s.Hold(ready); err != nil {
				t.Fatal(err)
			}
		}
		hold(time.Minute)
		check("held", 59, 61, slotConfirmed)

		s.Confirm(slotConfirmed - 1)
		s.Confirm(0)
		forTime(t, s, 2*time.Second)
		check("confirmed backwards", 1, 3, slotConfirmed)

		confirmed := time.Now()
		time.AfterFunc(500*time.Millisecond, func() { s.Confirm(slotConfirmed + 8) })
		forTime(t, s, time.Second)
		all := st.got()
		if u := all[len(all)-1]; u.flush != slotConfirmed+8 || u.at.Sub(confirmed) > 600*time.Millisecond {
			t.Errorf("confirmed while Next blocked: %+v", u)
		}
		time.AfterFunc(500*time.Millisecond, func() { s.Confirm(slotConfirmed + 16) })
		confirmed = time.Now()
		hold(time.Second)
		all = st.got()
		if u := all[len(all)-1]; u.flush != slotConfirmed+16 || u.at.Sub(confirmed) > 600*time.Millisecond {
			t.Errorf("confirmed while held: %+v", u)
		}
	})
}

// A confirmed LSN that moves all the time is not sent all the time.
func TestConfirmIsThrottled(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
		var confirming sync.WaitGroup
		confirming.Go(func() {
			for lsn := pglogrepl.LSN(slotConfirmed); lsn < slotConfirmed+10000; lsn++ {
				s.Confirm(lsn)
				pass(time.Millisecond)
			}
		})
		defer confirming.Wait()
		forTime(t, s, 10*time.Second)
		if n := len(st.got()); n < 90 || n > 102 {
			t.Errorf("%d updates in 10 s", n)
		}
	})
}

// G8: the server's question is answered at once, but a server that asks after every
// answer does not make us busy.
func TestRepliesAreThrottled(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
		forTime(t, s, 500*time.Millisecond)
		st.got()
		asked := time.Now()
		st.keepalive(0x1000200, true)
		if m := want(t, s, Keepalive); !m.ReplyRequested {
			t.Error("the pipe is not told that the server asks")
		}
		forTime(t, s, 10*time.Millisecond)
		if all := st.got(); len(all) != 1 || all[0].at != asked {
			t.Errorf("answers: %+v", all)
		}
		for range 5 {
			st.keepalive(0x1000200, true)
		}
		forTime(t, s, 200*time.Millisecond)
		if n := len(st.got()); n != 1 {
			t.Errorf("%d answers to five questions at once", n)
		}
	})
}

// A server that shuts down asks after every answer, for ever, until all is
// confirmed. It gets a bounded time, also while the pipe is full.
func TestG8ServerMayShutDown(t *testing.T) {
	shuttingDown := func(st *stream) {
		for {
			st.keepalive(0x1000200, true)
			select {
			case <-st.status:
			case <-st.ended:
				return
			}
		}
	}
	t.Run("reading", func(t *testing.T) {
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			go shuttingDown(st)
			began := time.Now()
			err := follow(t.Context(), s)
			if d := time.Since(began); !errors.Is(err, ErrShutdown) || d < floodDrain || d > floodDrain+time.Second {
				t.Errorf("after %s: %v", d, err)
			}
		})
	})
	t.Run("held", func(t *testing.T) {
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			go shuttingDown(st)
			forTime(t, s, time.Second)
			if err := s.Hold(nil); !errors.Is(err, ErrShutdown) {
				t.Error(err)
			}
		})
	})
	t.Run("ordinary questions", func(t *testing.T) {
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			for range 20 {
				st.keepalive(0x1000200, true)
				forTime(t, s, 1500*time.Millisecond)
			}
		})
	})
}

// G8: a link that has died without a word is found, and only that.
func TestG8HalfOpen(t *testing.T) {
	const found = probeAfter + probeFor + 2*time.Second
	run := func(t *testing.T, f func(t *testing.T, srv *server, s *Session, st *stream)) {
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			srv.mute.Store(true)
			f(t, srv, s, st)
		})
	}
	dead := func(t *testing.T, s *Session) {
		t.Helper()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := follow(ctx, s)
		if d := time.Since(began); err == nil || typeOf(err) != "transient" || d > found {
			t.Errorf("after %s: %v", d, err)
		}
	}
	t.Run("idle walsender", func(t *testing.T) {
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			dead(t, s)
			asks := 0
			for _, u := range st.got() {
				if u.ask {
					asks++
				}
			}
			if asks != 1 {
				t.Errorf("%d requests for a sign of life", asks)
			}
		})
	})
	t.Run("walsender gone", func(t *testing.T) {
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			srv.setAnswer("walsender", answer{})
			dead(t, s)
		})
	})
	t.Run("short wal_sender_timeout", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			srv := newServer(t)
			srv.set("server", 4, "2000")
			srv.mute.Store(true)
			s, _ := srv.open(srv.config())
			began := time.Now()
			if err := follow(t.Context(), s); err == nil || time.Since(began) > 8*time.Second {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
		})
	})
	t.Run("woken now and then", func(t *testing.T) {
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			tick := time.NewTicker(700 * time.Millisecond)
			defer tick.Stop()
			go func() {
				for {
					select {
					case <-tick.C:
						s.Wake()
					case <-st.ended:
						return
					}
				}
			}()
			dead(t, s)
			st.conn.Close()
		})
	})
	t.Run("busy walsender", func(t *testing.T) { // works through a transaction of another table
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			srv.set("walsender", 0, "IO")
			forTime(t, s, 2*time.Minute)
			srv.set("walsender", 0, "")
			forTime(t, s, 2*time.Minute)
		})
	})
	t.Run("answered", func(t *testing.T) {
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			srv.setAnswer("walsender", answer{})
			srv.mute.Store(false)
			forTime(t, s, time.Minute)
		})
	})
	t.Run("held", func(t *testing.T) { // nobody listened: the silence afterwards counts, not that before
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			ready := make(chan struct{})
			time.AfterFunc(10*time.Minute, func() { close(ready) })
			if err := s.Hold(ready); err != nil {
				t.Fatal(err)
			}
			forTime(t, s, probeAfter+probeFor-2*time.Second)
			dead(t, s)
		})
	})
	t.Run("held, connection closed", func(t *testing.T) {
		run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
			time.AfterFunc(10*time.Second, func() { st.conn.Close() })
			if err := s.Hold(nil); err == nil {
				t.Error("no error")
			}
		})
	})
}

// G2: what a stopped process finds in its socket proves nothing about now. Heard
// says when the server sent it, by our clock, whatever the server's clock says.
func TestG2HeardIsWhenTheServerSent(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Session, st *stream) {
		near := func(what string, want time.Time) {
			t.Helper()
			if d := s.Heard().Sub(want).Abs(); d > time.Millisecond {
				t.Errorf("%s: %s off", what, d)
			}
		}
		near("start", time.Now())
		want(t, s, Drained)
		sent := time.Now()
		st.data("x")
		pass(time.Hour) // the process is stopped
		want(t, s, Data, Drained)
		near("stale bytes", sent)
		if err := s.HoldsSlot(t.Context()); err != nil {
			t.Fatal(err)
		}
		near("proven on the side connection", time.Now())

		srv.set("holder", 1, "946684800000000") // the server's clock: 2000-01-01
		if err := s.HoldsSlot(t.Context()); err != nil {
			t.Fatal(err)
		}
		st.conn.Write(frame([]byte("y"), time.UnixMicro(946684800000000).Add(time.Second)))
		pass(time.Minute)
		now := time.Now()
		want(t, s, Data, Drained)
		near("another clock", now.Add(-59*time.Second))
	})
}
