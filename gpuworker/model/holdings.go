package model

import (
	"errors"
	"fmt"
	"slices"
)

// holding is a device resource that must be freed.
type holding struct {
	name  string
	bytes *uint64 // device memory; nil: not counted
	free  func() error
}

// holdings are the device resources of an instance, in order of allocation. Not safe for concurrent
// use.
type holdings []holding

func (h *holdings) add(name string, bytes *uint64, free func() error) {
	*h = append(*h, holding{name: name, bytes: bytes, free: free})
}

// release frees everything, newest first, and returns how many frees the device refused. Refused
// ones stay for the next release, and the error names them.
func (h *holdings) release() (refused int, err error) {
	var left holdings
	for _, one := range slices.Backward(*h) {
		if freeErr := one.free(); freeErr != nil {
			err = errors.Join(err, fmt.Errorf("free its %s: %w", one.name, freeErr))
			left = append(left, one)
		}
	}
	slices.Reverse(left)
	*h = left
	return len(left), err
}

// bytes is the device memory in use.
func (h *holdings) bytes() (sum uint64) {
	for _, one := range *h {
		if one.bytes != nil {
			sum += *one.bytes
		}
	}
	return sum
}
