package model

import (
	"errors"
	"fmt"
	"slices"
)

// holding is something of the device that is to be given back.
type holding struct {
	name  string
	bytes *uint64 // of device memory; nil: they are not counted as the model's
	free  func() error
}

// holdings are what an instance has of the device, in the order in which it was taken. Not safe for concurrent use.
type holdings []holding

func (h *holdings) add(name string, bytes *uint64, free func() error) {
	*h = append(*h, holding{name: name, bytes: bytes, free: free})
}

// release gives everything back, the newest first, and returns how many frees the device refused. What is refused stays,
// for the next release to try again, and the error says what it is.
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

// bytes is how much device memory is held.
func (h *holdings) bytes() (sum uint64) {
	for _, one := range *h {
		if one.bytes != nil {
			sum += *one.bytes
		}
	}
	return sum
}
