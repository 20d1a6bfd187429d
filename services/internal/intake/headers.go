package intake

import (
	"errors"
	"os"
	"time"
)

// headersPatience is what a block of headers may take from its first frame to its end. Keepalives find out who is silent, and not who
// sends a byte now and then.
const headersPatience = 20 * time.Second

// ErrSlowHeaders says that the headers of a call have begun, and have not come whole in their time.
var ErrSlowHeaders = errors.New("the headers of a call have not come whole in their time")

// scan follows p, and when the block of headers began that comes.
func (c *conn) scan(p []byte) int {
	n := c.frames.scan(p)
	switch begun := !c.begun.IsZero(); {
	case c.frames.block == begun:
	case begun:
		c.begun = time.Time{}
		_ = c.SetReadDeadline(time.Time{}) // what is wrong with the connection, reading says
	default:
		c.begun = time.Now()
	}
	return n
}

// hurry bounds the next wait by the time of the block of headers that comes. It is asked before each: grpc-go takes deadlines away
// while it makes a connection.
func (c *conn) hurry() {
	if !c.begun.IsZero() {
		_ = c.SetReadDeadline(c.begun.Add(headersPatience)) // what is wrong with the connection, reading says
	}
}

// late is how a wait ended: err, or that headers took too long.
func (c *conn) late(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) || !c.hurried() {
		return err
	}
	c.refused(ErrSlowHeaders)
	return ErrSlowHeaders
}

// hurried reports whether the block of headers that comes has taken as long as it may.
func (c *conn) hurried() bool { return !c.begun.IsZero() && time.Since(c.begun) >= headersPatience }
