package config

import (
	"errors"
	"strconv"

	"github.com/millrace/millrace/services/internal/device"
)

// parseSwap reads bytes of host memory: 0 where nothing is said, -1 for "0".
func parseSwap(s string) (int64, error) {
	if v, err := strconv.ParseFloat(s, 64); err == nil && v == 0 {
		return -1, nil
	}
	a, err := device.ParseAmount(s)
	if err != nil || a.Fraction() {
		return 0, errors.New("want bytes, such as 8GiB, or 0 for none")
	}
	return int64(a.Of(0)), nil
}
