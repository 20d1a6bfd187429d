package arch

import (
	"errors"
	"fmt"
)

var (
	// ErrUnsupportedArch means that the model's architecture, or a feature of it, is not built. The
	// message names it.
	ErrUnsupportedArch = errors.New("unsupported model architecture")
	// ErrUnsupportedType means that a tensor is stored in a type that engines do not run. The
	// message names both.
	ErrUnsupportedType = errors.New("unsupported tensor type")
	// ErrInvalidModel means that the file contradicts itself: a hyperparameter or tensor is missing
	// or has a wrong size.
	ErrInvalidModel = errors.New("invalid model file")
)

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrUnsupportedArch)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrInvalidModel)
}
