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

// fakeTransport keeps what was sent until write.
type fakeTransport struct {
	grpc.ServerStream
	ctx  context.Context
	sent chan mem.BufferSlice
}

func newFakeTransport(ctx context.Context) *fakeTransport {
	return &fakeTransport{ctx: ctx, sent: make(chan mem.BufferSlice, 1<<16)}
}

func (l *fakeTransport) Context() context.Context { return l.ctx }

func (l *fakeTransport) SendMsg(m any) error {
	data, err := FrameCodec().Marshal(m)
	if err == nil {
		l.sent <- data
	}
	return err
}

// write puts one message on the wire.
func (l *fakeTransport) write() []byte {
	data := <-l.sent
	defer data.Free()
	return bytes.Clone(data.Materialize())
}

// send sends a message of n bytes of value b.
func send(s *boundedSender, b byte, n int) error {
	return s.SendMsg(&Frame{Data: mem.BufferSlice{mem.SliceBuffer(bytes.Repeat([]byte{b}, n))}})
}

func TestSenderKeepsOrder(t *testing.T) {
	l := newFakeTransport(t.Context())
	s := &boundedSender{ServerStream: l, budget: testSendBudget()}
	sizes := []int{0, 1, 20, smallBytes, 1, smallBytes + 1, 70_000, 3, smallBytes - 1, 1, 1}
	failed := make(chan error, 1)
	go func() {
		for i, n := range sizes {
			if err := send(s, byte(i), n); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	for i, n := range sizes {
		got := l.write()
		require.Equal(t, bytes.Repeat([]byte{byte(i)}, n), append([]byte{}, got...), "message %d", i)
	}
	require.NoError(t, <-failed)
	require.Nil(t, s.page, "an idle stream holds no page")
}

func TestSenderWaitsForASlowCaller(t *testing.T) {
	l := newFakeTransport(t.Context())
	s := &boundedSender{ServerStream: l, budget: testSendBudget()}
	done := make(chan error, 1)
	const messages = 3 * smallBytes / 20
	go func() {
		for range messages {
			if err := send(s, 7, 20); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	require.Eventually(t, func() bool { return len(l.sent) == smallBytes/20 }, time.Minute, time.Millisecond)
	select {
	case err := <-done:
		require.FailNow(t, "more than a page was queued", "%v", err)
	default:
	}
	for range messages {
		require.LessOrEqual(t, len(l.sent), smallBytes/20)
		require.Len(t, l.write(), 20)
	}
	require.NoError(t, <-done)
}

func TestSenderKeepsThePageOfAHeldMessage(t *testing.T) {
	l := newFakeTransport(t.Context())
	s := &boundedSender{ServerStream: l, budget: testSendBudget()}
	require.NoError(t, send(s, 1, 20))
	held := <-l.sent
	for range 5 {
		require.NoError(t, send(s, 2, 20))
		l.write()
	}
	require.Equal(t, bytes.Repeat([]byte{1}, 20), held.Materialize())
	held.Free()
	require.Nil(t, s.page)
}

func TestSenderStopsWaitingWhenTheCallEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := newFakeTransport(ctx)
	s := &boundedSender{ServerStream: l, budget: testSendBudget()}
	require.NoError(t, send(s, 1, smallBytes))
	done := make(chan error, 1)
	go func() { done <- send(s, 2, 1) }()
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-done))
	require.Len(t, l.write(), smallBytes)
}

func TestSenderPassesOtherTypesThrough(t *testing.T) {
	l := newFakeTransport(t.Context())
	s := &boundedSender{ServerStream: l, budget: testSendBudget()}
	require.Error(t, s.SendMsg("no message"), "the stream's own word")
}

func TestSenderEncodesIntoThePage(t *testing.T) {
	l := newFakeTransport(t.Context())
	s := &boundedSender{ServerStream: l, budget: testSendBudget()}
	for _, n := range []int{0, 1, 300, smallBytes - 3, smallBytes - 2, smallBytes, 70_000} {
		in := wrapperspb.String(strings.Repeat("x", n))
		small, sent := proto.Size(in) <= smallBytes, make(chan error, 1)
		if small {
			require.NoError(t, s.SendMsg(in))
			sent <- nil
		} else {
			go func() { sent <- s.SendMsg(in) }() // returns when it is on the wire
		}
		require.Equal(t, small, s.page != nil, "%d bytes", n)
		var out wrapperspb.StringValue
		require.NoError(t, proto.Unmarshal(l.write(), &out))
		require.Equal(t, in.GetValue(), out.GetValue(), "%d bytes", n)
		require.Nil(t, s.page, "an idle stream holds no page")
		require.NoError(t, <-sent)
	}
}

func TestSenderFreesThePageOfABadMessage(t *testing.T) {
	l := newFakeTransport(t.Context())
	s := &boundedSender{ServerStream: l, budget: testSendBudget()}
	require.ErrorContains(t, s.SendMsg(wrapperspb.String("\xff")), "UTF-8")
	require.Nil(t, s.page)
	require.NoError(t, send(s, 1, 20))
	require.Len(t, l.write(), 20)
}

func BenchmarkBoundedSender(b *testing.B) {
	l := newFakeTransport(b.Context())
	s := &boundedSender{ServerStream: l, budget: testSendBudget()}
	data := mem.SliceBuffer(bytes.Repeat([]byte{7}, 24))
	for b.Loop() {
		if err := s.SendMsg(&Frame{Data: mem.BufferSlice{data}}); err != nil {
			b.Fatal(err)
		}
		(<-l.sent).Free()
	}
}

// BenchmarkBoundedSenderFull has a caller that is slower than its worker: each message fills the
// page and waits until the previous one is on the wire.
func BenchmarkBoundedSenderFull(b *testing.B) {
	l := newFakeTransport(b.Context())
	s := &boundedSender{ServerStream: l, budget: testSendBudget()}
	data := mem.SliceBuffer(bytes.Repeat([]byte{7}, smallBytes))
	go func() {
		for sent := range l.sent {
			runtime.Gosched() // until the next one waits
			sent.Free()
		}
	}()
	defer close(l.sent)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.SendMsg(&Frame{Data: mem.BufferSlice{data}}); err != nil {
			b.Fatal(err)
		}
	}
}
