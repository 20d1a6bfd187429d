package sim

import (
	"fmt"
	"sync"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// TrainerCost returns the memory of the rows, and of the state of a round.
func (d *Device) TrainerCost(cfg engine.TrainerConfig) (engine.TrainerCost, error) {
	if err := rules.CheckTrainer(cfg); err != nil {
		return engine.TrainerCost{}, err
	}
	book := cfg.Codebook
	each := uint64(book.Dimension*cfg.Element.Size() + 12*book.Subspaces)
	return engine.TrainerCost{DeviceBytes: cfg.Rows*each + 2*book.Bytes()}, nil
}

// NewTrainer counts the memory of a training. Package vq computes the rounds: unlike tokens,
// codebooks of the sim engine have the same bits as those of every engine.
func (d *Device) NewTrainer(cfg engine.TrainerConfig) (engine.Trainer, error) {
	cost, err := d.TrainerCost(cfg)
	if err != nil {
		return nil, err
	}
	if err := d.take(cost.DeviceBytes, engine.Workspace); err != nil {
		return nil, fmt.Errorf("trainer: %w", err)
	}
	d.count(1)
	return &Trainer{dev: d, cfg: cfg, bytes: cost.DeviceBytes}, nil
}

// NewCodebook copies codewords.
func (d *Device) NewCodebook(desc engine.CodebookDesc, codewords []byte) (engine.Codebook, error) {
	book, err := vq.NewCodebook(desc, codewords)
	if err != nil {
		return nil, err
	}
	if err := d.take(desc.Bytes(), engine.Workspace); err != nil {
		return nil, fmt.Errorf("codebook: %w", err)
	}
	d.count(1)
	b := &Codebook{dev: d, desc: desc}
	b.mu.book, b.mu.bytes = book, append([]byte(nil), codewords...)
	return b, nil
}

// count counts live trainers and codebooks.
func (d *Device) count(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.vectors += n
}

// Codebook is a codebook of the reference.
type Codebook struct {
	dev  *Device
	desc engine.CodebookDesc
	mu   struct {
		sync.Mutex
		book  *vq.Codebook // nil once closed
		bytes []byte
	}
}

func (b *Codebook) open() (*vq.Codebook, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.book == nil {
		return nil, closed("codebook")
	}
	return b.mu.book, nil
}

// Encode returns the codes of rows.
func (b *Codebook) Encode(e engine.Encoding) (engine.Codes, error) {
	book, err := b.open()
	if err != nil {
		return engine.Codes{}, err
	}
	return book.Encode(e)
}

// Decode returns the codewords of codes.
func (b *Codebook) Decode(codes []byte) ([]byte, error) {
	book, err := b.open()
	if err != nil {
		return nil, err
	}
	return book.Decode(codes)
}

// Digest returns BLAKE3 of the codewords' bytes.
func (b *Codebook) Digest() (engine.Digest, error) {
	book, err := b.open()
	if err != nil {
		return engine.Digest{}, err
	}
	return book.Digest(), nil
}

// FlipBit injects a flipped bit into the codewords.
func (b *Codebook) FlipBit(bit uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.mu.book == nil:
		return closed("codebook")
	case bit >= 8*b.desc.Bytes():
		return fmt.Errorf("bit %d of %d bytes: %w", bit, b.desc.Bytes(), engine.ErrInvalid)
	}
	b.mu.bytes[bit/8] ^= 1 << (bit % 8)
	b.mu.book = vq.Resident(b.desc, b.mu.bytes)
	return nil
}

// Close frees the codebook's memory.
func (b *Codebook) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.book == nil {
		return closed("codebook")
	}
	b.mu.book = nil
	b.dev.give(b.desc.Bytes(), engine.Workspace)
	b.dev.count(-1)
	return nil
}

var (
	_ engine.Vectors            = (*Device)(nil)
	_ engine.Codebook           = (*Codebook)(nil)
	_ engine.CodebookBitFlipper = (*Codebook)(nil)
)
