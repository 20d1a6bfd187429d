package engine

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// piece is the number of bytes copied to the device at once.
const piece = 1 << 20

// bindModel binds every tensor of the file and seals the model, which the caller must close. It
// does not check digests.
func bindModel(ctx context.Context, device engine.Device, file *gguf.File, spec *arch.Model) (_ engine.Model, err error) {
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

// randomPrompt returns n random ids that depend only on the arguments.
func randomPrompt(seed uint64, sequence, n, vocabulary int) []int32 {
	r := rand.New(rand.NewPCG(seed, uint64(sequence)))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(r.IntN(vocabulary))
	}
	return ids
}

// digestTokens returns BLAKE3 of the ids as little-endian uint32, in 64 hex digits.
func digestTokens(tokens []int32) string {
	bytes := make([]byte, 0, 4*len(tokens))
	for _, id := range tokens {
		bytes = binary.LittleEndian.AppendUint32(bytes, uint32(id))
	}
	sum := blake3.Sum256(bytes)
	return hex.EncodeToString(sum[:])
}
