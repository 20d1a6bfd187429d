// Package workertest is a fake worker for tests of the scheduler. It serves the contract over
// in-memory connections, answers as a test sets it, and can be killed, frozen, thawed, stopped and
// started again at the same address. In a testing/synctest bubble it uses the bubble's clock, so
// that a machine that stalls makes no worker silent or late, and seconds of silence take no time.
// Networks and workers must then be made inside the bubble. Only tests import it. Its tokens have
// no meaning.
package workertest
