package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/blake3"
	"github.com/millrace/millrace/gpuworker/vram"
)

const (
	// hashPiece is how many bytes are read and hashed at a time, so that they stay in a core's
	// cache.
	hashPiece = blake3.Best
	// uploadPiece is the size of a copy to a device that copies from any memory, for the same
	// reason.
	uploadPiece = 512 << 10
	// stagedPiece is the size of a copy through staging memory, because the link to the device is
	// fast with large copies only.
	stagedPiece = 4 << 20
)

// upload copies every tensor to the device, reading and hashing each piece once, and compares the
// digests of the resident bytes with the file's. Bound tensors are verified while others are still
// being uploaded.
func (l *loader) upload(ctx context.Context, inst *Instance, file *gguf.File, spec *arch.Model) error {
	verified, err := l.transfer(ctx, inst, file, spec)
	if err != nil {
		return err
	}
	if want := l.options.ExpectDigest; want != nil && *want != inst.Digest {
		return fmt.Errorf("%w: the file has %x, expected %x", ErrDigest, inst.Digest, *want)
	}
	meter := newMeter(Verifying, spec.Bytes, l.progress)
	count := func(i int) { meter.add(spec.Bindings[i].Tensor.Size) }
	for i := range verified {
		count(i)
	}
	return inst.verify(ctx, verified, count)
}

// transfer uploads tensors by several goroutines, a piece at a time, binds them in order and
// verifies as many as it has time for. Staging never holds more than the largest tensor, so the
// peak is one tensor above the model's size. The first error ends all goroutines and is returned;
// if ctx ends, it is the cause.
func (l *loader) transfer(ctx context.Context, inst *Instance, file *gguf.File, spec *arch.Model) (verified int, err error) {
	memory := vram.New(l.device, l.logger)
	defer func() {
		err = errors.Join(err, memory.Close())
		if n := len(memory.Live()); n > 0 {
			l.leaked.Add(int64(n))
			inst.resources.add("staging buffers", nil, func() error {
				err := closeAll(memory)
				left := len(memory.Live())
				l.leaked.Add(int64(left - n))
				n = left
				return err
			})
		}
	}()
	largest := int64(0)
	for _, b := range spec.Bindings {
		largest = max(largest, int64(b.Bytes()))
	}
	all := allTensors(file, spec)
	u := &uploads{
		file: file, meter: newMeter(Uploading, spec.Bytes, l.progress), room: semaphore.NewWeighted(largest),
		pieces: make(chan piece, l.cfg.UploadWorkers), pending: make(chan *tensorUpload, len(all)),
	}
	defer func() {
		err = errors.Join(err, u.free())
		if len(u.frees) > 0 {
			inst.resources.add("staged host memory", nil, u.free)
		}
	}()
	buffers, err := u.buffers(l.device, l.cfg.UploadWorkers, l.logger)
	if err != nil {
		return 0, err
	}
	defer func() { // tensors that were not bound
		for s := range u.pending {
			err = errors.Join(err, s.drop())
		}
	}()
	group, ctx := errgroup.WithContext(ctx)
	start := func(f func() error) { group.Go(func() error { return guarded(l.logger, f) }) }
	for _, buffer := range buffers {
		start(func() error { return u.copy(ctx, buffer) })
	}
	start(func() error { return u.stage(ctx, memory, all, len(spec.Bindings)) })
	bound := make(chan tensorDigest, len(spec.Bindings)) // has room for all: sending never waits
	done := make(chan struct{})
	start(func() error {
		defer close(done)
		return u.bindInOrder(ctx, inst, len(all), bound)
	})
	start(func() (err error) {
		verified, err = inst.verifyBound(ctx, bound, done)
		return err
	})
	err = group.Wait()
	close(u.pending)
	if err != nil {
		return 0, err
	}
	tensors := make([]gguf.Tensor, len(all))
	for i, b := range all {
		tensors[i] = b.Tensor
	}
	inst.Digest = engine.Digest(gguf.ModelDigest(file.Metadata(), tensors, u.digests))
	return verified, inst.model.Seal()
}

