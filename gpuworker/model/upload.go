package model

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

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
	// hashPiece is how many bytes are read and hashed at a time: they stay in a core's cache meanwhile.
	hashPiece = blake3.Best
	// uploadPiece is how many are handed to a device that copies from any memory alike, for the same reason.
	uploadPiece = 512 << 10
	// stagedPiece is how many are handed to one that has memory of its own to copy from: its link wants large copies.
	stagedPiece = 4 << 20
)

// upload copies every tensor to the device and hashes it on the way, each piece read once, and compares the digests of the
// resident bytes with the file's: of tensors that are bound already, while others are still on their way.
func (l *loader) upload(ctx context.Context, inst *Instance, file *gguf.File, spec *arch.Model) error {
	verified, err := l.bind(ctx, inst, file, spec)
	if err != nil {
		return err
	}
	if want := l.options.ExpectDigest; want != nil && *want != inst.Digest {
		return fmt.Errorf("%w: the file has %x, expected %x", ErrDigest, inst.Digest, *want)
	}
	meter := newMeter(Verifying, spec.Bytes, l.progress)
	for i := range verified {
		meter.add(spec.Bindings[i].Tensor.Size)
	}
	return inst.verify(ctx, verified, func(i int) { meter.add(spec.Bindings[i].Tensor.Size) })
}

