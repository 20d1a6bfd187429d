package intake

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unanswered is how long what was sent may stay unacknowledged before the operating system gives the connection up. grpc-go sets it
// on connections that it knows, which those of a limiter are not.
const unanswered = 10 * time.Second

// endUnanswered gives a TCP connection that bound.
func endUnanswered(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) { // a closed connection needs none
		_ = unix.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unanswered.Milliseconds()))
	})
}
