// Package meshtest makes network namespaces for tests, so that they can write
// rules, addresses and routes without touching the machine. Nothing here is
// linked into a program; only tests call it.
package meshtest
