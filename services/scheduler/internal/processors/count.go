package processors

import "time"

// Thresholds of the load.
const (
	// fullShare of the processors in use doubles their number.
	fullShare = 0.75
	// roomyShare of half of the processors halves their number. It is below fullShare, so that the
	// load of the remaining half does not double it again. It is not far below, because the same
	// work takes less time on fewer processors.
	roomyShare = 0.55
	// calm is how long the load must be that low.
	calm = 2 * time.Second
)

// Count is a number of processors that follows the load, from 1 to Max. The zero Count with a Max
// is ready. It doubles in one step, because the work waits now, and halves when half has sufficed
// for 2 s.
type Count struct {
	Max   int
	now   int
	roomy time.Duration // for how long half of them would have sufficed
}

// Now returns the number of processors to use.
func (c *Count) Now() int { return max(c.now, 1) }

// Next returns the number of processors to use from now on. period is the intended length of the
// last period, and over its real length: it is longer if its timer had to wait for a processor.
// used is the processor time of the process in it.
func (c *Count) Next(period, over, used time.Duration) int {
	now := c.Now()
	busy := float64(used+max(over-period, 0)) / float64(max(over, 1)) // in processors
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