// allTensors returns the bindings, and after them the tensors that the model does not use, which
// count in its digest. A tensor that holds several roles is in the list as its views.
func allTensors(file *gguf.File, spec *arch.Model) []arch.Binding {
	all := slices.Clone(spec.Bindings)
	used := map[string]bool{}
	for _, b := range all {
		used[b.File] = true
	}
	for _, t := range file.Tensors() {
		if !used[t.Name] {
			all = append(all, arch.Binding{Tensor: t})
		}
	}
	return all
}

// uploads is the state that the goroutines of one load share. The pipeline has these stages: stage
// allocates a buffer and splits a tensor into pieces, copy reads, hashes and writes pieces,
// bindInOrder binds finished tensors, and verifyBound verifies them.
type uploads struct {
	file   *gguf.File
	meter  *meter
	room   *semaphore.Weighted // bytes that may be staged
	piece  uint64              // bytes
	frees  []func() error      // free the memory of pieces
	pieces chan piece
	// pending has the tensors in binding order. It has room for all: sending never waits.
	pending chan *tensorUpload
	digests []gguf.Digest // of the file's bytes, in the same order
}

// tensorUpload is one tensor being uploaded.
type tensorUpload struct {
	arch.Binding              // without a buffer, the tensor alone
	buffer       *vram.Buffer // nil: the model does not use it, only its digest counts
	hash         *gguf.Pieces // of the file's bytes
	// wide hashes the bytes that the engine gets if the engine widens the tensor; nil otherwise.
	// The engine proves the widened bytes, while the model's digest is of the file's bytes.
	wide *gguf.Pieces
	left atomic.Int64  // bytes
	done chan struct{} // closed when none are left
}

// drop frees a buffer that was not bound.
func (s *tensorUpload) drop() error {
	if s.buffer == nil {
		return nil
	}
	return s.buffer.Free()
}

// write copies bytes to the device.
func (s *tensorUpload) write(bytes []byte, off uint64) error {
	if _, err := s.buffer.WriteAt(bytes, int64(off)); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	return nil
}

// piece is a range of one tensor's bytes.
type piece struct {
	tensor *tensorUpload
	index  int
}

// buffers returns the memory for pieces: one buffer for each of n goroutines, and half as many more
// if the device copies asynchronously. If the device has too little staging memory for n buffers,
// ordinary memory is used instead, because fewer goroutines would read and hash more slowly than
// the device copies.
func (u *uploads) buffers(device engine.Device, n int, logger hclog.Logger) ([][]byte, error) {
	stager, ok := device.(engine.Stager)
	var buffers [][]byte
	for ok && len(buffers) < n+n/2 {
		memory, err := stager.Stage(stagedPiece)
		if errors.Is(err, engine.ErrUnsupported) {
			break
		}
		if errors.Is(err, engine.ErrOutOfMemory) {
			logger.Warn("too little memory to upload from, the load may take longer", "buffers", len(buffers), "wanted", n+n/2,
				"error", err)
			break
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("upload: %w", err), u.free())
		}
		buffers, u.frees = append(buffers, memory.Bytes()), append(u.frees, memory.Free)
	}
	if len(buffers) >= n {
		u.piece = stagedPiece
		return buffers, nil
	}
	if err := u.free(); err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	buffers, u.piece = nil, uploadPiece
	for range n {
		buffers = append(buffers, make([]byte, u.piece))
	}
	return buffers, nil
}

// free frees the memory of pieces. Frees that the device refuses stay in u.frees.
func (u *uploads) free() (err error) {
	frees := u.frees
	u.frees = nil
	for _, free := range frees {
		if freeErr := free(); freeErr != nil {
			err, u.frees = errors.Join(err, freeErr), append(u.frees, free)
		}
	}
	return err
}

// closeAll frees all buffers of a pool. Live buffers are not an error here.
func closeAll(memory *vram.Pool) error {
	if err := memory.Close(); len(memory.Live()) > 0 {
		return err
	}
	return nil
}

