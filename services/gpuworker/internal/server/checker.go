package server

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/services/internal/rpc"
)

// maxViolations is how many a status lists: it travels in headers, which clients bound at about 8 KiB.
const maxViolations = 32

// checker collects violations.
type checker struct{ violations []rpc.Violation }

func (c *checker) add(field, format string, args ...any) {
	switch n := len(c.violations); {
	case n > maxViolations:
		return
	case n == maxViolations:
		format, args = "is wrong too; what else is wrong is not listed: correct these first", nil
	}
	c.violations = append(c.violations, rpc.Violation{Field: field, Description: fmt.Sprintf(format, args...)})
}

// float checks a knob's range; NaN and infinities are in none.
func (c *checker) float(field string, v *float32, low, high float32, openLow bool) {
	if v == nil {
		return
	}
	bracket := "["
	if openLow {
		bracket = "("
	}
	if !(*v >= low && *v <= high) || (openLow && *v == low) {
		c.add(field, "is %v, want a number in %s%v, %v]", *v, bracket, low, high)
	}
}

func (c *checker) int(field string, v *int32, low, high int32) {
	if v != nil && (*v < low || *v > high) {
		c.add(field, "is %d, want [%d, %d]", *v, low, high)
	}
}

func (c *checker) digest(field string, v *string) {
	if v == nil {
		return
	}
	if raw, err := hex.DecodeString(*v); err != nil || len(raw) != 32 || strings.ToLower(*v) != *v {
		c.add(field, "is no digest: want 64 lower-case hex digits")
	}
}

// ids checks token ids against a vocabulary.
func (c *checker) ids(field string, ids []uint32, vocabulary int) {
	bad := slices.IndexFunc(ids, func(id uint32) bool { return id >= uint32(vocabulary) })
	if bad >= 0 {
		c.add(fmt.Sprintf("%s[%d]", field, bad), "is %d, want [0, %d)", ids[bad], vocabulary)
	}
}
