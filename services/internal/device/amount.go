package device

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// Amount is a number of bytes, or a fraction f of some total, 0 < f <= 1. The zero value is none.
type Amount struct {
	value    float64
	fraction bool
}

// ParseAmount reads bytes with or without a unit, such as 4096 or 8GiB, or a fraction, such as 0.5; 1 is the whole. Empty text
// is none.
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

// Fraction says whether the amount depends on a total.
func (a Amount) Fraction() bool { return a.fraction }

// Of is the amount in bytes, of a total of so many bytes where it is a fraction; of none it is 0, of a fraction at least 1.
func (a Amount) Of(total uint64) uint64 {
	if a.fraction {
		return max(1, uint64(a.value*float64(total)))
	}
	return uint64(a.value)
}
