package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a flag for a number of bytes, for example 1073741824 or 1GiB.
type Bytes uint64

var units = []struct {
	suffix string
	bytes  uint64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

// String returns the number in the largest unit that divides it.
func (b *Bytes) String() string {
	for _, u := range units {
		if n := uint64(*b); n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatUint(n/u.bytes, 10) + u.suffix
		}
	}
	return "0"
}

// Set parses a number with or without a unit.
func (b *Bytes) Set(text string) error {
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || n > math.MaxUint64/u.bytes {
			break
		}
		*b = Bytes(n * u.bytes)
		return nil
	}
	return fmt.Errorf("%q: want a number of bytes, such as 64MiB", text)
}

// Type returns the name of the value in --help.
func (*Bytes) Type() string { return "bytes" }
