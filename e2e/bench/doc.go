// Package bench measures walrelay on a real Postgres and a real Kafka.
//
// What is compared runs in turns within one program, on the same backlog (copies of one
// slot), and is repeated: on a small or a shared machine only such numbers mean
// anything, and of those the ratios and the processor time more than the seconds.
//
// The limit of every relay is the walsender, one core of the server. Here it is
// measured twice: by pg_recvlogical, which takes each row by itself, and by a reader of
// ours that takes rows as walrelay does and throws them away.
package bench
