package ingress

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// recorder is a sink that keeps everything by stream.
type recorder struct {
	bodies map[uint32][]byte
	frames map[uint32]int
	ends   map[uint32]bool
	blocks []headerBlock
}

// headerBlock is one call of headersEnd.
type headerBlock struct {
	stream uint32
	closed bool
}

func newRecorder() *recorder {
	return &recorder{bodies: map[uint32][]byte{}, frames: map[uint32]int{}, ends: map[uint32]bool{}}
}

func (r *recorder) bodyData(stream uint32, part []byte) {
	r.bodies[stream] = append(r.bodies[stream], part...)
}
func (r *recorder) frameEnd(stream uint32)    { r.frames[stream]++ }
func (r *recorder) streamEnded(stream uint32) { r.ends[stream] = true }
func (r *recorder) headersEnd(stream uint32, closed bool) {
	r.blocks = append(r.blocks, headerBlock{stream, closed})
}

// follow parses raw in pieces, whose lengths next returns.
func follow(t testing.TB, raw []byte, next func() int) *recorder {
	t.Helper()
	rec := newRecorder()
	f := frameParser{sink: rec}
	for len(raw) > 0 {
		piece := raw[:min(len(raw), max(1, next()))]
		n := f.scan(piece)
		require.Positive(t, n)
		raw = raw[n:]
	}
	return rec
}

// read returns what golang.org/x/net reads from the same bytes up to the first invalid frame, and
// how many bytes that is.
func read(raw []byte) (*recorder, int) {
	rec := newRecorder()
	from := bytes.NewReader(raw[min(len(raw), prefaceBytes):])
	framer := http2.NewFramer(io.Discard, from)
	framer.SetMaxReadFrameSize(1<<24 - 1)
	framer.AllowIllegalReads = true
	good := min(len(raw), prefaceBytes)
	closed := false
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return rec, good
		}
		good = len(raw) - from.Len()
		id := frame.Header().StreamID
		switch frame := frame.(type) {
		case *http2.DataFrame:
			if len(frame.Data()) > 0 {
				rec.bodyData(id, frame.Data())
			}
			rec.frameEnd(id)
			if frame.StreamEnded() {
				rec.streamEnded(id)
			}
		case *http2.RSTStreamFrame:
			rec.streamEnded(id)
		case *http2.HeadersFrame:
			closed = frame.StreamEnded()
			if frame.HeadersEnded() {
				rec.headersEnd(id, closed)
			}
		case *http2.ContinuationFrame:
			if frame.HeadersEnded() {
				rec.headersEnd(id, closed)
			}
		}
	}
}

// written returns a client's bytes: a preface and n random frames.
func written(t testing.TB, r *rand.Rand, n int) []byte {
	t.Helper()
	var to bytes.Buffer
	to.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&to, nil)
	framer.AllowIllegalWrites = true
	must := func(err error) { require.NoError(t, err) }
	must(framer.WriteSettings())
	fragment := func() []byte { return make([]byte, r.IntN(40)) }
	for range n {
		id := uint32(2*r.IntN(4) + 1)
		body := make([]byte, r.IntN(60))
		for i := range body {
			body[i] = byte(r.Uint32())
		}
		switch r.IntN(8) {
		case 0:
			split := r.IntN(2) == 0
			must(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: fragment(), EndHeaders: !split,
				EndStream: r.IntN(2) == 0, PadLength: uint8(r.IntN(9))}))
			if split {
				must(framer.WriteContinuation(id, false, fragment()))
				must(framer.WriteContinuation(id, true, fragment()))
			}
		case 1:
			must(framer.WriteRSTStream(id, http2.ErrCodeCancel))
		case 2:
			must(framer.WriteWindowUpdate(id, 9))
		case 3:
			must(framer.WritePing(false, [8]byte{1}))
		case 4:
			must(framer.WriteDataPadded(id, r.IntN(2) == 0, body, make([]byte, r.IntN(30))))
		default:
			must(framer.WriteData(id, r.IntN(4) == 0, body))
		}
	}
	return to.Bytes()
}

func TestParserAgreesWithTheHTTP2Library(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		raw := written(t, r, 40)
		want, good := read(raw)
		require.Equal(t, len(raw), good)
		for _, most := range []int{1, 7, 64, 1 << 16} {
			require.Equal(t, want, follow(t, raw, func() int { return 1 + r.IntN(most) }), "seed %d, pieces of up to %d", seed, most)
		}
	}
}

func TestParserStopsAfterEachHeaderBlock(t *testing.T) {
	var to bytes.Buffer
	to.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&to, nil)
	require.NoError(t, errors.Join(framer.WriteSettings(),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("a"), EndHeaders: true, EndStream: true})))
	first := to.Len()
	require.NoError(t, errors.Join(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte("b")}),
		framer.WriteContinuation(3, true, []byte("c"))))
	second := to.Len() - first
	require.NoError(t, framer.WriteData(3, false, []byte("body")))
	third := to.Len() - first - second

	rec := newRecorder()
	f := frameParser{sink: rec}
	require.False(t, f.sawFrame())
	raw := to.Bytes()
	for i, want := range []int{first, second, third} {
		n := f.scan(raw)
		require.Equal(t, want, n)
		require.Equal(t, []headerBlock{{1, true}, {3, false}}[:min(i+1, 2)], rec.blocks)
		require.True(t, f.sawFrame())
		raw = raw[n:]
	}
	require.Empty(t, raw)
}

func FuzzFrames(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 8 {
		f.Add(written(f, r, n*n), uint8(n))
	}
	f.Add([]byte("GET / HTTP/1.1\r\nHost: millrace\r\n\r\n"), uint8(3))
	f.Fuzz(func(t *testing.T, raw []byte, piece uint8) {
		whole := follow(t, raw, func() int { return len(raw) })
		require.Equal(t, whole, follow(t, raw, func() int { return int(piece) }), "pieces make no difference")
		if want, good := read(raw); good > prefaceBytes {
			require.Equal(t, want, follow(t, raw[:good], func() int { return good }), "a library reads the same")
		}
	})
}
