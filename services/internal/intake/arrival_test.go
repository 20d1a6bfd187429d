package intake

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// message is one as it is on the wire.
func message(n int) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(n)), make([]byte, n)...)
}

// came is what Next has returned.
type came struct {
	bytes int64
	err   error
}

// ask calls Next on a goroutine of its own.
func ask(a *Arrival, patience time.Duration) <-chan came {
	got := make(chan came, 1)
	go func() {
		n, err := a.Next(context.Background(), patience)
		got <- came{n, err}
	}()
	synctest.Wait()
	return got
}

// waits requires that Next has not returned.
func waits(t *testing.T, got <-chan came) {
	t.Helper()
	synctest.Wait()
	select {
	case c := <-got:
		require.Fail(t, "it did not wait", "%+v", c)
	default:
	}
}

func TestASmallMessageIsKnownWhenItIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Arrival{}
		got := ask(a, time.Second)
		m := message(smallBytes)
		a.data(m[:3])
		waits(t, got)
		a.data(m[3:100])
		waits(t, got)
		a.data(m[100:])
		require.Equal(t, came{}, <-got)

		a.data(message(0))
		require.Equal(t, came{}, <-ask(a, 0), "an empty one too")
		a.data(append(message(5), message(6)...))
		require.Equal(t, came{}, <-ask(a, 0))
		require.Equal(t, came{}, <-ask(a, 0), "each of two that come together")
		waits(t, ask(a, 0))
		a.end()
	})
}

func TestALargeMessageIsKnownByItsLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Arrival{}
		m := message(smallBytes + 1)
		a.data(m[:4])
		got := ask(a, 0)
		waits(t, got)
		a.data(m[4:5])
		require.Equal(t, came{bytes: smallBytes + 1}, <-got)
		next := ask(a, 0)
		a.data(m[5:])
		waits(t, next)
		a.data(message(1))
		require.Equal(t, came{}, <-next)
		a.data(message(Window - 100))
		require.Equal(t, came{}, <-ask(a, 0), "one that has come whole takes no room")
	})
}

func TestTheEndIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Arrival{}
		got := ask(a, 0)
		waits(t, got)
		a.end()
		require.Equal(t, came{}, <-got)

		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		n, err := (&Arrival{}).Next(ctx, 0)
		require.Equal(t, came{}, came{n, err}, "receiving tells of a call that has ended")
	})
}

func TestACallOfOneMessageIsKnownWithItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Arrival{}
		a.Single()
		got := ask(a, time.Minute)
		a.data(message(10))
		waits(t, got)
		a.end()
		require.Equal(t, came{}, <-got)

		large := &Arrival{}
		large.Single()
		large.data(message(1 << 20)[:5])
		require.Equal(t, came{bytes: 1 << 20}, <-ask(large, time.Minute))

		for name, feed := range map[string]func(*Arrival){
			"after":  func(a *Arrival) { a.Single(); a.data(append(message(10), 0)) },
			"before": func(a *Arrival) { a.data(append(message(10), 0)); a.Single() },
			"both":   func(a *Arrival) { a.data(append(message(10), message(10)...)); a.Single() },
			"apart":  func(a *Arrival) { a.Single(); a.data(message(10)); a.data([]byte{0}) },
		} {
			two := &Arrival{}
			feed(two)
			require.Equal(t, came{err: ErrSecond}, <-ask(two, 0), name)
			_, wrong := two.Wrong()
			require.ErrorIs(t, wrong, ErrSecond, name)
		}
	})
}

func TestSilenceIsBoundedWhereItIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Arrival{}
		begun := time.Now()
		a.data(message(10)[:9])
		require.Equal(t, came{err: ErrSilent}, <-ask(a, time.Second))
		require.Equal(t, time.Second, time.Since(begun))

		forever := ask(a, 0)
		time.Sleep(time.Hour)
		waits(t, forever)
		a.end()
		<-forever
	})
}

func TestAMessageInCrumbsIsWrong(t *testing.T) {
	for name, tc := range map[string]struct {
		each, frames int
		wrong        error
	}{
		"a byte each":             {1, manyFrames + 1, ErrCrumbs},
		"as many as are nothing":  {1, manyFrames, nil},
		"frames of a fair length": {leastMean, 4 * manyFrames, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := &Arrival{}
			a.data(message(1 << 20)[:prefixBytes])
			news, _ := a.Wrong()
			for range tc.frames {
				a.data(make([]byte, tc.each))
				a.frame()
			}
			_, wrong := a.Wrong()
			require.Equal(t, tc.wrong, wrong)
			if wrong != nil {
				<-news
			}
		})
	}
	a := &Arrival{}
	for range 4 * manyFrames {
		a.data(message(1))
		a.frame()
	}
	_, wrong := a.Wrong()
	require.NoError(t, wrong, "many small messages are none")
}
