package restart

import (
	"errors"
	"fmt"
	"time"
)

// Config of a run.
type Config struct {
	Scheduler, Worker string // paths of the programs
	Workers           int
	Prefix            int           // tokens of each prefix
	Every             time.Duration // between calls
	For               time.Duration // calls are made after a restart
	Repeat            int           // restarts
	Seed              uint64
}

// own is how many tokens follow a prefix: one at least is always computed, and no key ends behind the prefix.
const own = 16

// keyTokens is the step of the keys that workers tell of token ids; a prefix of whole steps has a key of its own.
const keyTokens = 64

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var wrong []error
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if c.Workers < 2 || c.Workers > 64 {
		refuse("--workers %d: want 2 to 64", c.Workers)
	}
	if c.Prefix < keyTokens || c.Prefix > 4096 || c.Prefix%keyTokens != 0 {
		refuse("--prefix %d: want a multiple of %d up to 4096", c.Prefix, keyTokens)
	}
	if c.Every < time.Millisecond || c.Every > time.Second {
		refuse("--every %v: want 1ms to 1s", c.Every)
	}
	if c.For < 2*bar || c.For > time.Minute {
		refuse("--for %v: want %v to 1m", c.For, 2*bar)
	}
	if c.Repeat < 1 || c.Repeat > 100 {
		refuse("--repeat %d: want 1 to 100", c.Repeat)
	}
	return errors.Join(wrong...)
}

// calls is how many calls follow a restart.
func (c *Config) calls() int { return int(c.For / c.Every) }

// cacheTokens holds all prefixes that a worker gets, and as many that were sent there wrongly.
func (c *Config) cacheTokens() uint64 {
	return uint64(c.calls()*(c.Prefix+own+2*keyTokens)) + 4096
}
