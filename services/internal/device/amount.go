package device

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// Amount is a number of bytes, or a fraction f of a total, 0 < f <= 1. The zero value means none.
type Amount struct {
	value    float64
	fraction bool
}

// ParseAmount parses bytes with or without a unit, such as 4096 or 8GiB, or a fraction, such as
// 0.5; 1 is the whole. "" means none.
func ParseAmount(s string) (Amount, error) {
	if s == "" {
		return Amount{}, nil
	}
	digits, unit := s, 1.0
	for suffix, size := range map[string]float64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40} {
		if before, ok := strings.CutSuffix(s, suffix); ok {
			digits, unit = before, size
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		return Amount{}, errors.New("want bytes, such as 8GiB, or a fraction between 0 and 1")
	}
	switch bytes := v * unit; {
	case digits == s && v <= 1:
		return Amount{v, true}, nil
	case bytes < 1:
		return Amount{}, errors.New("is less than a byte")
	case bytes > 1<<62:
		return Amount{}, errors.New("is more than any device has")
	default:
		return Amount{value: bytes}, nil
	}
}

// Fraction reports whether the amount depends on a total.
func (a Amount) Fraction() bool { return a.fraction }

// Of returns the amount in bytes, given the total for a fraction. It returns 0 for no amount, and
// at least 1 for a fraction.
func (a Amount) Of(total uint64) uint64 {
	if a.fraction {
		return max(1, uint64(a.value*float64(total)))
	}
	return uint64(a.value)
}
