package sink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
)

// versions is a range of protocol versions, inclusive.
type versions struct{ min, max int16 }

// connect opens a connection: dial, TLS, ApiVersions, SASL, all within connectTimeout.
// The first three tell a listener of the wrong kind from a broken one.
func (p *peer) connect(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.client.cfg.connectTimeout)
	defer cancel()
	raw, err := p.client.cfg.Dial(ctx, "tcp", p.addr)
	if err != nil {
		return nil, p.error("dial", err)
	}
	defer onDone(ctx, func() { raw.Close() })()
	nc, err := p.handshake(ctx, raw)
	if err == nil {
		return nc, nil
	}
	raw.Close()
	if cut := (*BrokerError)(nil); ctx.Err() != nil && errors.As(err, &cut) {
		cut.Err = ctx.Err() // and not that we closed the socket
	}
	return nil, err
}

func (p *peer) handshake(ctx context.Context, raw net.Conn) (*conn, error) {
	nc := raw
	if cfg := p.client.cfg.TLS; cfg != nil {
		secured, err := p.startTLS(cfg, raw)
		if err != nil {
			return nil, err
		}
		nc = secured
	}
	c := newConn(p, raw, nc)
	res, err := c.exchange(new(apiversions.Request))
	switch {
	case err != nil && p.client.cfg.TLS == nil && isClosed(err):
		return nil, p.error("ApiVersions", p.supposing(errMaybeTLS, err))
	case err != nil:
		return nil, p.explain("ApiVersions", err)
	}
	offered := res.(*apiversions.Response)
	if offered.ErrorCode != 0 {
		return nil, p.error("ApiVersions", kafka.Error(offered.ErrorCode))
	}
	c.versions = make(map[protocol.ApiKey]versions, len(offered.ApiKeys))
	for _, k := range offered.ApiKeys {
		c.versions[protocol.ApiKey(k.ApiKey)] = versions{k.MinVersion, k.MaxVersion}
	}
	if p.client.cfg.SASL != nil {
		if err := c.authenticate(ctx, c.exchange); err != nil {
			return nil, p.explain("SASL", err)
		}
	}
	if t, ok := nc.(tlsConn); ok {
		t.corked.cork()
	}
	return c, nil
}

// supposing is what a connection that is closed in the middle of the handshake may mean. Where a broker
// has answered us before, it means that this one goes down.
func (p *peer) supposing(wrongListener, err error) error {
	p.client.mu.Lock()
	defer p.client.mu.Unlock()
	if p.client.served {
		return err
	}
	return wrongListener
}

// exchange is a request and its answer before the connection has a reader.
func (c *conn) exchange(req protocol.Message) (protocol.Message, error) {
	w, err := c.call(req)
	if err != nil {
		return nil, err
	}
	if err := c.writeOut(); err != nil {
		return nil, err
	}
	frame, err := readFrame(c.in, nil)
	if err != nil {
		return nil, err
	}
	return decodeResponse(frame, w.id, w.key, w.version)
}

// version is the highest that both sides speak. Before ApiVersions was answered
// it is 0: only ApiVersions itself is asked then, and every broker knows its version 0.
func (c *conn) version(key protocol.ApiKey) (int16, error) {
	if c.versions == nil {
		return 0, nil
	}
	theirs, ok := c.versions[key]
	if !ok {
		return 0, fmt.Errorf("the broker does not know %s requests: it is too old, or its listener is not meant for clients", key)
	}
	ours := versions{key.MinVersion(), key.MaxVersion()}
	v := min(ours.max, theirs.max)
	if v < ours.min || v < theirs.min {
		return 0, fmt.Errorf("no common version of %s: the broker speaks v%d to v%d, this build v%d to v%d",
			key, theirs.min, theirs.max, ours.min, ours.max)
	}
	return v, nil
}

// reauthenticate does SASL again on the open connection once its session is near
// its end (KIP-368); after the end the broker would close the connection at the next request.
// Answers to earlier requests may still be due: they come first. The caller holds the write token.
func (c *conn) reauthenticate(ctx context.Context) error {
	if c.reauthAt.IsZero() || time.Now().Before(c.reauthAt) {
		return nil
	}
	return c.authenticate(ctx, func(req protocol.Message) (protocol.Message, error) {
		w, err := c.write(req, c.peer.client.cfg.connectTimeout)
		if err != nil {
			return nil, err
		}
		<-w.done
		return w.res, w.err
	})
}

// sessionEnds plans the re-authentication at 85 to 95 % of the lifetime, as Java's
// client does, so that relays do not come in step. 0 = the session has no end.
// Brokers take a second re-authentication within a second for an offence.
func (c *conn) sessionEnds(lifetime time.Duration) {
	c.reauthAt = time.Time{}
	if lifetime > 0 {
		c.reauthAt = time.Now().Add(max(lifetime*85/100+rand.N(lifetime/10+1), 1100*time.Millisecond))
	}
}
