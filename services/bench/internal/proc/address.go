package proc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

// lowestPort is the first port that FreeAddress draws, above those of well-known services.
const lowestPort = 10_000

// portAttempts is how many ports FreeAddress draws before it lets the system choose one.
const portAttempts = 100

// FreeAddress returns a loopback address on which nothing listens. It avoids the ephemeral ports
// of the system, because any connection or listener may get one of these before the program binds
// it.
func FreeAddress(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	ephemeral := firstEphemeral()
	for try := 0; ; try++ {
		port := 0
		if ephemeral > 2*lowestPort && try < portAttempts {
			port = lowestPort + rand.IntN(ephemeral-lowestPort)
		}
		lis, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return lis.Addr().String(), lis.Close()
		}
		if port == 0 || ctx.Err() != nil {
			return "", err
		}
	}
}

// firstEphemeral returns the lowest ephemeral port of the system; 0 if the system does not report
// it.
func firstEphemeral() (port int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscan(string(text), &port); err != nil {
		return 0
	}
	return port
}
