// Package workertest is a worker for tests of the scheduler: it serves the contract over memory, says what it is told
// to, and can be killed, frozen, thawed, stopped and started again under the same address.
//
// Only tests import it. Its tokens mean nothing.
package workertest
