package hostile

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// attack is one thing that a hostile connection does, until the server closes it or it fails.
type attack struct {
	name string
	run  func(conn net.Conn) error
}

// drip is the time between two pieces of what comes slowly.
const drip = 500 * time.Millisecond

// attacks are those that connections do in turn.
var attacks = []attack{
	{"says nothing", func(net.Conn) error { return nil }},
	{"speaks no TLS", garbage},
	{"stops in the handshake", hello},
	{"says nothing behind the handshake", secure(func(net.Conn) error { return nil })},
	{"speaks no HTTP/2", secure(garbage)},
	{"sends the preface byte by byte", secure(func(conn net.Conn) error { return slowly(conn, []byte(http2.ClientPreface)) })},
	{"sends a frame that is too large", secure(oversized)},
	{"sends headers without end", secure(endless)},
	{"sends headers byte by byte", secure(slowHeaders)},
}

// garbage sends noise.
func garbage(conn net.Conn) error {
	noise := make([]byte, 1024)
	_, _ = rand.Read(noise) // never fails
	_, err := conn.Write(noise)
	return err
}

// recorder is a connection that keeps what is written and has nothing to read.
type recorder struct {
	net.Conn
	written bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) { return r.written.Write(p) }
func (r *recorder) Read([]byte) (int, error)    { return 0, io.EOF }

// hello sends the first message of a handshake.
func hello(conn net.Conn) error {
	first := &recorder{Conn: conn}
	_ = tls.Client(first, trusting()).HandshakeContext(context.Background()) // it fails when it would read
	_, err := conn.Write(first.written.Bytes())
	return err
}

// trusting is how a stranger makes connections who does not care with whom.
func trusting() *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // a stranger believes anybody
		MinVersion:         tls.VersionTLS13, NextProtos: []string{http2.NextProtoTLS},
	}
}

// secure does something behind a handshake.
func secure(then func(net.Conn) error) func(net.Conn) error {
	return func(conn net.Conn) error {
		c := tls.Client(conn, trusting())
		if err := c.HandshakeContext(context.Background()); err != nil { // the connection's deadline bounds it
			return err
		}
		return then(c)
	}
}

// slowly sends one byte at a time.
func slowly(conn net.Conn, all []byte) error {
	for i := range all {
		if _, err := conn.Write(all[i : i+1]); err != nil {
			return err
		}
		time.Sleep(drip)
	}
	return nil
}

// begin makes a connection HTTP/2, with frames behind that.
func begin(conn net.Conn, frames func(*http2.Framer) error) error {
	var all bytes.Buffer
	all.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&all, nil)
	framer.AllowIllegalWrites = true
	if err := errors.Join(framer.WriteSettings(), frames(framer)); err != nil {
		return err
	}
	_, err := conn.Write(all.Bytes())
	return err
}

// oversized sends a frame above what the server takes.
func oversized(conn net.Conn) error {
	return begin(conn, func(f *http2.Framer) error { return f.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 1<<20)) })
}

// block is the block of headers of a call.
func block() []byte {
	var all bytes.Buffer
	e := hpack.NewEncoder(&all)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", "/grpc.health.v1.Health/Check"}, {":authority", "a"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // a buffer takes all
	}
	return all.Bytes()
}

// endless sends a block of headers of a megabyte, whose end does not come.
func endless(conn net.Conn) error {
	return begin(conn, func(f *http2.Framer) error {
		var all bytes.Buffer
		_ = hpack.NewEncoder(&all).WriteField(hpack.HeaderField{Name: "x-filler", Value: string(bytes.Repeat([]byte{'~'}, 8<<10))})
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block()})
		for range 128 {
			err = errors.Join(err, f.WriteContinuation(1, false, all.Bytes()))
		}
		return err
	})
}

// slowHeaders sends a call's headers one byte in a frame.
func slowHeaders(conn net.Conn) error {
	all := block()
	err := begin(conn, func(f *http2.Framer) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: all[:1]})
	})
	framer := http2.NewFramer(conn, nil)
	for i := 1; i < len(all) && err == nil; i++ {
		time.Sleep(drip)
		err = framer.WriteContinuation(1, false, all[i:i+1])
	}
	return err
}
