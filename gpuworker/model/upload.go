package model

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/vram"
)

// uploadPiece is how many bytes are copied at a time; they stay in a core's cache between file and device.
const uploadPiece = 512 << 10

// upload copies every tensor to the device and compares the digests of the resident bytes with the file's, which are
// computed meanwhile.
func (l *loader) upload(ctx context.Context, inst *Instance, file *gguf.File, spec *arch.Model) error {
	group, groupCtx := errgroup.WithContext(ctx)
	var digests []gguf.Digest
	group.Go(func() (err error) {
		digests, err = file.TensorDigests(groupCtx, l.cfg.HashWorkers, nil)
		return err
	})
	group.Go(func() error { return l.bind(groupCtx, inst.model, file, spec) })
	if err := group.Wait(); err != nil {
		return err
	}
	inst.Digest = engine.Digest(gguf.ModelDigest(file.Metadata(), file.Tensors(), digests))
	if want := l.options.ExpectDigest; want != nil && *want != inst.Digest {
		return fmt.Errorf("%w: the file has %x, expected %x", ErrDigest, inst.Digest, *want)
	}
	byName := make(map[string]gguf.Digest, len(digests))
	for i, t := range file.Tensors() {
		byName[t.Name] = digests[i]
	}
	for _, b := range spec.Bindings {
		inst.tensors = append(inst.tensors, residency{name: b.Tensor.Name, digest: engine.Digest(byName[b.Tensor.Name])})
	}
	meter := newMeter(Verifying, spec.Bytes, l.progress)
	return inst.verify(ctx, func(i int) { meter.add(spec.Bindings[i].Tensor.Size) })
}

// bind uploads tensors by several goroutines, each a piece at a time, and binds them in order. What is staged is never more
// than the largest tensor, so that the peak is one tensor above the model's size.
func (l *loader) bind(ctx context.Context, m engine.Model, file *gguf.File, spec *arch.Model) (err error) {
	memory := vram.New(l.device, l.logger)
	defer func() { err = errors.Join(err, memory.Close()) }()
	largest := int64(0)
	for _, b := range spec.Bindings {
		largest = max(largest, int64(b.Tensor.Size))
	}
	u := &uploads{
		meter: newMeter(Uploading, spec.Bytes, l.progress), room: semaphore.NewWeighted(largest), largest: largest,
		pieces: make(chan piece), staged: make(chan *staged, len(spec.Bindings)),
	}
	defer func() { // those that were not bound
		for s := range u.staged {
			err = errors.Join(err, s.buffer.Free())
		}
	}()
	group, ctx := errgroup.WithContext(ctx)
	for range l.cfg.UploadWorkers {
		group.Go(func() error { return u.copy(ctx, file) })
	}
	group.Go(func() error { return u.stage(ctx, memory, spec) })
	group.Go(func() error { return u.bind(ctx, m, len(spec.Bindings)) })
	err = group.Wait()
	close(u.staged)
	if err != nil {
		return err
	}
	return m.Seal()
}

// uploads is what the goroutines of one load share.
type uploads struct {
	meter   *meter
	room    *semaphore.Weighted // bytes that may be staged
	largest int64
	pieces  chan piece
	staged  chan *staged // in the order of binding; holds all of them, so that sending never waits
}

// staged is one tensor's buffer on its way.
type staged struct {
	binding arch.Binding
	buffer  *vram.Buffer
	left    atomic.Int64  // bytes
	done    chan struct{} // closed when none are left
}

// piece is a run of one tensor's bytes.
type piece struct {
	of       *staged
	off, end uint64
}

// stage allocates buffers in order, as room allows, and hands their pieces out.
func (u *uploads) stage(ctx context.Context, memory *vram.Pool, spec *arch.Model) error {
	defer close(u.pieces)
	for _, b := range spec.Bindings {
		if err := u.room.Acquire(ctx, int64(b.Tensor.Size)); err != nil {
			return err
		}
		buffer, err := memory.Alloc(b.Tensor.Size, engine.Staging, b.Tensor.Name)
		if err != nil {
			return err
		}
		s := &staged{binding: b, buffer: buffer, done: make(chan struct{})}
		s.left.Store(int64(b.Tensor.Size))
		u.staged <- s
		for off := uint64(0); off < b.Tensor.Size; off += uploadPiece {
			select {
			case u.pieces <- piece{of: s, off: off, end: min(off+uploadPiece, b.Tensor.Size)}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// copy moves pieces until there are no more.
func (u *uploads) copy(ctx context.Context, file *gguf.File) error {
	buffer := make([]byte, uploadPiece)
	for p := range u.pieces {
		if err := ctx.Err(); err != nil {
			return err
		}
		bytes := buffer[:p.end-p.off]
		if err := file.ReadAt(p.of.binding.Tensor, bytes, p.off); err != nil {
			return err
		}
		if _, err := p.of.buffer.WriteAt(bytes, int64(p.off)); err != nil {
			return fmt.Errorf("upload: %w", err)
		}
		u.meter.add(uint64(len(bytes)))
		if p.of.left.Add(-int64(len(bytes))) == 0 {
			close(p.of.done)
		}
	}
	return nil
}

// bind binds n tensors, each when its bytes are there.
func (u *uploads) bind(ctx context.Context, m engine.Model, n int) error {
	for range n {
		var s *staged
		select {
		case s = <-u.staged:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-s.done:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), s.buffer.Free())
		}
		raw, err := s.buffer.Release()
		if err != nil {
			return err
		}
		if err := m.Bind(s.binding.Desc, raw); err != nil {
			return fmt.Errorf("tensor %q: %w", s.binding.Tensor.Name, err)
		}
		u.room.Release(int64(s.binding.Tensor.Size))
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
