// River, by the protocol of ../README.md: 2,000 workers, a fetch at most every 2 ms, as its own benchmark has it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const bulk = 1000

// Completed jobs stay.
const left = "SELECT 1 FROM river_job WHERE state <> 'completed' LIMIT 1"

type payload struct {
	N    int    `json:"n"`
	Text string `json:"text"`
}

func (payload) Kind() string { return "bench" }

type worker struct {
	river.WorkerDefaults[payload]
	handled *atomic.Int64
	first   *sync.Once
	started *time.Time
}

func (w *worker) Work(context.Context, *river.Job[payload]) error {
	w.first.Do(func() { *w.started = time.Now() })
	w.handled.Add(1)
	return nil
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func fill(ctx context.Context, pool *pgxpool.Pool, count int) time.Duration {
	driver := riverpgxv5.New(pool)
	migrator := must(rivermigrate.New(driver, nil))
	must(migrator.Migrate(ctx, rivermigrate.DirectionUp, nil))
	client := must(river.NewClient(driver, &river.Config{}))
	payloads := make([]payload, count)
	for i := range payloads {
		payloads[i] = payload{N: i + 1, Text: strings.Repeat(fmt.Sprintf("%032x", i+1), 8)}
	}
	started := time.Now()
	for at := 0; at < count; at += bulk {
		some := payloads[at:min(at+bulk, count)]
		params := make([]river.InsertManyParams, len(some))
		for i, payload := range some {
			params[i] = river.InsertManyParams{Args: payload}
		}
		must(client.InsertManyFast(ctx, params))
	}
	return time.Since(started)
}

func drain(ctx context.Context, pool *pgxpool.Pool, url string, count int) time.Duration {
	watch := must(pgx.Connect(ctx, url))
	var handled atomic.Int64
	var first sync.Once
	var started time.Time
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{handled: &handled, first: &first, started: &started})
	client := must(river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Logger:            slog.New(slog.DiscardHandler),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
		Workers:           workers,
	}))
	must(0, client.Start(ctx))
	for handled.Load() < int64(count) {
		time.Sleep(2 * time.Millisecond)
	}
	for watch.QueryRow(ctx, left).Scan(new(int)) == nil {
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(started)
}

func main() {
	ctx := context.Background()
	url, count := os.Getenv("POSTBOX_BENCH_PG_URL"), must(strconv.Atoi(os.Args[2]))
	pool := must(pgxpool.New(ctx, url))
	var took time.Duration
	if os.Args[1] == "fill" {
		took = fill(ctx, pool, count)
	} else {
		took = drain(ctx, pool, url, count)
	}
	fmt.Println(string(must(json.Marshal(map[string]float64{"seconds": took.Seconds()}))))
}
