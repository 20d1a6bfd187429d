package rpc

import "context"

const (
	// largeBytes is the length from which messages are decoded by turns: meanwhile one is there as it came, in one piece, and decoded,
	// which may be six times its bytes together.
	largeBytes = 1 << 20
	// decodingAtOnce is how many are. Decoding waits for nobody, so more would not be faster.
	decodingAtOnce = 2
)

// turns are those of the large messages of a server.
type turns chan struct{}

func newTurns() turns { return make(turns, decodingAtOnce) }

// take waits for the turn of a message of so many bytes, and gives what ends it. A small one needs none.
func (t turns) take(bytes int) (end func()) {
	if bytes < largeBytes {
		return func() {}
	}
	t <- struct{}{}
	return func() { <-t }
}

// Turn waits until a handler may decode a message of so many bytes that it received as a Frame, and gives what says that it has, and
// that it needs the Frame no more. The handler waits for nothing meanwhile. Outside a handler there are no turns.
func Turn(ctx context.Context, bytes int) (end func()) {
	if c := callOf(ctx); c != nil {
		end := c.turns.take(bytes)
		return func() {
			end()
			c.received()
		}
	}
	return func() {}
}
