// Package workertest is a worker for tests of the scheduler: it serves the contract over memory, says what it is told
// to, and can be killed, frozen, thawed, stopped and started again under the same address.
//
// Within a bubble of testing/synctest all of it goes by the bubble's clock: a machine that stalls makes nobody silent or late, and
// seconds of silence cost none. Network and workers are made inside of the bubble then.
//
// Only tests import it. Its tokens mean nothing.
package workertest