// bind uploads tensors by several goroutines, each a piece at a time, and binds them in order, verifying as many as it has
// the time for. What is staged is never more than the largest tensor, so that the peak is one tensor above the model's size.
// The first error ends all of it and is the one returned; of a ctx that ends it is the cause.
func (l *loader) bind(ctx context.Context, inst *Instance, file *gguf.File, spec *arch.Model) (verified int, err error) {
	memory := vram.New(l.device, l.logger)
	defer func() {
		err = errors.Join(err, memory.Close())
		if n := len(memory.Live()); n > 0 {
			l.leaked.Add(int64(n))
			inst.holds.add("staging buffers", nil, func() error {
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
	u := &uploads{
		file: file, meter: newMeter(Uploading, spec.Bytes, l.progress), room: semaphore.NewWeighted(largest),
		pieces: make(chan piece, l.cfg.UploadWorkers), staged: make(chan *staged, len(file.Tensors())),
		digests: map[string]gguf.Digest{},
	}
	defer func() {
		err = errors.Join(err, u.free())
		if len(u.frees) > 0 {
			inst.holds.add("staged host memory", nil, u.free)
		}
	}()
	buffers, err := u.buffers(l.device, l.cfg.UploadWorkers, l.logger)
	if err != nil {
		return 0, err
	}
	defer func() { // those that were not bound
		for s := range u.staged {
			err = errors.Join(err, s.drop())
		}
	}()
	group, ctx := errgroup.WithContext(ctx)
	start := func(f func() error) { group.Go(func() error { return guarded(l.logger, f) }) }
	for _, buffer := range buffers {
		start(func() error { return u.copy(ctx, buffer) })
	}
	start(func() error { return u.stage(ctx, memory, spec) })
	bound := make(chan residency, len(spec.Bindings)) // holds all of them, so that sending never waits
	done := make(chan struct{})
	start(func() error {
		defer close(done)
		return u.bind(ctx, inst, bound)
	})
	start(func() (err error) {
		verified, err = inst.follow(ctx, bound, done)
		return err
	})
	err = group.Wait()
	close(u.staged)
	if err != nil {
		return 0, err
	}
	digests := make([]gguf.Digest, len(file.Tensors()))
	for i, t := range file.Tensors() {
		digests[i] = u.digests[t.Name]
	}
	inst.Digest = engine.Digest(gguf.ModelDigest(file.Metadata(), file.Tensors(), digests))
	return verified, inst.model.Seal()
}

// uploads is what the goroutines of one load share.
type uploads struct {
	file    *gguf.File
	meter   *meter
	room    *semaphore.Weighted // bytes that may be staged
	piece   uint64              // bytes
	frees   []func() error      // of the memory of pieces
	pieces  chan piece
	staged  chan *staged           // in the order of binding; holds all of them, so that sending never waits
	digests map[string]gguf.Digest // by tensor, once hashed
}

// staged is one tensor on its way.
type staged struct {
	arch.Binding              // without a buffer, the tensor alone
	buffer       *vram.Buffer // nil: the model has no use for it, but its digest has
	hash         *gguf.Pieces // of the file's bytes
	// wide is the hash of the bytes that the engine gets, where the file has fewer; else nil. The engine proves those, and the model's
	// digest is of the file's.
	wide *gguf.Pieces
	left atomic.Int64  // bytes
	done chan struct{} // closed when none are left
}

// drop gives back what is not bound.
func (s *staged) drop() error {
	if s.buffer == nil {
		return nil
	}
	return s.buffer.Free()
}

// write copies bytes to their place on the device.
func (s *staged) write(bytes []byte, off uint64) error {
	if _, err := s.buffer.WriteAt(bytes, int64(off)); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	return nil
}

// piece is a run of one tensor's bytes.
type piece struct {
	of    *staged
	index int
}

// buffers gives the memory that pieces pass through, a buffer for each of n goroutines, and half as many again where
// goroutines sleep while the device copies. Any memory does where the device has too little of its own for n of them: fewer
// would read and hash more slowly than they copy.
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

// free gives the memory of pieces back; what the device refuses stays in frees.
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

// closeAll frees what a pool still holds; that it was held until now is no error.
func closeAll(memory *vram.Pool) error {
	if err := memory.Close(); len(memory.Live()) > 0 {
		return err
	}
	return nil
}

// stage allocates buffers in the order of binding, as room allows, and hands the tensors' pieces out; last those of tensors
// that the model has no use for.
func (u *uploads) stage(ctx context.Context, memory *vram.Pool, spec *arch.Model) error {
	defer close(u.pieces)
	used := map[string]bool{}
	for _, b := range spec.Bindings {
		used[b.Tensor.Name] = true
		if u.room.Acquire(ctx, int64(b.Bytes())) != nil {
			return context.Cause(ctx)
		}
		buffer, err := memory.Alloc(b.Bytes(), engine.Staging, b.Tensor.Name)
		if err != nil {
			return err
		}
		if err := u.hand(ctx, &staged{Binding: b, buffer: buffer}); err != nil {
			return err
		}
	}
	for _, t := range u.file.Tensors() {
		if used[t.Name] {
			continue
		}
		if err := u.hand(ctx, &staged{Binding: arch.Binding{Tensor: t}}); err != nil {
			return err
		}
	}
	return nil
}

func (u *uploads) hand(ctx context.Context, s *staged) error {
	s.done = make(chan struct{})
	s.left.Store(int64(s.Tensor.Size))
	s.hash = gguf.NewPieces(s.Tensor.Size, hashPiece)
	if s.buffer != nil && s.Widens() {
		s.wide = gguf.NewPieces(s.Bytes(), 2*hashPiece)
	}
	u.staged <- s
	for i := 0; uint64(i)*u.piece < s.Tensor.Size; i++ {
		select {
		case u.pieces <- piece{of: s, index: i}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// copy moves pieces through a buffer until there are no more.
func (u *uploads) copy(ctx context.Context, buffer []byte) error {
	for p := range u.pieces {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		off := uint64(p.index) * u.piece
		bytes := buffer[:min(u.piece, p.of.Tensor.Size-off)]
		for at := uint64(0); at < uint64(len(bytes)); at += hashPiece {
			part := bytes[at:min(at+hashPiece, uint64(len(bytes)))]
			if err := u.file.ReadAt(p.of.Tensor, part, off+at); err != nil {
				return err
			}
			index := int((off + at) / hashPiece)
			p.of.hash.Hash(index, part)
			if p.of.wide != nil {
				wide := p.of.Widen(part)
				p.of.wide.Hash(index, wide)
				if err := p.of.write(wide, 2*(off+at)); err != nil {
					return err
				}
			}
		}
		if p.of.buffer != nil && p.of.wide == nil {
			if err := p.of.write(bytes, off); err != nil {
				return err
			}
		}
		if p.of.buffer != nil {
			u.meter.add(uint64(len(bytes)))
		}
		if p.of.left.Add(-int64(len(bytes))) == 0 {
			close(p.of.done)
		}
	}
	return nil
}

// bind takes every tensor's digest when its bytes were hashed, and binds it if the model has a use for it, telling bound.
func (u *uploads) bind(ctx context.Context, inst *Instance, bound chan<- residency) error {
	for range u.file.Tensors() {
		var s *staged
		select {
		case s = <-u.staged:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case <-s.done:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			u.staged <- s // others may still write to it
			return context.Cause(ctx)
		}
		digest := s.hash.Sum()
		u.digests[s.Tensor.Name] = digest
		if s.buffer == nil {
			continue
		}
		raw, err := s.buffer.Release()
		if err != nil {
			return err
		}
		if err := bind(inst.model, s.Desc, raw); err != nil {
			return fmt.Errorf("tensor %q: %w", s.Tensor.Name, err)
		}
		u.room.Release(int64(s.Bytes()))
		if s.wide != nil {
			digest = s.wide.Sum()
		}
		t := residency{name: s.Tensor.Name, digest: engine.Digest(digest)}
		inst.weights += inst.sizes[len(inst.tensors)]
		inst.tensors = append(inst.tensors, t)
		bound <- t
	}
	return nil
}

// meter reports progress at most every 20 ms, and at the end. Any goroutine may add.
type meter struct {
	stage Stage
	total uint64
	begin time.Time
	to    func(Progress)
	mu    struct {
		sync.Mutex
		done uint64
		last time.Time
	}
}

func newMeter(stage Stage, total uint64, to func(Progress)) *meter {
	m := &meter{stage: stage, total: total, begin: time.Now(), to: to}
	to(Progress{Stage: stage, Total: total})
	return m
}

func (m *meter) add(bytes uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.done += bytes
	now, done := time.Now(), m.mu.done
	if done < m.total && now.Sub(m.mu.last) < 20*time.Millisecond {
		return
	}
	m.mu.last = now
	p := Progress{Stage: m.stage, Done: done, Total: m.total}
	if done > 0 {
		p.ETA = time.Duration(float64(now.Sub(m.begin)) * float64(m.total-done) / float64(done))
	}
	m.to(p)
}
