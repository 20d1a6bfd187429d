package gauge

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// piece is how many bytes are copied to the device at a time.
const piece = 1 << 20

// Load binds every tensor of the file and seals the model, which the caller closes. Digests are not checked.
func Load(ctx context.Context, device engine.Device, file *gguf.File, spec *arch.Model) (_ engine.Model, err error) {
	m, err := device.NewModel(spec.Desc)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	bytes := make([]byte, piece)
	for _, b := range spec.Bindings {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		buffer, err := upload(device, file, b, bytes)
		if err == nil {
			err = m.Bind(b.Desc, buffer)
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", b.Tensor.Name, err)
		}
	}
	return m, m.Seal()
}

func upload(device engine.Device, file *gguf.File, b arch.Binding, bytes []byte) (engine.Buffer, error) {
	size := b.Bytes()
	buffer, err := device.Alloc(size, engine.Staging)
	if err != nil {
		return nil, err
	}
	for off := uint64(0); off < size; {
		p := bytes[:min(piece, size-off)]
		err := b.ReadAt(file, p, off)
		if err == nil {
			_, err = buffer.WriteAt(p, int64(off))
		}
		if err != nil {
			return nil, errors.Join(err, buffer.Free())
		}
		off += uint64(len(p))
	}
	return buffer, nil
}
