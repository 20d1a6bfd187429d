package ingress

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// message returns a gRPC message of n bytes with its prefix.
func message(n int) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(n)), make([]byte, n)...)
}

// result is what Next returned.
type result struct {
	bytes int64
	err   error
}

// ask calls Next in its own goroutine.
func ask(a *Stream, timeout time.Duration) <-chan result {
	got := make(chan result, 1)
	go func() {
		n, err := a.Next(context.Background(), timeout)
		got <- result{n, err}
	}()
	synctest.Wait()
	return got
}

// waits requires that Next has not returned.
func waits(t *testing.T, got <-chan result) {
	t.Helper()
	synctest.Wait()
	select {
	case c := <-got:
		require.Fail(t, "it did not wait", "%+v", c)
	default:
	}
}

func TestNextWaitsForASmallMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Stream{}
		got := ask(a, time.Second)
		m := message(smallBytes)
		a.addData(m[:3])
		waits(t, got)
		a.addData(m[3:100])
		waits(t, got)
		a.addData(m[100:])
		require.Equal(t, result{}, <-got)

		a.addData(message(0))
		require.Equal(t, result{}, <-ask(a, 0), "an empty one too")
		a.addData(append(message(5), message(6)...))
		require.Equal(t, result{}, <-ask(a, 0))
		require.Equal(t, result{}, <-ask(a, 0), "each of two that come together")
		waits(t, ask(a, 0))
		a.end()
	})
}

func TestNextReturnsTheLengthOfALargeMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Stream{}
		m := message(smallBytes + 1)
		a.addData(m[:4])
		got := ask(a, 0)
		waits(t, got)
		a.addData(m[4:5])
		require.Equal(t, result{bytes: smallBytes + 1}, <-got)
		next := ask(a, 0)
		a.addData(m[5:])
		waits(t, next)
		a.addData(message(1))
		require.Equal(t, result{}, <-next)
		a.addData(message(Window - 100))
		require.Equal(t, result{}, <-ask(a, 0), "one that has come whole takes no room")
	})
}

func TestNextReturnsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Stream{}
		got := ask(a, 0)
		waits(t, got)
		a.end()
		require.Equal(t, result{}, <-got)

		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		n, err := (&Stream{}).Next(ctx, 0)
		require.Equal(t, result{}, result{n, err}, "receiving tells of a call that has ended")
	})
}

func TestSingleMessageIsKnownWithItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Stream{}
		a.ExpectSingle()
		got := ask(a, time.Minute)
		a.addData(message(10))
		waits(t, got)
		a.end()
		require.Equal(t, result{}, <-got)

		large := &Stream{}
		large.ExpectSingle()
		large.addData(message(1 << 20)[:5])
		require.Equal(t, result{bytes: 1 << 20}, <-ask(large, time.Minute))

		for name, feed := range map[string]func(*Stream){
			"after":  func(a *Stream) { a.ExpectSingle(); a.addData(append(message(10), 0)) },
			"before": func(a *Stream) { a.addData(append(message(10), 0)); a.ExpectSingle() },
			"both":   func(a *Stream) { a.addData(append(message(10), message(10)...)); a.ExpectSingle() },
			"apart":  func(a *Stream) { a.ExpectSingle(); a.addData(message(10)); a.addData([]byte{0}) },
		} {
			two := &Stream{}
			feed(two)
			require.Equal(t, result{err: ErrSecondMessage}, <-ask(two, 0), name)
			_, wrong := two.Err()
			require.ErrorIs(t, wrong, ErrSecondMessage, name)
		}
	})
}

func TestNextTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Stream{}
		begun := time.Now()
		a.addData(message(10)[:9])
		require.Equal(t, result{err: ErrNoMessage}, <-ask(a, time.Second))
		require.Equal(t, time.Second, time.Since(begun))

		forever := ask(a, 0)
		time.Sleep(time.Hour)
		waits(t, forever)
		a.end()
		<-forever
	})
}

func TestTinyFramesAreAnError(t *testing.T) {
	for name, tc := range map[string]struct {
		each, frames int
		wrong        error
	}{
		"a byte each":             {1, uncheckedFrames + 1, ErrTinyFrames},
		"as many as are nothing":  {1, uncheckedFrames, nil},
		"frames of a fair length": {minMeanFrame, 4 * uncheckedFrames, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := &Stream{}
			a.addData(message(1 << 20)[:prefixBytes])
			changed, _ := a.Err()
			for range tc.frames {
				a.addData(make([]byte, tc.each))
				a.endFrame()
			}
			_, wrong := a.Err()
			require.Equal(t, tc.wrong, wrong)
			if wrong != nil {
				<-changed
			}
		})
	}
	a := &Stream{}
	for range 4 * uncheckedFrames {
		a.addData(message(1))
		a.endFrame()
	}
	_, wrong := a.Err()
	require.NoError(t, wrong, "many small messages are none")
}
