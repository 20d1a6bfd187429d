package enginetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// testStateFaults checks that a fault of a step leaves the states as they are without it.
func testStateFaults(t *testing.T, opener func(*testing.T) engine.Device) {
	t.Helper()
	const n, cut = 45, 20
	t.Run("a step that hangs writes the state that the next one in flight reads", func(t *testing.T) {
		s := newStateTest(t, opener, n)
		l, other := s.line(1, 20), s.line(2, 40)
		first := &engine.Step{PreOps: []engine.PreOp{l.set(nil)}}
		l.feed(first, 0, s.prompt[:cut]...)
		first.Segments[0].StateTo = 3
		second := &engine.Step{PreOps: append(share(l, other, cut), other.set(s.prompt[:cut]))}
		other.sample(second, other.feed(second, cut, s.prompt[cut:]...)+n-cut-1, n)
		second.Segments[0].StateFrom = 3
		require.NoError(t, s.r.(engine.Faulter).Fault(engine.FaultHangStep, 0, uint64(200*time.Millisecond)))
		require.NoError(t, s.r.Submit(first))
		require.NoError(t, s.r.Submit(second))
		if _, err := s.r.Wait(time.Millisecond); err != nil { // else this thread stood still for longer
			require.ErrorIs(t, err, engine.ErrTimeout)
			s.wait()
		}
		require.NoError(t, sameRows(s.want[:1], s.wait().Samples))
		s.follow(other, 1)
		third := s.line(3, 60)
		s.finish(third, cut, 3, share(l, third, cut)...)
	})
	t.Run("a row that is not a number leaves the state of its slot", func(t *testing.T) {
		s := newStateTest(t, opener, n)
		l, other := s.line(1, 20), s.line(2, 40)
		step := &engine.Step{PreOps: []engine.PreOp{l.set(nil), other.set(nil)}}
		l.sample(step, l.feed(step, 0, s.prompt...)+n-1, n)
		other.sample(step, other.feed(step, 0, s.prompt...)+n-1, n)
		require.NoError(t, s.r.(engine.Faulter).Fault(engine.FaultNaNLogits, 1, 0))
		rows := s.do(step).Samples
		require.NoError(t, sameRows(s.want[:1], rows[:1]))
		require.Equal(t, engine.RowNaN, rows[1].Status)
		s.follow(l, 1)
		s.follow(other, 1)
	})
}

// follow computes the tokens of a line from number `from` on and compares the rows after them with
// those computed alone.
func (s *stateTest) follow(l *line, from int) {
	s.t.Helper()
	for i := from; i < stateTokens; i++ {
		step, at := &engine.Step{}, len(s.prompt)+i
		l.sample(step, l.feed(step, at-1, s.want[i-1].Token), at)
		require.NoError(s.t, sameRows(s.want[i:i+1], s.do(step).Samples), "row %d of slot %d", i, l.slot)
	}
}
