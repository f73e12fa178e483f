// Package stack runs a real Postgres and a real Apache Kafka on this machine, from
// packages, without containers.
//
//	pg, err := stack.StartPostgres(ctx, stack.PostgresOptions{Version: "17"})
//	k, err := stack.StartKafka(ctx, stack.KafkaOptions{Brokers: 3, Proxy: true})
//	…
//	k.Close()
//	pg.Close()
//
// Each server lives in a temporary folder of its own and listens on free ports of
// 127.0.0.1 that it keeps over restarts. Close ends it and removes the folder; when the
// program that started it dies, also by kill -9, a small shell process that waits for
// just that does the same. Nothing else is ever ended or removed.
//
// What has to be fetched is kept in the user's cache folder ($WALRELAY_E2E_CACHE to
// choose another), under a lock, so that any number of programs can share it.
// WALRELAY_E2E_KEEP=1 leaves the temporary folders in place.
package stack
