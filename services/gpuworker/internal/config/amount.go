package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// amount is a number of bytes, or a fraction above 0 and at most 1; the zero value is none.
type amount struct {
	value    float64
	fraction bool
}

func parseLimit(s string) (amount, error) {
	if s == "" {
		return amount{}, nil
	}
	digits, unit := s, 1.0
	for suffix, size := range map[string]float64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40} {
		if before, ok := strings.CutSuffix(s, suffix); ok {
			digits, unit = before, size
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		return amount{}, errors.New("want bytes, such as 8GiB, or a fraction between 0 and 1")
	}
	switch bytes := v * unit; {
	case digits == s && v <= 1:
		return amount{v, true}, nil
	case bytes < 1:
		return amount{}, errors.New("is less than a byte")
	case bytes > 1<<62:
		return amount{}, errors.New("is more than any device has")
	default:
		return amount{value: bytes}, nil
	}
}

// parseSwap reads bytes of host memory: 0 where nothing is said, -1 for "0".
func parseSwap(s string) (int64, error) {
	if v, err := strconv.ParseFloat(s, 64); err == nil && v == 0 {
		return -1, nil
	}
	a, err := parseLimit(s)
	if err != nil || a.fraction {
		return 0, errors.New("want bytes, such as 8GiB, or 0 for none")
	}
	return int64(a.value), nil
}
