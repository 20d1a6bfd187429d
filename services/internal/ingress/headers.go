package ingress

import (
	"errors"
	"os"
	"time"
)

// headersTimeout bounds the time from the first byte of a header block to its last. Keepalive
// detects a silent client, but not one that sends a byte now and then.
const headersTimeout = 20 * time.Second

// ErrSlowHeaders reports a header block that was not complete within headersTimeout.
var ErrSlowHeaders = errors.New("the headers of a call did not arrive in time")

// scan parses p and records when an unfinished header block began.
func (c *conn) scan(p []byte) int {
	n := c.parser.scan(p)
	switch begun := !c.headersSince.IsZero(); {
	case c.parser.inHeaders == begun:
	case begun:
		c.headersSince = time.Time{}
		_ = c.SetReadDeadline(time.Time{}) // the next read returns the error
	default:
		c.headersSince = time.Now()
	}
	return n
}

// setHeadersDeadline bounds the next read if a header block is unfinished. It is called before
// every read, because grpc-go clears deadlines after its handshake.
func (c *conn) setHeadersDeadline() {
	if !c.headersSince.IsZero() {
		_ = c.SetReadDeadline(c.headersSince.Add(headersTimeout)) // the next read returns the error
	}
}

// readError returns err, or ErrSlowHeaders if err is the deadline of a header block.
func (c *conn) readError(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) || !c.headersExpired() {
		return err
	}
	c.onRefused(ErrSlowHeaders)
	return ErrSlowHeaders
}

// headersExpired reports whether the unfinished header block has used up its time.
func (c *conn) headersExpired() bool {
	return !c.headersSince.IsZero() && time.Since(c.headersSince) >= headersTimeout
}
