// Watermill SQL, by the protocol of ../README.md: a subscriber that reads 5,000 messages at once. More would be faster still, since each
// read sorts all that is left; but nobody here holds more than 5,000.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watersql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib"
)

const bulk = 1000
const topic = "bench"

// Messages stay; how far the group has come is one row.
const left = `SELECT 1 FROM watermill_bench m, watermill_offsets_bench o
	WHERE (m.transaction_id, m."offset") > (o.last_processed_transaction_id, o.offset_acked) LIMIT 1`

var schema = watersql.DefaultPostgreSQLSchema{SubscribeBatchSize: 20000}

type payload struct {
	N    int    `json:"n"`
	Text string `json:"text"`
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func subscriber(db *sql.DB) *watersql.Subscriber {
	return must(watersql.NewSubscriber(db, watersql.SubscriberConfig{
		SchemaAdapter:    schema,
		OffsetsAdapter:   watersql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
		PollInterval:     time.Millisecond,
	}, watermill.NopLogger{}))
}

func fill(db *sql.DB, count int) time.Duration {
	must(0, subscriber(db).SubscribeInitialize(topic))
	publisher := must(watersql.NewPublisher(db, watersql.PublisherConfig{SchemaAdapter: schema}, watermill.NopLogger{}))
	payloads := make([]payload, count)
	for i := range payloads {
		payloads[i] = payload{N: i + 1, Text: strings.Repeat(fmt.Sprintf("%032x", i+1), 8)}
	}
	started := time.Now()
	for at := 0; at < count; at += bulk {
		some := payloads[at:min(at+bulk, count)]
		messages := make([]*message.Message, len(some))
		for i, payload := range some {
			messages[i] = message.NewMessage(watermill.NewUUID(), must(json.Marshal(payload)))
		}
		must(0, publisher.Publish(topic, messages...))
	}
	return time.Since(started)
}

func drain(db *sql.DB, count int) time.Duration {
	messages := must(subscriber(db).Subscribe(context.Background(), topic))
	var started time.Time
	for handled := 0; handled < count; handled++ {
		message := <-messages
		if handled == 0 {
			started = time.Now()
		}
		message.Ack()
	}
	for db.QueryRow(left).Scan(new(int)) == nil {
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(started)
}

func main() {
	db := must(sql.Open("pgx", os.Getenv("POSTBOX_BENCH_PG_URL")))
	count := must(strconv.Atoi(os.Args[2]))
	var took time.Duration
	if os.Args[1] == "fill" {
		took = fill(db, count)
	} else {
		took = drain(db, count)
	}
	fmt.Println(string(must(json.Marshal(map[string]float64{"seconds": took.Seconds()}))))
	// A subscriber that is closed in order waits for its poll.
	os.Exit(0)
}
