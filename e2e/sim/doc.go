// Package sim runs the whole pipe of the relay (relay, replication, decode, sink and
// checkpoint, the real code) in virtual time between a model Postgres and a model Kafka
// that speak the real protocols over simulated links.
//
// One seed makes a [Plan]: the cluster's and the relay's settings, the transactions, and
// the faults. [Run] carries it out and holds what happens against the truth at every step
// (check.go, truth.go). A failure prints the seed and a timeline; [Shrink] leaves away
// what the failure does not need.
//
// A plan fixes when everything happens, but not in which order Go runs the goroutines of
// one instant. A seed that fails now and then is run again a few times to be shrunk.
package sim
