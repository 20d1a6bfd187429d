package model

import (
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

// lost is a device that fails every write and free, like a failed one.
type lost struct {
	engine.Device
	allocated atomic.Uint64
}

func (d *lost) Alloc(size uint64, purpose engine.Purpose) (engine.Buffer, error) {
	b, err := d.Device.Alloc(size, purpose)
	d.allocated.Add(1)
	return lostBuffer{b}, err
}

type lostBuffer struct{ engine.Buffer }

func (lostBuffer) WriteAt([]byte, int64) (int, error) { return 0, engine.ErrDevice }

func (lostBuffer) Free() error { return engine.ErrDevice }

func TestBuffersThatALoadCouldNotFreeAreCounted(t *testing.T) {
	device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
	require.NoError(t, err)
	d := &lost{Device: device}
	m := NewManager(Config{Dir: folder(t), VerifyInterval: -1}, d, hclog.NewNullLogger())
	defer func() { require.ErrorIs(t, m.Close(), engine.ErrDevice, "the memory is still not free") }()
	require.Zero(t, m.Leaked())
	_, _, err = m.Load(t.Context(), "small", Options{}, nil)
	require.ErrorIs(t, err, engine.ErrDevice)
	require.NotZero(t, m.Leaked())
	require.Equal(t, d.allocated.Load(), m.Leaked())
}
