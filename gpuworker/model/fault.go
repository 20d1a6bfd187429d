package model

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Fault asks the engine to misbehave; for tests of what then happens.
func (i *Instance) Fault(f engine.Fault, index int32, value uint64) error {
	faulter, ok := i.runner.(engine.Faulter)
	if !ok {
		return fmt.Errorf("%w: faults", engine.ErrUnsupported)
	}
	return faulter.Fault(f, index, value)
}

// FlipBit flips one bit of a tensor's resident bytes and returns the tensor's name; for tests of what then happens.
func (i *Instance) FlipBit(tensor int, bit uint64) (name string, err error) {
	flipper, ok := i.model.(engine.BitFlipper)
	if !ok {
		return "", fmt.Errorf("%w: faults", engine.ErrUnsupported)
	}
	return i.tensors[tensor].name, flipper.FlipBit(tensor, bit)
}
