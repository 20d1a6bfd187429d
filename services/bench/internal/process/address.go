package process

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

// lowestPort is the first of the ports that FreeAddress draws from: well-known services have those below.
const lowestPort = 10_000

// tries is how many ports FreeAddress draws before it takes any that the system gives.
const tries = 100

// FreeAddress is a loopback address that nobody listened on a moment ago. Its port is none of those that the system gives to whoever
// names none, unless these are nearly all: else any connection and any listener might take it before the program that it is for.
func FreeAddress(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	given := firstGiven()
	for try := 0; ; try++ {
		port := 0
		if given > 2*lowestPort && try < tries {
			port = lowestPort + rand.IntN(given-lowestPort)
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

// firstGiven is the lowest port that the system gives to whoever names none; 0 where it does not say.
func firstGiven() (port int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscan(string(text), &port); err != nil {
		return 0
	}
	return port
}
