package device

import (
	"errors"
	"strconv"
	"strings"

	"github.com/millrace/millrace/gpuworker/engine/native"
)

// pool is how much freed memory a device keeps for reuse. The zero value is the engine's default.
type pool struct {
	none   bool
	amount Amount
}

// parsePool reads 0, an amount as ParseAmount does, or a percentage above 0 and at most 100, such
// as 50%. Empty text is the default.
func parsePool(s string) (pool, error) {
	if percent, ok := strings.CutSuffix(s, "%"); ok {
		v, err := strconv.ParseFloat(strings.TrimSpace(percent), 64)
		if err != nil || !(v >= 0 && v <= 100) {
			return pool{}, errors.New("want a percentage between 0 and 100")
		}
		return pool{none: v == 0, amount: Amount{value: v / 100, fraction: v > 0}}, nil
	}
	if v, err := strconv.ParseFloat(s, 64); err == nil && v == 0 {
		return pool{none: true}, nil
	}
	a, err := ParseAmount(s)
	return pool{amount: a}, err
}

// of returns the limit in bytes for a ledger of the given bytes.
func (p pool) of(total uint64) uint64 {
	if p.none {
		return native.NoPool
	}
	return p.amount.Of(total)
}
