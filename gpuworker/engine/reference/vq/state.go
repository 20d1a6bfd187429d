package vq

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// stateMark is the start of every state. Its last byte is the version of the format.
const stateMark = "MRVSTAT\x01"

// state is a training before a round.
type state []byte

// header is the part of a state that does not depend on the codebook's shape.
type header struct {
	Iteration   int64
	Temperature float64
	Stable      int64
	Energy      float64 // of the round before; 0 in round 0
}

// state returns the training as bytes: mark, header, codewords, those of the round before (except
// in round 0), and for Annealed each subspace's positions and velocities.
func (t *Training) state() state {
	var b bytes.Buffer
	b.WriteString(stateMark)
	put(&b, header{t.iteration, t.temperature, int64(t.stable), t.energy})
	for _, s := range t.spaces {
		b.Write(Encode(t.cfg.Codebook.Type, s.c))
	}
	if t.iteration > 0 {
		for _, s := range t.spaces {
			b.Write(Encode(t.cfg.Codebook.Type, s.last))
		}
	}
	if t.cfg.Algorithm == engine.Annealed {
		for _, s := range t.spaces {
			put(&b, s.p)
			put(&b, s.v)
		}
	}
	return b.Bytes()
}

func put(b *bytes.Buffer, v any) {
	if err := binary.Write(b, binary.LittleEndian, v); err != nil {
		panic("vq: a state is made of fixed-size values: " + err.Error())
	}
}

// State returns the state for Resume: the training before its last round, or before its next one if
// it has done none.
func (t *Training) State() []byte {
	if t.reason == engine.Unfinished {
		return t.state()
	}
	return t.begun
}

// Resume returns a training that continues from a state, with the same rows and configuration
// except the limits that end a training.
func Resume(cfg engine.TrainerConfig, rows []float64, from []byte) (*Training, error) {
	t, err := bare(cfg, rows)
	if err != nil {
		return nil, err
	}
	h, values, err := open(cfg, from)
	if err != nil {
		return nil, err
	}
	t.iteration, t.temperature, t.stable, t.energy = h.Iteration, h.Temperature, int(h.Stable), h.Energy
	t.fill(values)
	t.begun = t.state()
	return t, nil
}

// CheckState checks that a state fits the configuration.
func CheckState(cfg engine.TrainerConfig, from []byte) error {
	_, _, err := open(cfg, from)
	return err
}

// open reads the header of a state and returns the bytes after it.
func open(cfg engine.TrainerConfig, from []byte) (h header, values []byte, err error) {
	size := len(stateMark) + binary.Size(h)
	if len(from) < size || string(from[:len(stateMark)]) != stateMark {
		return h, nil, fmt.Errorf("a state of %d bytes does not begin as one: %w", len(from), engine.ErrInvalid)
	}
	if _, err := binary.Decode(from[len(stateMark):], binary.LittleEndian, &h); err != nil {
		return h, nil, fmt.Errorf("read state: %w", err)
	}
	book := int(cfg.Codebook.Bytes())
	want := size + book
	if h.Iteration > 0 {
		want += book
	}
	if cfg.Algorithm == engine.Annealed {
		want += 16 * cfg.Codebook.Codewords * cfg.Codebook.Dimension
	}
	switch {
	case len(from) != want:
		return h, nil, fmt.Errorf("a state of %d bytes, this configuration's has %d: %w", len(from), want, engine.ErrInvalid)
	case h.Iteration < 0 || h.Stable < 0 || h.Stable > h.Iteration ||
		!(math.Abs(h.Energy) <= math.MaxFloat64) || !(h.Temperature >= 0 && h.Temperature <= 1):
		return h, nil, fmt.Errorf("a state with iteration %d, %d stable rounds, energy %v and temperature %v: %w", h.Iteration, h.Stable,
			h.Energy, h.Temperature, engine.ErrInvalid)
	}
	places := len(from) - 16*cfg.Codebook.Codewords*cfg.Codebook.Dimension
	if cfg.Algorithm != engine.Annealed {
		places = len(from)
	}
	numbers, _ := doubles(from[places:], (len(from)-places)/8)
	for i, v := range append(Decode(cfg.Codebook.Type, from[size:places]), numbers...) {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return h, nil, fmt.Errorf("a state with %v as its value %d: %w", v, i, engine.ErrInvalid)
		}
	}
	return h, from[size:], nil
}

// fill reads the arrays of a checked state. It computes the ids of the round before again.
func (t *Training) fill(b []byte) {
	next := func(of engine.Element, n int) []float64 {
		out := Decode(of, b[:n*of.Size()])
		b = b[n*of.Size():]
		return out
	}
	n, of := t.cfg.Codebook.Codewords*t.cfg.Codebook.Width(), t.cfg.Codebook.Type
	for _, s := range t.spaces {
		s.c = next(of, n)
	}
	if t.iteration > 0 {
		for _, s := range t.spaces {
			s.last = next(of, n)
		}
	}
	for _, s := range t.spaces {
		if t.cfg.Algorithm == engine.Annealed {
			s.p, b = doubles(b, n)
			s.v, b = doubles(b, n)
		}
		if t.iteration > 0 {
			s.recall()
		}
	}
}

// recall computes the ids of the round before.
func (s *space) recall() {
	now := s.c
	s.c = s.last
	s.assign()
	s.c, s.distances, s.loads = now, nil, nil
}

func doubles(b []byte, n int) (v []float64, rest []byte) {
	v = make([]float64, n)
	for i := range v {
		v[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return v, b[8*n:]
}
