package relay

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/walrelay/walrelay/decode"
	"github.com/walrelay/walrelay/replication"
	"github.com/walrelay/walrelay/sink"
)

// tableRun publishes rows of the table itself, in memory that is bounded as the pipe's
// is: one batch fills while another one is delivered.
type tableRun struct {
	cfg    Config
	sink   *sink.Producer
	rows   *replication.Rows
	source string
	marks  []decode.Header
	total  int64
	saw    func(ev *decode.Event) // each event, as it is read; nil: nobody cares
	note   func(published int64)  // before each batch: how many it will be with it; nil: nobody cares

	published atomic.Int64 // acknowledged
	known     int64        // of the rows: known to have been delivered before
	perhaps   int64        // may have been, these included
}

// run returns when all is acknowledged, or at the first error.
func (t *tableRun) run(ctx context.Context) error {
	d := t.cfg.Decoder
	d.Marks = t.marks
	defer func() { d.Marks = nil }()
	if err := d.StartTable(t.source, columns(t.rows.Columns), time.Now()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	size := batchBytes(t.cfg.BufferBytes)
	empty, full := make(chan *decode.Batch, 2), make(chan *decode.Batch)
	empty <- decode.NewBatch(size)
	empty <- decode.NewBatch(size)
	ended := make(chan error, 1)
	go func() {
		defer close(full)
		ended <- t.read(ctx, size, empty, full)
	}()
	stop := t.report(ctx)
	defer stop()
	var failed error
	for b := range full {
		if failed == nil {
			if t.note != nil {
				t.note(t.published.Load() + int64(len(b.Events)))
			}
			n, err := t.sink.Write(ctx, b.Events)
			t.published.Add(int64(n))
			if failed = err; err != nil {
				cancel()
			}
		}
		b.Reset()
		empty <- b
	}
	if err := <-ended; failed == nil {
		failed = err
	}
	return failed
}

// read fills batches until the table is through.
func (t *tableRun) read(ctx context.Context, size int, empty <-chan *decode.Batch, full chan<- *decode.Batch) error {
	for b := range empty {
		err := t.fill(ctx, b, size)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		select {
		case full <- b:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err != nil {
			return nil
		}
	}
	return nil
}

func (t *tableRun) fill(ctx context.Context, b *decode.Batch, size int) error {
	for b.Bytes() < size {
		values, repeat, err := t.rows.Next(ctx)
		if err != nil {
			return err
		}
		if err := t.cfg.Decoder.TableRow(values, b); err != nil {
			return err
		}
		switch repeat {
		case replication.KnownRepeat:
			t.known++
			t.perhaps++
		case replication.MayRepeat:
			t.perhaps++
		}
		if t.saw != nil {
			t.saw(&b.Events[len(b.Events)-1])
		}
	}
	return nil
}

// reportEvery is how often a read of the table says how far it is.
const reportEvery = 5 * time.Second

func (t *tableRun) report(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				t.cfg.Log.Info().Int64("published", t.published.Load()).Int64("of", t.total).Msg("publishing from the table")
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}
