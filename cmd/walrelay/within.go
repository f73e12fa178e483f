package main

import (
	"context"
	"fmt"
	"time"
)

// within does what a command that ends by itself has to do. What can pass by itself is
// tried again, until --timeout is over.
func (s *settings) within(ctx context.Context, command string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for {
		err := try(ctx)
		if exitCode(err) != exitFailed {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: gave up after --timeout %s: %w", command, s.timeout, err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}
