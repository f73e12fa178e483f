package sink

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// quickAnswer is what a broker gets before the next one is asked; doubled with each round without an answer.
const quickAnswer = 2 * time.Second

// any sends a request that every broker can answer to one broker after another,
// until one does. quick: a broker that is silent for quickAnswer is left for the next;
// if all are, they get twice as long the next time. A refused password is asked about once:
// one attempt for a call, whatever the number of brokers.
func (c *Client) any(ctx context.Context, req protocol.Message, quick bool) (res protocol.Message, err error) {
	c.mu.Lock()
	peers := c.candidates()
	limit := min(quickAnswer<<min(c.slowRounds, 10), c.cfg.requestTimeout)
	c.mu.Unlock()
	if !quick {
		limit = c.cfg.connectTimeout + c.timeout(req)
	}
	slow := false
	var worst error
	for _, p := range peers {
		attempt, cancel := context.WithTimeout(ctx, limit)
		res, err = p.send(attempt, req)
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, errClientClosed) {
			break
		}
		if errors.Is(err, kafka.SASLAuthenticationFailed) {
			return nil, err // the others have the same accounts, and count failures before they lock one
		}
		slow = slow || isTimeout(err)
		if refused := (*AuthError)(nil); worst == nil || errors.As(err, &refused) {
			worst = err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.slowRounds = 0
		return res, nil
	case slow && ctx.Err() == nil:
		c.slowRounds++
	}
	return nil, cmp.Or(worst, err)
}

// candidates orders all known addresses: open connections first, then brokers and seeds that
// are not known to be down, then the others by the time at which they may be tried. Under Client.mu.
func (c *Client) candidates() []*peer {
	var all []*peer
	class := make(map[*peer]int)
	add := func(p *peer, otherwise int) {
		all = append(all, p)
		l := &p.lanes[laneControl]
		switch {
		case l.conn != nil && l.conn.alive():
			class[p] = 0
		case p.failures > 0:
			class[p] = 3
		default:
			class[p] = otherwise
		}
	}
	for _, p := range c.brokers { // in the map's random order
		add(p, 1)
	}
	for _, p := range c.seeds {
		add(p, 2)
	}
	slices.SortStableFunc(all, func(a, b *peer) int {
		return cmp.Or(cmp.Compare(class[a], class[b]), a.retryAt.Compare(b.retryAt))
	})
	seen := make(map[string]bool)
	return slices.DeleteFunc(all, func(p *peer) bool {
		again := seen[p.addr]
		seen[p.addr] = true
		return again
	})
}
