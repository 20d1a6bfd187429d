package model

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

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
	var done uint64
	meter := newMeter(Verifying, spec.Bytes, l.progress)
	return inst.verify(ctx, func(i int) {
		done += spec.Bindings[i].Tensor.Size
		meter.report(done)
	})
}

// bind uploads and binds one tensor after another, so that the peak is one tensor above the model's size.
func (l *loader) bind(ctx context.Context, m engine.Model, file *gguf.File, spec *arch.Model) (err error) {
	memory := vram.New(l.device, l.logger)
	defer func() { err = errors.Join(err, memory.Close()) }()
	meter := newMeter(Uploading, spec.Bytes, l.progress)
	var done uint64
	for _, b := range spec.Bindings {
		buffer, err := memory.Alloc(b.Tensor.Size, engine.Staging, b.Tensor.Name)
		if err != nil {
			return err
		}
		source := &tensorReader{file: file, tensor: b.Tensor}
		if err := vram.Upload(ctx, buffer, source, uploadPiece, func(n uint64) { meter.report(done + n) }); err != nil {
			return errors.Join(err, buffer.Free())
		}
		done += b.Tensor.Size
		raw, err := buffer.Release()
		if err != nil {
			return err
		}
		if err := m.Bind(b.Desc, raw); err != nil {
			return fmt.Errorf("tensor %q: %w", b.Tensor.Name, err)
		}
	}
	return m.Seal()
}

// tensorReader reads the bytes of a tensor in order, by copies that survive a file that shrinks.
type tensorReader struct {
	file   *gguf.File
	tensor gguf.Tensor
	off    uint64
}

func (r *tensorReader) Read(p []byte) (int, error) {
	p = p[:min(uint64(len(p)), r.tensor.Size-r.off)]
	if len(p) == 0 {
		return 0, io.EOF
	}
	if err := r.file.ReadAt(r.tensor, p, r.off); err != nil {
		return 0, err
	}
	r.off += uint64(len(p))
	return len(p), nil
}

// meter reports progress at most every 20 ms, and at the end.
type meter struct {
	stage       Stage
	total       uint64
	begin, last time.Time
	to          func(Progress)
}

func newMeter(stage Stage, total uint64, to func(Progress)) *meter {
	m := &meter{stage: stage, total: total, begin: time.Now(), to: to}
	to(Progress{Stage: stage, Total: total})
	return m
}

func (m *meter) report(done uint64) {
	now := time.Now()
	if done < m.total && now.Sub(m.last) < 20*time.Millisecond {
		return
	}
	m.last = now
	p := Progress{Stage: m.stage, Done: done, Total: m.total}
	if done > 0 {
		p.ETA = time.Duration(float64(now.Sub(m.begin)) * float64(m.total-done) / float64(done))
	}
	m.to(p)
}