// stage allocates buffers for the first `used` tensors, as room allows, and enqueues all. The others
// are read for the model's digest alone.
func (u *uploads) stage(ctx context.Context, memory *vram.Pool, all []arch.Binding, used int) error {
	defer close(u.pieces)
	for i, b := range all {
		upload := &tensorUpload{Binding: b}
		if i < used {
			if u.room.Acquire(ctx, int64(b.Bytes())) != nil {
				return context.Cause(ctx)
			}
			var err error
			if upload.buffer, err = memory.Alloc(b.Bytes(), engine.Staging, b.Tensor.Name); err != nil {
				return err
			}
		}
		if err := u.enqueue(ctx, upload); err != nil {
			return err
		}
	}
	return nil
}

// enqueue hands a tensor and its pieces to the other goroutines.
func (u *uploads) enqueue(ctx context.Context, s *tensorUpload) error {
	s.done = make(chan struct{})
	s.left.Store(int64(s.Tensor.Size))
	s.hash = gguf.NewPieces(s.Tensor.Size, hashPiece)
	if s.buffer != nil && s.Widens() {
		s.wide = gguf.NewPieces(s.Bytes(), 2*hashPiece)
	}
	u.pending <- s
	for i := 0; uint64(i)*u.piece < s.Tensor.Size; i++ {
		select {
		case u.pieces <- piece{tensor: s, index: i}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// copy processes pieces with one buffer until there are no more.
func (u *uploads) copy(ctx context.Context, buffer []byte) error {
	for p := range u.pieces {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		off := uint64(p.index) * u.piece
		bytes := buffer[:min(u.piece, p.tensor.Tensor.Size-off)]
		for offset := uint64(0); offset < uint64(len(bytes)); offset += hashPiece {
			part := bytes[offset:min(offset+hashPiece, uint64(len(bytes)))]
			if err := u.file.ReadAt(p.tensor.Tensor, part, off+offset); err != nil {
				return err
			}
			index := int((off + offset) / hashPiece)
			p.tensor.hash.Hash(index, part)
			if p.tensor.wide != nil {
				wide := p.tensor.Widen(part)
				p.tensor.wide.Hash(index, wide)
				if err := p.tensor.write(wide, 2*(off+offset)); err != nil {
					return err
				}
			}
		}
		if p.tensor.buffer != nil && p.tensor.wide == nil {
			if err := p.tensor.write(bytes, off); err != nil {
				return err
			}
		}
		if p.tensor.buffer != nil {
			u.meter.add(uint64(len(bytes)))
		}
		if p.tensor.left.Add(-int64(len(bytes))) == 0 {
			close(p.tensor.done)
		}
	}
	return nil
}

// bindInOrder records each tensor's digest once its bytes are hashed, and binds the tensor if the
// model uses it. count is the number of all tensors.
func (u *uploads) bindInOrder(ctx context.Context, inst *Instance, count int, bound chan<- tensorDigest) error {
	for range count {
		var s *tensorUpload
		select {
		case s = <-u.pending:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case <-s.done:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			u.pending <- s // other goroutines may still write to it
			return context.Cause(ctx)
		}
		digest := s.hash.Sum()
		u.digests = append(u.digests, digest)
		if s.buffer == nil {
			continue
		}
		raw, err := s.buffer.Release()
		if err != nil {
			return err
		}
		if err := bindBuffer(inst.model, s.Desc, raw); err != nil {
			return fmt.Errorf("tensor %q: %w", s.Tensor.Name, err)
		}
		u.room.Release(int64(s.Bytes()))
		if s.wide != nil {
			digest = s.wide.Sum()
		}
		t := tensorDigest{name: s.Tensor.Name, digest: engine.Digest(digest)}
		inst.weights += inst.sizes[len(inst.tensors)]
		inst.tensors = append(inst.tensors, t)
		bound <- t
	}
	return nil
}

// bindBuffer gives a buffer to a model, which owns it from then on. After a panic the buffer is
// freed if the model does not own it.
func bindBuffer(m engine.Model, desc engine.TensorDesc, raw engine.Buffer) error {
	returned := false
	defer func() {
		if !returned {
			_ = raw.Free() // refused if the model owns it
		}
	}()
	err := m.Bind(desc, raw)
	returned = true
	return err
}
