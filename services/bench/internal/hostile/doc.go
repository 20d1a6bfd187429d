// Package hostile measures what strangers who open connections and mean harm cost a good client.
//
// Run starts a worker on the sim engine and a scheduler over it that serves over TLS, and a good client that asks at a steady rate.
// Its calls are measured alone; beside a process that opens hostile connections (Peer) and counts what processor time that takes;
// and beside a process that burns as much of it (Burn) and harms nobody. The two are compared, round by round.
//
// A stranger has no certificate and no token, and any address that the flag gives. Each connection does one of the things that
// attack names, holds on as long as it is let, and then leaves.
package hostile
