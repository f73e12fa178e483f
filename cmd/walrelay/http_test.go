package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/walrelay/walrelay/relay"
)

func TestRoutes(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "walrelay_test_total", Help: "h"}))
	ok, reason := false, "not streaming"
	server := httptest.NewServer(routes(false, registry, func() relay.Live { return relay.Live{Slot: "walrelay", Ready: ok, Reason: reason} }))
	defer server.Close()
	ask := func(method, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	for _, c := range []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", "/healthz", 200, "ok"},
		{"HEAD", "/healthz", 200, ""},
		{"GET", "/readyz", 503, "not streaming"},
		{"GET", "/metrics", 200, "walrelay_test_total 0"},
		{"GET", "/status", 200, `"slot":"walrelay","ready":false,"reason":"not streaming"`},
		{"POST", "/status", 405, ""},
		{"POST", "/metrics", 405, ""},
		{"DELETE", "/readyz", 405, ""},
		{"GET", "/", 404, ""},
		{"GET", "/debug/pprof/", 404, ""},
	} {
		if code, body := ask(c.method, c.path); code != c.code || !strings.Contains(body, c.body) {
			t.Errorf("%s %s: %d %q", c.method, c.path, code, body)
		}
	}
	ok = true
	if code, _ := ask("GET", "/readyz"); code != 200 {
		t.Errorf("ready, but /readyz says %d", code)
	}
}

func TestProfilesAreServedOnRequest(t *testing.T) {
	handler := routes(true, prometheus.NewRegistry(), func() relay.Live { return relay.Live{Ready: true} })
	for path, code := range map[string]int{"/debug/pprof/": 200, "/debug/pprof/heap": 200, "/debug/pprof/cmdline": 404} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest("GET", path, nil))
		if answer.Code != code {
			t.Errorf("%s: %d, not %d", path, answer.Code, code)
		}
	}
}

func TestServeHTTPStopsAndNamesATakenAddress(t *testing.T) {
	registry := prometheus.NewRegistry()
	ready := func() relay.Live { return relay.Live{Ready: true} }
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := taken.Addr().String()
	if _, err := serveHTTP(addr, false, registry, ready, zerolog.Nop()); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "--http off") {
		t.Errorf("taken address: %v", err)
	}
	if _, err := serveHTTP("192.0.2.1:1", false, registry, ready, zerolog.Nop()); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "--http off") {
		t.Errorf("foreign address: %v", err)
	}
	taken.Close()
	stop, err := serveHTTP(addr, false, registry, ready, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + addr + "/healthz")
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("healthz: %v, %v", resp, err)
	}
	resp.Body.Close()
	stop()
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("still listening after stop")
	}
	if stop, err := serveHTTP("off", false, registry, ready, zerolog.Nop()); err != nil {
		t.Error(err)
	} else {
		stop()
	}
}
