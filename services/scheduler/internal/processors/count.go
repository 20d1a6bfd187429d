package processors

import "time"

// Shares of the processors in use.
const (
	// fullShare of the processors in use asks for more.
	fullShare = 0.75
	// roomyShare of half of the processors, were there no more, lets the others go. It is below fullShare, so that what
	// half of them then do does not ask for more; and not far below, since the same work takes less on fewer.
	roomyShare = 0.55
	// calm is how long the processors must have been too many.
	calm = 2 * time.Second
)

// Count is a number of processors that follows the load, from 1 to Max. The zero Count with a Max is ready. It doubles in
// one step, since who waits for a processor waits now, and halves when half has sufficed for 2 s.
type Count struct {
	Max   int
	now   int
	roomy time.Duration // for how long half of them would have done
}

// Now is how many processors are to be used.
func (c *Count) Now() int { return max(c.now, 1) }

// Next is how many are to be used from now on. The last period was to have a length of period and had one of over, because
// whoever was to end it had to wait for a processor, and used is the processor time that the process used in it.
func (c *Count) Next(period, over, used time.Duration) int {
	now := c.Now()
	busy := float64(used+max(over-period, 0)) / float64(max(over, 1)) // of processors
	switch {
	case busy >= fullShare*float64(now):
		c.now, c.roomy = min(2*now, max(c.Max, 1)), 0
	case now == 1 || busy > roomyShare*float64(now/2):
		c.roomy = 0
	default:
		if c.roomy += over; c.roomy >= calm {
			c.now, c.roomy = now/2, 0
		}
	}
	return c.Now()
}
