package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

type key struct {
	role  engine.Role
	layer int
}

// tensor is a bound tensor without its bytes.
type tensor struct {
	digest  engine.Digest
	size    uint64
	flipped map[uint64]bool // flipped bits
}

// Model has the digests of a model's tensors.
type Model struct {
	dev  *Device
	desc engine.ModelDesc
	want map[key]rules.Wanted
	mu   struct {
		sync.Mutex
		closed, sealed bool
		bound          map[key]bool
		tensors        []tensor
		bytes          uint64
		runners        int
	}
}

func newModel(d *Device, desc engine.ModelDesc) *Model {
	m := &Model{dev: d, desc: desc, want: map[key]rules.Wanted{}}
	m.mu.bound = map[key]bool{}
	for _, w := range rules.Tensors(&desc) {
		m.want[key{w.Role, w.Layer}] = w
	}
	return m
}

// Bind consumes the buffer, even if it fails.
func (m *Model) Bind(desc engine.TensorDesc, buf engine.Buffer) error {
	if buf == nil {
		return fmt.Errorf("bind %s: no buffer: %w", rules.Name(desc.Role, desc.Layer), engine.ErrInvalid)
	}
	err := m.bind(desc, buf)
	return errors.Join(err, buf.Free())
}

func (m *Model) bind(desc engine.TensorDesc, buf engine.Buffer) error {
	name := rules.Name(desc.Role, desc.Layer)
	size, err := rules.TensorSize(desc)
	if err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	want, ok := m.want[key{desc.Role, desc.Layer}]
	switch {
	case !ok:
		return fmt.Errorf("bind %s: this model has no such tensor: %w", name, engine.ErrInvalid)
	case !slices.Equal(want.Dims, desc.Dims):
		return fmt.Errorf("bind %s: dims are %v, want %v: %w", name, desc.Dims, want.Dims, engine.ErrInvalid)
	case want.F32 && desc.Type != engine.F32:
		return fmt.Errorf("bind %s: type is %d, want F32: %w", name, desc.Type, engine.ErrInvalid)
	case buf.Size() < size:
		return fmt.Errorf("bind %s: buffer has %d bytes, want %d: %w", name, buf.Size(), size, engine.ErrInvalid)
	}
	digest, err := buf.Digest(0, size)
	if err != nil {
		return fmt.Errorf("bind %s: %w", name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.mu.closed:
		return closed("model")
	case m.mu.sealed:
		return fmt.Errorf("bind %s: model is sealed: %w", name, engine.ErrPrecondition)
	case m.mu.bound[key{desc.Role, desc.Layer}]:
		return fmt.Errorf("bind %s: bound twice: %w", name, engine.ErrPrecondition)
	}
	if err := m.dev.take(size, engine.Weights); err != nil {
		return fmt.Errorf("bind %s: %w", name, err)
	}
	m.mu.bound[key{desc.Role, desc.Layer}] = true
	m.mu.tensors = append(m.mu.tensors, tensor{digest: digest, size: size})
	m.mu.bytes += size
	return nil
}

// Seal checks that the model is complete.
func (m *Model) Seal() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.mu.closed:
		return closed("model")
	case m.mu.sealed:
		return fmt.Errorf("model is already sealed: %w", engine.ErrPrecondition)
	}
	for _, w := range rules.Tensors(&m.desc) {
		if !m.mu.bound[key{w.Role, w.Layer}] {
			return fmt.Errorf("seal: %s is not bound: %w", rules.Name(w.Role, w.Layer), engine.ErrPrecondition)
		}
	}
	m.mu.sealed = true
	return nil
}

// Digest returns BLAKE3 of the tensor's file bytes, or another value while bits of it are flipped.
func (m *Model) Digest(index int) (engine.Digest, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, err := m.tensorLocked(index)
	if err != nil {
		return engine.Digest{}, err
	}
	if len(t.flipped) == 0 {
		return t.digest, nil
	}
	b := t.digest[:]
	for _, bit := range slices.Sorted(maps.Keys(t.flipped)) {
		b = binary.LittleEndian.AppendUint64(b[:len(b):len(b)], bit)
	}
	return blake3.Sum256(b), nil
}

// FlipBit makes the tensor's digest differ until the same bit is flipped again.
func (m *Model) FlipBit(index int, bit uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, err := m.tensorLocked(index)
	if err != nil {
		return err
	}
	if bit/8 >= t.size {
		return fmt.Errorf("bit %d of a tensor of %d bytes: %w", bit, t.size, engine.ErrInvalid)
	}
	if t.flipped == nil {
		t.flipped = map[uint64]bool{}
	}
	if t.flipped[bit] {
		delete(t.flipped, bit)
	} else {
		t.flipped[bit] = true
	}
	return nil
}

func (m *Model) tensorLocked(index int) (*tensor, error) {
	if m.mu.closed {
		return nil, closed("model")
	}
	if index < 0 || index >= len(m.mu.tensors) {
		return nil, fmt.Errorf("tensor %d of %d: %w", index, len(m.mu.tensors), engine.ErrInvalid)
	}
	return &m.mu.tensors[index], nil
}

// RunnerCost returns the memory that a runner would allocate.
func (m *Model) RunnerCost(cfg engine.RunnerConfig) (engine.RunnerCost, error) {
	if err := rules.CheckRunner(&m.desc, cfg); err != nil {
		return engine.RunnerCost{}, err
	}
	block, window, state := rules.BlockBytes(&m.desc, cfg, false), rules.BlockBytes(&m.desc, cfg, true), 4*uint64(m.desc.StateFloats())
	kv := block*uint64(cfg.KVBlocks) + state*uint64(cfg.MaxSequences+cfg.SavedStates)
	if cfg.WindowBlocks > 0 {
		kv += window * uint64(cfg.WindowBlocks+1)
	}
	return engine.RunnerCost{
		BytesPerState: state, HostBytesPerState: state,
		BytesPerBlock: block, KVBytes: kv, WorkspaceBytes: 64*uint64(cfg.MaxBatchedTokens) + 8*uint64(cfg.MaxHiddenRows)*uint64(m.desc.Hidden),
		HostBytesPerBlock: block, BytesPerWindowBlock: window, HostBytesPerWindowBlock: window,
	}, nil
}

// NewRunner returns a runner of a sealed model.
func (m *Model) NewRunner(cfg engine.RunnerConfig) (engine.Runner, error) {
	cost, err := m.RunnerCost(cfg)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.mu.closed:
		return nil, closed("model")
	case !m.mu.sealed:
		return nil, fmt.Errorf("new runner: model is not sealed: %w", engine.ErrPrecondition)
	}
	if err := m.dev.take(cost.KVBytes, engine.KV); err != nil {
		return nil, fmt.Errorf("kv cache: %w", err)
	}
	if err := m.dev.take(cost.WorkspaceBytes, engine.Workspace); err != nil {
		m.dev.give(cost.KVBytes, engine.KV)
		return nil, fmt.Errorf("workspace: %w", err)
	}
	m.mu.runners++
	return newRunner(m, cfg, cost, m.mu.bytes), nil
}

// Close returns ErrPrecondition while runners live.
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.mu.closed:
		return closed("model")
	case m.mu.runners > 0:
		return fmt.Errorf("model still has %d runners: %w", m.mu.runners, engine.ErrPrecondition)
	}
	m.mu.closed = true
	m.dev.give(m.mu.bytes, engine.Weights)
	m.dev.mu.Lock()
	m.dev.mu.models--
	m.dev.mu.Unlock()
	return nil
}

var (
	_ engine.Model      = (*Model)(nil)
	_ engine.BitFlipper = (*Model)(nil)
)
