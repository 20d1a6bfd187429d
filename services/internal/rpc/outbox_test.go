package rpc

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// line is a transport: what was sent waits in it until take.
type line struct {
	grpc.ServerStream
	ctx  context.Context
	sent chan mem.BufferSlice
}

func newLine(ctx context.Context) *line {
	return &line{ctx: ctx, sent: make(chan mem.BufferSlice, 1<<16)}
}

func (l *line) Context() context.Context { return l.ctx }

func (l *line) SendMsg(m any) error {
	data, err := FrameCodec().Marshal(m)
	if err == nil {
		l.sent <- data
	}
	return err
}

// take puts one message on the wire.
func (l *line) take() []byte {
	data := <-l.sent
	defer data.Free()
	return bytes.Clone(data.Materialize())
}

// send sends a message of n bytes of value b.
func send(o *outbox, b byte, n int) error {
	return o.SendMsg(&Frame{Data: mem.BufferSlice{mem.SliceBuffer(bytes.Repeat([]byte{b}, n))}})
}

func TestMessagesArriveWholeAndInOrder(t *testing.T) {
	l := newLine(t.Context())
	o := &outbox{ServerStream: l, sends: testSends()}
	sizes := []int{0, 1, 20, outboxBytes, 1, outboxBytes + 1, 70_000, 3, outboxBytes - 1, 1, 1}
	failed := make(chan error, 1)
	go func() {
		for i, n := range sizes {
			if err := send(o, byte(i), n); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	for i, n := range sizes {
		got := l.take()
		require.Equal(t, bytes.Repeat([]byte{byte(i)}, n), append([]byte{}, got...), "message %d", i)
	}
	require.NoError(t, <-failed)
	require.Nil(t, o.page, "an idle stream holds no page")
}

func TestSmallMessagesWaitForASlowCaller(t *testing.T) {
	l := newLine(t.Context())
	o := &outbox{ServerStream: l, sends: testSends()}
	done := make(chan error, 1)
	const messages = 3 * outboxBytes / 20
	go func() {
		for range messages {
			if err := send(o, 7, 20); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	require.Eventually(t, func() bool { return len(l.sent) == outboxBytes/20 }, time.Minute, time.Millisecond)
	select {
	case err := <-done:
		require.FailNow(t, "more than a page was queued", "%v", err)
	default:
	}
	for range messages {
		require.LessOrEqual(t, len(l.sent), outboxBytes/20)
		require.Len(t, l.take(), 20)
	}
	require.NoError(t, <-done)
}

func TestAMessageThatIsHeldElsewhereKeepsItsPage(t *testing.T) {
	l := newLine(t.Context())
	o := &outbox{ServerStream: l, sends: testSends()}
	require.NoError(t, send(o, 1, 20))
	held := <-l.sent
	for range 5 {
		require.NoError(t, send(o, 2, 20))
		l.take()
	}
	require.Equal(t, bytes.Repeat([]byte{1}, 20), held.Materialize())
	held.Free()
	require.Nil(t, o.page)
}

func TestACallThatEndsWaitsForNobody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := newLine(ctx)
	o := &outbox{ServerStream: l, sends: testSends()}
	require.NoError(t, send(o, 1, outboxBytes))
	done := make(chan error, 1)
	go func() { done <- send(o, 2, 1) }()
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-done))
	require.Len(t, l.take(), outboxBytes)
}

func TestOtherMessagesPassAnOutboxBy(t *testing.T) {
	l := newLine(t.Context())
	o := &outbox{ServerStream: l, sends: testSends()}
	require.Error(t, o.SendMsg("no message"), "the stream's own word")
}

func TestMessagesThatAreNotEncodedAreLaidInThePageAsWell(t *testing.T) {
	l := newLine(t.Context())
	o := &outbox{ServerStream: l, sends: testSends()}
	for _, n := range []int{0, 1, 300, outboxBytes - 3, outboxBytes - 2, outboxBytes, 70_000} {
		in := wrapperspb.String(strings.Repeat("x", n))
		small, sent := proto.Size(in) <= outboxBytes, make(chan error, 1)
		if small {
			require.NoError(t, o.SendMsg(in))
			sent <- nil
		} else {
			go func() { sent <- o.SendMsg(in) }() // returns when it is on the wire
		}
		require.Equal(t, small, o.page != nil, "%d bytes", n)
		var out wrapperspb.StringValue
		require.NoError(t, proto.Unmarshal(l.take(), &out))
		require.Equal(t, in.GetValue(), out.GetValue(), "%d bytes", n)
		require.Nil(t, o.page, "an idle stream holds no page")
		require.NoError(t, <-sent)
	}
}

func TestAMessageThatCannotBeEncodedHoldsNoPage(t *testing.T) {
	l := newLine(t.Context())
	o := &outbox{ServerStream: l, sends: testSends()}
	require.ErrorContains(t, o.SendMsg(wrapperspb.String("\xff")), "UTF-8")
	require.Nil(t, o.page)
	require.NoError(t, send(o, 1, 20))
	require.Len(t, l.take(), 20)
}

func BenchmarkOutbox(b *testing.B) {
	l := newLine(b.Context())
	o := &outbox{ServerStream: l, sends: testSends()}
	data := mem.SliceBuffer(bytes.Repeat([]byte{7}, 24))
	for b.Loop() {
		if err := o.SendMsg(&Frame{Data: mem.BufferSlice{data}}); err != nil {
			b.Fatal(err)
		}
		(<-l.sent).Free()
	}
}

// A caller that is slower than its worker: each message fills the page and waits until the one before is on the wire.
func BenchmarkFullOutbox(b *testing.B) {
	l := newLine(b.Context())
	o := &outbox{ServerStream: l, sends: testSends()}
	data := mem.SliceBuffer(bytes.Repeat([]byte{7}, outboxBytes))
	go func() {
		for sent := range l.sent {
			runtime.Gosched() // until the next one waits
			sent.Free()
		}
	}()
	defer close(l.sent)
	b.ReportAllocs()
	for b.Loop() {
		if err := o.SendMsg(&Frame{Data: mem.BufferSlice{data}}); err != nil {
			b.Fatal(err)
		}
	}
}
