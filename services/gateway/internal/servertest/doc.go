// Package servertest is a fake model server for tests of the gateway. It serves the contract over
// memory and records the requests that it gets. Its tokens are words of a fixed text, one for each
// event, and depend on nothing. Only tests import it.
package servertest
