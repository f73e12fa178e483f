package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"github.com/walrelay/walrelay/relay"
)

// maxHTTPConns bounds what stuck or hostile probers can hold.
const maxHTTPConns = 64

// serveHTTP serves /metrics, /healthz, /readyz and /status, and profiles where that is asked
// for, on addr until stop is called; "off" serves nothing. live is asked for each /readyz and /status; what it says may be read by
// anybody who reaches the address. An address that cannot be had is a usage error.
func serveHTTP(addr string, profiles bool, metrics prometheus.Gatherer, live func() relay.Live, log zerolog.Logger) (stop func(), err error) {
	if addr == "off" {
		return func() {}, nil
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		reason := err
		if op := (*net.OpError)(nil); errors.As(err, &op) {
			reason = op.Err // without the address, which follows
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			reason = errors.New("the address is in use, perhaps by another walrelay")
		}
		return nil, usagef("--http %s: %v; choose another address, or --http off", addr, reason)
	}
	var conns atomic.Int32
	server := &http.Server{
		Handler:        routes(profiles, metrics, live),
		ReadTimeout:    5 * time.Second,
		WriteTimeout:   15 * time.Second,
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       stdlog.New(io.Discard, "", 0), // what clients do wrong is their matter
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				if conns.Add(1) > maxHTTPConns {
					c.Close()
				}
			case http.StateClosed:
				conns.Add(-1)
			}
		},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error().Err(err).Msg("http server ended")
		}
	}()
	log.Info().Stringer("address", listener.Addr()).Msg("serving /metrics, /healthz, /readyz and /status")
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			server.Close()
		}
		<-done
	}, nil
}

// routes are read-only: GET and HEAD, and no request has a body to read.
func routes(profiles bool, metrics prometheus.Gatherer, live func() relay.Live) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4,
		Timeout:             10 * time.Second,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if l := live(); !l.Ready {
			http.Error(w, l.Reason, http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(live())
	})
	if profiles { // not cmdline: it may hold a password
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return http.MaxBytesHandler(mux, 0)
}

// askRelay asks the relay that serves on addr, from this host, what it says about itself.
func askRelay(ctx context.Context, addr string) (*relay.Live, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	addr = net.JoinHostPort(host, port)
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/status", nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	client := http.Client{Transport: &http.Transport{}} // no proxy: it is this host, or one beside it
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: no relay answers there; it may run elsewhere, or with another --http", addr)
	}
	defer resp.Body.Close()
	var live relay.Live
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&live); err != nil || live.Slot == "" {
		return nil, fmt.Errorf("%s: something else than this version of walrelay answers there (%s)", addr, resp.Status)
	}
	live.Address = addr
	return &live, nil
}
