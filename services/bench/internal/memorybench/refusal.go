package memorybench

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/millrace/millrace/gpuworker/engine"
)

// leastPiece is the smallest piece that memory is asked for in: the page that drivers map large blocks in.
const leastPiece = 2 << 20

// numbersOfFree finds "N of M bytes free".
var numbersOfFree = regexp.MustCompile(`\d+ of \d+ bytes free`)

// clearRefusal returns nil if a refusal of so many bytes says what was asked and what is free.
func clearRefusal(err error, asked uint64) error {
	if !errors.Is(err, engine.ErrOutOfMemory) {
		return fmt.Errorf("%s were refused with %w: want %q", sizeName(asked), err, engine.ErrOutOfMemory.Error())
	}
	_, text, _ := strings.Cut(err.Error(), engine.ErrOutOfMemory.Error()) // the engine's own words, not its caller's
	switch {
	case !regexp.MustCompile(`\b` + strconv.FormatUint(asked, 10) + `\b`).MatchString(text):
		return fmt.Errorf("the refusal %q does not say the %d bytes asked", text, asked)
	case !numbersOfFree.MatchString(text):
		return fmt.Errorf("the refusal %q does not say the bytes that are free", text)
	}
	return nil
}

// hoard is buffers of one device.
type hoard struct {
	dev     engine.Device
	buffers []engine.Buffer
	bytes   uint64
	refusal error // the last
}

// take asks for one piece; false: it was refused, as refusal says. A refusal that is not clear is an error.
func (h *hoard) take(size uint64) (bool, error) {
	b, err := h.dev.Alloc(size, engine.Weights)
	if err != nil {
		h.refusal = err
		return false, clearRefusal(err, size)
	}
	h.buffers = append(h.buffers, b)
	h.bytes += size
	return true, nil
}

// fill takes pieces of one size until one is refused.
func (h *hoard) fill(size uint64) error {
	for {
		if more, err := h.take(size); err != nil || !more {
			return err
		}
	}
}

// drop gives everything back.
func (h *hoard) drop() error {
	var errs []error
	for _, b := range h.buffers {
		errs = append(errs, b.Free())
	}
	h.buffers, h.bytes = nil, 0
	return errors.Join(errs...)
}

// used is the live bytes of every purpose.
func used(info *engine.DeviceInfo) (sum uint64) {
	for _, n := range info.BytesUsed {
		sum += n
	}
	return sum
}

// agrees says that the device counts what is held.
func (h *hoard) agrees() error {
	info, err := h.dev.Info()
	if err != nil {
		return err
	}
	if used(&info) != h.bytes || info.LiveBuffers != uint64(len(h.buffers)) {
		return fmt.Errorf("the device counts %d bytes in %d buffers, and %d in %d are held", used(&info), info.LiveBuffers,
			h.bytes, len(h.buffers))
	}
	return nil
}
